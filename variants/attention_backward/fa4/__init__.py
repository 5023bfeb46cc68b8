"""FlashAttention-4's gradients, of the package `flash-attn-4` (Dao et al.), with its kernels for Hopper.

Three launches, as in FlashAttention-2's algorithm 2 (arXiv 2307.08691): the rows' sums of O dO, the products, in which
blocks own keys and add to dQ in float32, and the rounding of dQ. If heads share K and V, dK and dV are summed in
float32, too, behind launches that zero these sums, and rounded by two more.
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Plan, Problem, Registry, Variant
from variants._cute import HOPPER, leave_out_if_missing, limits, recorder, require_support, target_of, unsupported
from variants._cute.documents import has_documents, parts

NAME = "bwd-fa4"
NUMERICS = Numerics(scores="float32", weights="problem", functions="fast", sums="truncated")
"""P and dS are rounded to 16 bits, as tensor cores take them. Sums are cut off."""
LSE_ALIGNMENT = 16
"""Bytes. FlashAttention-4 copies an lse that begins elsewhere, with PyTorch."""


def plan(problem: Problem, arch: str = HOPPER.name) -> Plan:
    """Three launches; seven if heads share K and V. With documents each sequence has its own, and first those that
    store where documents begin."""
    p, target = problem, target_of(arch)
    require_support(NAME, p, target)

    def call(interface: Any, recording: Any) -> None:
        before, after = limits(p)
        forward = [recording.rows(name, shape, p.dtype) for name, shape in zip("QKVO", _shapes(p))]
        d_out = recording.rows("dO", p.q_shape, p.dtype)
        lse = recording.tensor("lse", p.lse_shape, "float32")
        gradients = {
            name: recording.rows(buffer, shape, p.dtype)
            for name, buffer, shape in zip(("dq", "dk", "dv"), ("dQ", "dK", "dV"), _shapes(p))
        }
        for part in parts(p, recording):
            interface._flash_attn_bwd(
                *map(part.of, (*forward, d_out, lse)),
                **part.lengths,
                softmax_scale=p.tau,
                window_size_left=before,
                window_size_right=after,
                **{name: part.of(gradient) for name, gradient in gradients.items()},
            )

    return recorder().record(call, target)


def _shapes(problem: Problem) -> tuple[tuple[int, ...], ...]:
    p = problem
    return p.q_shape, p.kv_shape, p.kv_shape, p.q_shape


def why_unsupported(problem: Problem) -> str | None:
    """Why FlashAttention-4 does not take the problem, or None."""
    lse_bytes = 4 * problem.heads * problem.q_len
    if has_documents(problem) and problem.batch > 1 and lse_bytes % LSE_ALIGNMENT:
        return (
            f"documents of a batch of {problem.batch}: the lse of a sequence has {lse_bytes} bytes; FlashAttention-4 "
            f"takes each where it is if these are a multiple of {LSE_ALIGNMENT}"
        )
    return unsupported(problem)


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
            takes_arch=True,
            supports=why_unsupported,
            takes=("causal", "window", "documents"),
            deterministic=False,
            numerics=NUMERICS,
        )
    )
