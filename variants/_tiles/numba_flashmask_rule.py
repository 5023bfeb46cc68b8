"""FlashMask's spans of rows that do not see a key (Wang et al. 2024, arXiv 2410.01359), as the rule of
listed tiles. The CUDA twins are flashmask.cuh and tile_extremes.cu.

The rule is (hidden_rows, extremes): key j's span p starts at row hidden_rows[2 p, j] and ends before
hidden_rows[2 p + 1, j], and `extremes` has, of each tile of keys and each span, the least and the largest start, and
the least and the largest end.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32

from variants._features.numba_tile_order import NumbaRule
from variants._tiles import Tile
from variants._tiles.numba_tiles import MASK, block_index, thread_index

ALL_LANES = 0xFFFFFFFF
LEAST, LARGEST = -(2**31), 2**31 - 1


@functools.cache
def numba_flashmask_rule(spans_per_key: int) -> NumbaRule:
    """Device functions for masks with so many spans for each key."""
    SPANS = spans_per_key
    EXTREMES = 4 * SPANS  # of a tile

    # Whether rows may see any of the tile's keys, and whether they see them all, as far as extremes tell (the paper's
    # algorithm 1): the same in all lanes of a warp.
    @cuda.jit(device=True, forceinline=True)
    def look_at_tile(rule, head, tile, first_row, rows, first_key, keys):
        lane, last_row = thread_index() % 32, first_row + rows - 1
        own = int32(0)
        if lane < EXTREMES:
            own = rule[1][tile & MASK, lane & MASK]
        some, each = True, True
        for p in range(SPANS):
            least_start = cuda.shfl_sync(ALL_LANES, own, 4 * p)
            largest_start = cuda.shfl_sync(ALL_LANES, own, 4 * p + 1)
            least_end = cuda.shfl_sync(ALL_LANES, own, 4 * p + 2)
            largest_end = cuda.shfl_sync(ALL_LANES, own, 4 * p + 3)
            some = some and not (largest_start <= first_row and last_row < least_end)
            each = each and (last_row < least_start or largest_end <= first_row)
        return some, each

    # What a lane knows of a key: the start and the end of each of its spans.
    KNOWN = 2 * SPANS

    @cuda.jit(device=True, forceinline=True)
    def get_to_know(of, rule, head, key):
        for line in range(KNOWN):
            of[line] = rule[0][line, key & MASK]

    @cuda.jit(device=True, forceinline=True)
    def sees(of, rule, head, row):
        hidden = False
        for p in range(SPANS):
            hidden = hidden or (of[2 * p] <= row and row < of[2 * p + 1])
        return not hidden

    return NumbaRule(look_at_tile, KNOWN, get_to_know, sees)


@functools.cache
def tile_extremes_kernel(tile: Tile, spans_per_key: int) -> Any:
    """The kernel that brings extremes together, a warp for each tile."""
    BC, LINES = tile.Bc, 2 * spans_per_key

    @cuda.jit(launch_bounds=(32,))
    def tile_extremes(extremes, hidden_rows, kv_len):
        lane, first_key = cuda.threadIdx.x, block_index() * BC
        end_key = min(first_key + BC, kv_len)
        own = int32(0)
        for line in range(LINES):
            least, largest = int32(LARGEST), int32(LEAST)
            # As often in all lanes: the compiler unrolls this loop, and lanes that leave it earlier would read alone.
            for first in range(first_key, end_key, 32):
                row = hidden_rows[line, min(first + lane, end_key - 1) & MASK]
                least, largest = min(least, row), max(largest, row)
            distance = 16
            while distance > 0:
                least = min(least, cuda.shfl_xor_sync(ALL_LANES, least, distance))
                largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, distance))
                distance //= 2
            if lane == 2 * line:
                own = least
            if lane == 2 * line + 1:
                own = largest
        if lane < 2 * LINES:
            extremes[block_index(), lane] = own

    return tile_extremes
