"""Mistakes of fa2 in its twin from Triton, which has a text of its own: the same bugs, by the same names."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

KERNEL, PLAN = "attention/fa2_triton/kernel.py", "attention/fa2_triton/__init__.py"


def _in_kernel(bug: str, old: str, new: str) -> Mutant:
    return Mutant(bug, "fa2-triton", (Patch(KERNEL, old, new),))


MUTANTS = (
    _in_kernel("m not carried across tiles", "m_new = tl.maximum(m, tl.max(S, 1))", "m_new = tl.max(S, 1)"),
    _in_kernel("l not rescaled", "l = correction * l + tl.sum(P, 1)", "l += tl.sum(P, 1)"),
    _in_kernel("O not rescaled", "O_i = correction[:, None] * O_i + P_V", "O_i += P_V"),
    _in_kernel("never divided by l", "O_i = O_i / tl.where(l == 0.0, 1.0, l)[:, None]", "O_i = O_i * 1.0"),
    _in_kernel("mask aligned top-left", "diagonal = rows + kv_len - q_len", "diagonal = rows"),
    _in_kernel("left end of what a row sees off by one", "(distance >= -before)", "(distance > -before)"),
    _in_kernel("first tile of a window skipped", "first_key // BC * BC", "(first_key + BC - 1) // BC * BC"),
    _in_kernel("padding not masked", "& has_key[None, :] & has_row", "& has_row"),
    _in_kernel("grouped heads by tiling instead of repetition", "batch_head // group",
               "batch_head % (tl.num_programs(1) // group)"),
    _in_kernel("lse to base 2", "m + tl.log(l)", "1.4426950408889634 * (m + tl.log(l))"),
    _in_kernel("lse without the maximum", "m + tl.log(l)", "tl.log(l)"),
    _in_kernel("scale applied twice", "S = tau * tl.dot", "S = tau * tau * tl.dot"),
    Mutant("one block of rows short", "fa2-triton",
           (Patch(PLAN, "blocks(p.q_len, chosen.Br), p.heads", "max(1, p.q_len // chosen.Br), p.heads"),)),
)  # fmt: skip
