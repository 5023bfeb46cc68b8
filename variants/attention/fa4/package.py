"""FlashAttention-4 itself, of the package `flash-attn-4` (Dao et al.), with its kernel for Hopper.

A producer warp, TMA and wgmma, as FlashAttention-3 (arXiv 2407.08608); written in CuTe DSL. The package chooses the
tiles. Heads that share K and V are packed into one tile of rows.
"""

from __future__ import annotations

from typing import Any

from harness import Buffer, Numerics, Plan, Problem, Registry, Variant
from variants._cute import HOPPER, leave_out_if_missing, limits, recorder, require_support, target_of, unsupported
from variants._cute.documents import parts

NAME = "fa4"
NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""


def plan(problem: Problem, arch: str = HOPPER.name) -> Plan:
    """One launch. With documents each sequence has its own, and first those that store where documents begin."""
    p, target = problem, target_of(arch)
    require_support(NAME, p, target)

    def call(interface: Any, recording: Any) -> None:
        before, after = limits(p)
        shapes = {"Q": p.q_shape, "K": p.kv_shape, "V": p.kv_shape, "O": p.q_shape}
        q, k, v, out = (recording.rows(name, shape, p.dtype) for name, shape in shapes.items())
        lse = recording.tensor("lse", p.lse_shape, "float32")
        for part in parts(p, recording):
            interface._flash_attn_fwd(
                *map(part.of, (q, k, v)),
                **part.lengths,
                out=part.of(out),
                lse=part.of(lse),
                softmax_scale=p.tau,
                softcap=p.softcap,
                window_size_left=before,
                window_size_right=after,
                learnable_sink=recording.tensor("sinks", (p.heads,), "float32") if p.sinks else None,
            )

    made = recorder().record(call, target)
    return Plan(made.launches, (Buffer("lse", p.lse_shape, "float32"), *made.buffers))


def register(registry: Registry) -> None:
    """Add `fa4` if the package is installed."""
    if leave_out_if_missing(registry, NAME):
        return
    registry.add(
        Variant(
            name=NAME,
            plan=plan,
            algorithm="fa4",
            backend="cute",
            idea="FlashAttention-4's own Hopper kernel, from the package flash-attn-4",
            takes_arch=True,
            supports=unsupported,
            takes=("causal", "window", "documents", "softcap", "sinks"),
            numerics=NUMERICS,
        )
    )
