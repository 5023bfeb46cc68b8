"""A sweep of a block of rows over the keys: the scores of one tile of keys after the other, for algorithms that compute
them several times. The CUDA twin is sweep.cuh.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import numba_tiles


@functools.cache
def numba_sweep(head_dim: int, tile: Tile, dtype: str, features: NumbaFeatures) -> Any:
    """The device function `scores_of_tile`. A sweep calls it for all K_j with a key that some row sees."""
    BC = tile.Bc
    load_tile, _ = copies(head_dim, dtype)
    tiles = numba_tiles(head_dim, tile, features)
    multiply_Q_Kt, scale_and_mask, seen_in_tile = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.seen_in_tile

    # S = score(tau Q_i K_j^T); returns which of its keys the rows see. K_j is in `K_tile`;
    # `bounds`: see `seen_in_tile`.
    @cuda.jit(device=True, forceinline=True)
    def scores_of_tile(S, bounds, Q_tile, K_tile, K_head, first_row, first_key, keys, tau, score, seen):
        # Load K_j, once no thread reads the tile before it any more.
        cuda.syncthreads()
        load_tile(K_tile, BC, K_head, first_key, keys)
        cuda.syncthreads()
        multiply_Q_Kt(S, Q_tile, K_tile)
        seen_here = seen_in_tile(bounds, seen, (), first_row, first_key, keys)
        scale_and_mask(S, tau, score, seen_here, first_row, first_key)
        return seen_here

    return scores_of_tile
