"""FlashAttention-4's gradients, of the package `flash-attn-4` (Dao et al.), with its kernels for Hopper.

Three launches, as in FlashAttention-2's algorithm 2 (arXiv 2307.08691): the rows' sums of O dO, the products, in which
blocks own keys and add to dQ in float32, and the rounding of dQ. If heads share K and V, dK and dV are summed in
float32, too, behind launches that zero these sums, and rounded by two more.
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Plan, Problem, Registry, Variant
from variants._cute import leave_out_if_missing, limits, recorder, unsupported

NAME = "bwd-fa4"
NUMERICS = Numerics(scores="float32", weights="problem", functions="fast", sums="truncated")
"""P and dS are rounded to 16 bits, as tensor cores take them. Sums are cut off."""


def plan(problem: Problem) -> Plan:
    """Three launches; seven if heads share K and V."""
    p = problem

    def call(interface: Any, recording: Any) -> None:
        before, after = limits(p)
        interface._flash_attn_bwd(
            *(recording.rows(name, shape, p.dtype) for name, shape in zip("QKVO", _shapes(p))),
            recording.rows("dO", p.q_shape, p.dtype),
            recording.tensor("lse", p.lse_shape, "float32"),
            softmax_scale=p.tau,
            window_size_left=before,
            window_size_right=after,
            dq=recording.rows("dQ", p.q_shape, p.dtype),
            dk=recording.rows("dK", p.kv_shape, p.dtype),
            dv=recording.rows("dV", p.kv_shape, p.dtype),
        )

    return recorder().record(call)


def _shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    p = problem
    return p.q_shape, p.kv_shape, p.kv_shape, p.q_shape


def register(registry: Registry) -> None:
    """Add `bwd-fa4` if the package is installed."""
    if leave_out_if_missing(registry, NAME):
        return
    registry.add(
        Variant(
            name=NAME,
            plan=plan,
            operation="attention-backward",
            algorithm="bwd-fa4",
            backend="cute",
            idea="FlashAttention-4's own Hopper gradients, from the package flash-attn-4",
            supports=unsupported,
            takes=("causal", "window"),
            deterministic=False,
            numerics=NUMERICS,
        )
    )
