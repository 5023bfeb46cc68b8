"""Gradients of ring attention on tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants._mma import unsupported_on_tensor_cores
from variants._mma_backward import NUMERICS
from variants.attention_backward import mma
from variants.ring_attention_backward.ring_bwd import Gradients, cupy_sums, numba_sums, register_gradients

KERNELS = {
    language: Gradients(
        functools.partial(mma.plan, kernels=kernels),
        mma.claims,
        unsupported_on_tensor_cores,
        {"cupy": cupy_sums, "numba": numba_sums}[language],
    )
    for language, kernels in mma.LANGUAGES.items()
}


def register(registry: Registry) -> None:
    """Add `ring-bwd-mma-cupy` and `ring-bwd-mma-numba`."""
    register_gradients(registry, "ring-bwd-mma", "FlashAttention-2's on tensor cores", KERNELS, NUMERICS)
