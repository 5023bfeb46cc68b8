"""Which rows see some key of a tile, for a kernel that goes from tile to tile of keys and visits blocks of Br rows.

The CUDA twin is rows_seeing.cuh.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile


@functools.cache
def rows_seeing_in(spans: bool, features: NumbaFeatures, tile: Tile) -> Any:
    """The device function `rows_seeing`, which returns the first of these rows and their end.

    `spans`: whether what rows see is read from arrays.
    """
    BR, first_of, end_of = tile.Br, features.limits.first, features.limits.end

    # In a band, key j lies on row j + q_len - kv_len; rows from `after` before that one to `before` after it see the
    # key.
    if not spans:

        @cuda.jit(device=True, forceinline=True)
        def rows_seeing(run, first_key, keys, q_len, so_far):
            own_row = first_key + q_len - run.kv_len
            return max(own_row - run.after, 0), min(own_row + keys + run.before, q_len)

        return rows_seeing

    # Under other masks the blocks that see the tile are found one by one. None of them is before the first that sees
    # the tile before this one, `so_far`.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(run, first_key, keys, q_len, so_far):
        first = so_far
        while first < q_len and end_of(run, min(first + BR, q_len) - 1) <= first_key:
            first += BR
        end = first
        while end < q_len and first_of(run, end) < first_key + keys:
            end += BR
        return first, end

    return rows_seeing
