"""A mask of blocks of rows and keys that are on or off, as the rule of listed tiles. The CUDA twin is block_mask.cuh.

The rule is (blocks, block_rows, block_keys): blocks are block_rows x block_keys pairs of a row and a key, counted from
row 0 and key 0, of each head, or of head 0 where all heads have the same.
"""

from __future__ import annotations

from numba import cuda, int32

from variants._features.numba_tile_order import NumbaRule
from variants._tiles.numba_tiles import MASK, thread_index

ALL_LANES = 0xFFFFFFFF


# Whether rows see any of the tile's keys, and whether they see them all: the same in all lanes of a warp, which takes a
# row of blocks after the other.
@cuda.jit(device=True, forceinline=True)
def look_at_tile(rule, head, tile, first_row, rows, first_key, keys):
    blocks, block_rows, block_keys = rule
    first_i, last_i = first_row // block_rows, (first_row + rows - 1) // block_rows
    first_j, last_j = first_key // block_keys, (first_key + keys - 1) // block_keys
    some, each = False, True
    for i in range(first_i, last_i + 1):
        for j in range(first_j + thread_index() % 32, last_j + 1, 32):
            on = blocks[head, i & MASK, j & MASK] != 0
            some = some or on
            each = each and on
    return cuda.any_sync(ALL_LANES, some), cuda.all_sync(ALL_LANES, each)


# What a lane knows of a key: its block, the row of blocks that it has looked at last, and whether it is on there.
KNOWN = 3


@cuda.jit(device=True, forceinline=True)
def get_to_know(of, rule, head, key):
    _, _, block_keys = rule
    of[0], of[1], of[2] = int32(key // block_keys), int32(-1), int32(0)


# All lanes ask for the same row.
@cuda.jit(device=True, forceinline=True)
def sees(of, rule, head, row):
    blocks, block_rows, _ = rule
    i = row // block_rows
    if i != of[1]:
        of[1] = i
        of[2] = int32(blocks[head, i & MASK, of[0] & MASK] != 0)
    return of[2] != 0


RULE = NumbaRule(look_at_tile, KNOWN, get_to_know, sees)
