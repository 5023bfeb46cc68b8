"""Ring attention with blocks on tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants.attention import fa2_mma
from variants.ring_attention.ring import Attention, variant

ATTENTION = Attention(
    "FlashAttention-2 on tensor cores",
    functools.partial(fa2_mma.plan, kernels=fa2_mma.cupy_kernels),
    fa2_mma.claim,
    fa2_mma.supports,
)


def register(registry: Registry) -> None:
    """Add `ring-mma-cupy`."""
    registry.add(variant("ring-mma", ATTENTION, fa2_mma.NUMERICS))
