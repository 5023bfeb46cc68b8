"""Gradients of ring attention on Hopper's tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants._mma_backward import NUMERICS
from variants.attention_backward import fa3
from variants.ring_attention_backward.ring_bwd import Gradients, cupy_sums, numba_sums, register_gradients

KERNELS = {
    language: Gradients(functools.partial(fa3.plan, kernels=kernels), fa3.claims, fa3.unsupported, sums)
    for language, kernels, sums in (("cupy", fa3.cupy_kernels, cupy_sums), ("numba", fa3.numba_kernels, numba_sums))
}


def register(registry: Registry) -> None:
    """Add `ring-bwd-fa3-cupy` and `ring-bwd-fa3-numba`."""
    register_gradients(registry, "ring-bwd-fa3", "FlashAttention-3's", KERNELS, NUMERICS)
