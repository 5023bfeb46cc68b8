"""Ring attention with blocks on tensor cores. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

import functools

from harness import Registry
from variants._ring import register_ring
from variants.attention import fa2_mma
from variants.ring_attention.ring import Attention, claim, cupy_merge, idea, numba_merge, plan


def _attention(language: str) -> Attention:
    kernels, _, tile_of = fa2_mma.LANGUAGES[language]
    return Attention(
        functools.partial(fa2_mma.plan, kernels=kernels, tile_of=tile_of),
        functools.partial(fa2_mma.claim, tile_of=tile_of),
        fa2_mma.supports,
        {"cupy": cupy_merge, "numba": numba_merge}[language],
    )


ATTENTION = {language: _attention(language) for language in fa2_mma.LANGUAGES}


def register(registry: Registry) -> None:
    """Add `ring-mma-cupy` and `ring-mma-numba`."""
    of_block = idea("FlashAttention-2 on tensor cores")
    register_ring(registry, "ring-attention", "ring-mma", of_block, ATTENTION, plan, claim, fa2_mma.NUMERICS)
