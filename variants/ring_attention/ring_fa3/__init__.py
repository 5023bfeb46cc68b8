"""Ring attention with blocks on Hopper's tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants._hopper import unsupported_on_hopper
from variants._ring import register_ring
from variants.attention import fa3
from variants.ring_attention.ring import Attention, claim, cupy_merge, idea, numba_merge, plan

ATTENTION = {
    language: Attention(functools.partial(fa3.plan, kernels=kernels), fa3.claim, unsupported_on_hopper, merge)
    for language, kernels, merge in (("cupy", fa3.cupy_kernels, cupy_merge), ("numba", fa3.numba_kernels, numba_merge))
}


def register(registry: Registry) -> None:
    """Add `ring-fa3-cupy` and `ring-fa3-numba`."""
    of_block = idea("FlashAttention-3")
    register_ring(registry, "ring-attention", "ring-fa3", of_block, ATTENTION, plan, claim, fa3.NUMERICS)
