"""Gradients on warpgroups: roles, barriers, bulk copies and reductions, and what goes wrong in any backward pass.
The twin from Python: backward_hopper_numba.py."""

from __future__ import annotations

from tests.mutants.patching import Mutant, Patch

FOLDER = "attention_backward/fa3"
PLAN, KERNEL = f"{FOLDER}/__init__.py", f"{FOLDER}/kernel.cu"
CHIP, PRODUCTS, SCORING, NOT_FINITE = (f"{FOLDER}/{name}.cuh" for name in ("chip", "products", "scoring", "not_finite"))


def _in(file: str, bug: str, old: str, new: str, sanitize: bool = False) -> Mutant:
    return Mutant(bug, "bwd-fa3-cupy", (Patch(file, old, new),), sanitize)


_FORMULAS = (
    _in(SCORING, "statistics of the row beside, on warpgroups", "e % 2 ? of[e / 4].y", "e % 2 ? of[e / 4].x"),
    _in(SCORING, "L added to scores, on warpgroups", "fmaf(S[e], tau2, -L[e])", "fmaf(S[e], tau2, L[e])"),
    _in(SCORING, "D missing from dS, on warpgroups", "P[e] * (dP[e] - delta[e])", "P[e] * dP[e]"),
    _in(SCORING, "D added in front of dP", "X[e] = -delta[e]", "X[e] = delta[e]"),
    _in(KERNEL, "scale missing on dK, on warpgroups", "write_keys(dK_j, tau,", "write_keys(dK_j, 1.0f,"),
    _in(KERNEL, "scale on dV, on warpgroups", "write_keys(dV_j, 1.0f,", "write_keys(dV_j, tau,"),
    _in(
        KERNEL,
        "group's heads mapped by tiling, on warpgroups",
        "const int head = block.first_head + visit.head;",
        "const int head = block.first_head / 2 + visit.head;",
    ),
)
SWAPPED_ROLES = (
    Patch(PLAN, "has_spans, mirrored_limits, stored", "has_spans, limits, mirrored_limits, stored"),
    Patch(PLAN, "return mirrored_limits(problem), order", "return limits(problem), order"),
)
"""Of the plan, which both languages have."""
_MASKS = (
    Mutant("rows and keys of the mask mixed up", "bwd-fa3-cupy", SWAPPED_ROLES),
    _in(SCORING, "causal off by one in tiles that are masked", "8 * j + e >= first &&", "8 * j + e > first &&"),
    _in(SCORING, "the second eight keys masked like the first", "warps_key + 8 * h + lane / 4", "warps_key + lane / 4"),
    _in(KERNEL, "tiles on an edge of the mask taken for whole", "cut = !all_see(block.seeing, pairs)", "cut = false"),
    _in(CHIP, "the last tile of rows left out", "(end + BR - 1) / BR - tile : 0", "end / BR - tile : 0"),
    _in(KERNEL, "dS not masked, on warpgroups", "            mask(dP, block.seeing, first_key, row);\n", ""),
)
_NOT_FINITE = (
    _in(
        KERNEL,
        "rows that are not finite multiplied by zeros, on warpgroups",
        "            not_finite |= clear_not_finite(chip, n, S, dP, keys_not_finite);\n",
        "",
    ),
    _in(
        NOT_FINITE,
        "keys that are not finite multiplied by zeros, on warpgroups",
        "row < BC && clear_not_finite<BC>(chip.K_tile, row)",
        "false",
    ),
)
_ROLES = (
    _in(
        KERNEL,
        "statistics not waited for",
        "barriers.dO.expect(n, ROWS_BYTES + STAT_BYTES);",
        "barriers.dO.expect(n, ROWS_BYTES);",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "a stage of Q filled while it is read, on warpgroups",
        "        barriers.Q.wait_until_empty(n);\n",
        "",
        sanitize=True,
    ),
    _in(CHIP, "one consumer speaks for both", "dO.init(WARPS);", "dO.init(1);", sanitize=True),
    _in(
        KERNEL,
        "dS multiplied before the other consumer has stored it",
        "    barriers.dS.wait_until_full(n);\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "a tile of dS stored while it is read",
        "        barriers.dS.wait_until_empty(n);\n",
        "",
        sanitize=True,
    ),
    _in(
        KERNEL,
        "dS not published",
        "        publish_to_async();\n        __syncwarp();",
        "        __syncwarp();",
        sanitize=True,
    ),
    _in(
        PRODUCTS,
        "a part of dQ overwritten while it is added",
        "    if (lane == 0) wait_until_read();",
        "   ",
        sanitize=True,
    ),
    _in(
        CHIP,
        "dQ of every tile by one consumer only",
        "n % CONSUMERS == consumer",
        "n % CONSUMERS == 0 && consumer == 0",
    ),
    _in(
        KERNEL,
        "dQ read before it is there",
        "wait_for_products<PENDING>(dQ_i);",
        "wait_for_products<PENDING + 1>(dQ_i);",
        sanitize=True,
    ),
    _in(
        PRODUCTS,
        "columns of dQ by the second consumer added to those of the first",
        "thread / WARPGROUP * (FIRST_COLUMNS / 8)",
        "0",
    ),
    _in(PRODUCTS, "dQ added to the rows beside", "= row / 16 * FRAGMENTS", "= (row - first_row) / 16 * FRAGMENTS"),
)
MUTANTS = (*_FORMULAS, *_MASKS, *_NOT_FINITE, *_ROLES)
