"""FlashAttention-4 itself, of the package `flash-attn-4` (Dao et al.), with its kernel for Hopper.

A producer warp, TMA and wgmma, as FlashAttention-3 (arXiv 2407.08608); written in CuTe DSL. The package chooses the
tiles. Heads that share K and V are packed into one tile of rows.
"""

from __future__ import annotations

from typing import Any

from harness import Buffer, Numerics, Plan, Problem, Registry, Variant
from variants._cute import leave_out_if_missing, limits, recorder, unsupported

NAME = "fa4"
NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""


def plan(problem: Problem) -> Plan:
    """One launch."""
    p = problem

    def call(interface: Any, recording: Any) -> None:
        before, after = limits(p)
        interface._flash_attn_fwd(
            recording.rows("Q", p.q_shape, p.dtype),
            recording.rows("K", p.kv_shape, p.dtype),
            recording.rows("V", p.kv_shape, p.dtype),
            out=recording.rows("O", p.q_shape, p.dtype),
            lse=recording.tensor("lse", p.lse_shape, "float32"),
            softmax_scale=p.tau,
            softcap=p.softcap,
            window_size_left=before,
            window_size_right=after,
            learnable_sink=recording.tensor("sinks", (p.heads,), "float32") if p.sinks else None,
        )

    made = recorder().record(call)
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
            supports=unsupported,
            takes=("causal", "window", "softcap", "sinks"),
            numerics=NUMERICS,
        )
    )
