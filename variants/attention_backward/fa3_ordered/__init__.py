"""FlashAttention-3's backward pass with a fixed order of sums: no two runs differ in a bit.

The kernels are those of `bwd-fa3` (../fa3/kernel.cu), with another type of `Order`. For 64 rows of each head, memory
has the number of the tile of keys whose turn it is. The block with tile j adds its part of dQ_i once the block with
tile j - 1 has, if that one has a part, and then sets the number to j + 1. dK and dV are sums within a block, over the
query heads that share the keys and their rows, in an order that never changed.

A warp of its own waits, adds dQ_i from shared memory, and passes the turn on, so the products of the next tile of rows
go on meanwhile. Blocks wait only for blocks with smaller indices, which have started. The first tiles of keys start
first, as in `bwd-fa3`, and each block visits the last rows first (Qiang et al. 2026, arXiv 2601.21824, "descending"): a
causal mask shows these to all blocks, so that the block with tile j can follow the one with tile j - 1 at once.

Bytes besides those of `bwd-fa3`, per query head, where T is the number of tiles of 64 rows, and of T_r row blocks J_i
the tiles of keys with one that row block i sees:

    prepare     turns written                                                       32 T
    of keys     sum_i (J_i - 1) turns read, sum_i J_i turns written                 32 sum_i (J_i - 1), 32 sum_i J_i

since 4 bytes take a sector. A block that waits reads its turn again and again, which is not counted. Where the mask is
no band, a block reads which rows see two keys of the tile before, 64 bytes.
"""

from __future__ import annotations

from functools import partial

from harness import Registry
from variants._features import SPAN_FEATURES
from variants._mma_backward import NUMERICS
from variants._tiles.registration import register_languages
from variants.attention_backward import fa3

LANGUAGES = {
    "cupy": partial(fa3.cupy_kernels, in_order=True),
    "numba": partial(fa3.numba_kernels, in_order=True),
}


def register(registry: Registry) -> None:
    """Add `bwd-fa3-ordered-cupy` and `bwd-fa3-ordered-numba`."""
    register_languages(
        registry,
        "bwd-fa3-ordered",
        "FlashAttention-3 backward whose tiles of keys add to dQ one after the other: always the same bits",
        LANGUAGES,
        partial(fa3.plan, in_order=True),
        partial(fa3.claim, in_order=True),
        fa3.tiles,
        NUMERICS,
        supports=fa3.unsupported,
        tile_class=fa3.BackwardWarpgroupTile,
        operation="attention-backward",
        takes=SPAN_FEATURES,
    )
