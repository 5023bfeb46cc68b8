"""Tree attention with tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants._ring import register_ring
from variants.attention import fa2_mma
from variants.tree_attention.tree import TreeKernels, claim, cupy_merge, idea, numba_merge, plan


def _kernels(language: str) -> TreeKernels:
    kernels, _, tile_of = fa2_mma.LANGUAGES[language]
    return TreeKernels(
        functools.partial(fa2_mma.plan, kernels=kernels, tile_of=tile_of),
        functools.partial(fa2_mma.claim, tile_of=tile_of),
        fa2_mma.supports,
        {"cupy": cupy_merge, "numba": numba_merge}[language],
    )


KERNELS = {language: _kernels(language) for language in fa2_mma.LANGUAGES}


def register(registry: Registry) -> None:
    """Add `tree-mma-cupy` and `tree-mma-numba`."""
    of_keys = idea("FlashAttention-2 on tensor cores")
    register_ring(registry, "tree-attention", "tree-mma", of_keys, KERNELS, plan, claim, fa2_mma.NUMERICS)
