"""Masks under which what a row sees is no run of keys. Which tiles of keys a block of rows visits is listed ahead. Of a
tile that rows see in part a block notes which row sees which key, a bit each.

The CUDA twins are visits.cuh and list_visits.cu. A mask's own rule, of which kernels are given up to
three arguments, is in numba_block_rule.py or numba_flashmask_rule.py.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from numba import boolean, cuda, int32, uint32

from variants._tiles import THREADS_X, Tile
from variants._tiles.numba_tiles import MASK, THREADS, batch_index, block_index, numba_tiles, thread_index
from variants._tiles.visits import LISTING_WARPS, NumbaRule, words

ALL_LANES = 0xFFFFFFFF
WARPS = THREADS // 32


# Which list is that of a block of rows of a head, besides its own number: how many tiles it has, and then each one's
# entry.
@cuda.jit(device=True, forceinline=True)
def list_of(lists_per_sequence, lists_per_head, head):
    return batch_index() if lists_per_sequence else 0, head if lists_per_head else 0


def numba_visits(tile: Tile, of_rule: NumbaRule) -> SimpleNamespace:
    """Device functions for kernels of tiles of Br rows and Bc keys, 128 threads in each block."""
    KNOWN, get_to_know, sees = of_rule.KNOWN, of_rule.get_to_know, of_rule.sees
    WORDS = words(tile)  # a bit for each key of a row
    ROWS_NOTED = -(-tile.Br // 16) * 16
    SHARE = ROWS_NOTED // WARPS

    # A bit for each row and key of a tile; rows that there is room for besides are as the last one. Each warp notes its
    # share of the rows, all 32 lanes a key each.
    @cuda.jit(device=True, forceinline=True)
    def note_seen(noted, rule, first_row, rows, first_key, keys):
        warp, lane = thread_index() // 32, thread_index() % 32
        of = cuda.local.array((WORDS, KNOWN), int32)
        for w in range(WORDS):
            get_to_know(of[w], rule, first_key + min(32 * w + lane, keys - 1))
        for row in range(warp * SHARE, warp * SHARE + SHARE):
            for w in range(WORDS):
                seen = cuda.ballot_sync(ALL_LANES, sees(of[w], rule, first_row + min(row, rows - 1)))
                if lane == 0:
                    noted[row & MASK, w] = seen

    @cuda.jit(device=True, forceinline=True)
    def is_noted(noted, row, key):
        return (noted[row & MASK, (key >> 5) & MASK] >> uint32(key & 31)) & uint32(1) != 0

    return SimpleNamespace(WORDS=WORDS, ROWS_NOTED=ROWS_NOTED, list_of=list_of, note_seen=note_seen, is_noted=is_noted)


@functools.cache
def list_visits_kernel(tile: Tile, spans: bool, of_rule: NumbaRule) -> Any:
    """The kernel that lists tiles for these compile-time parameters; `spans`: see `numba_tiles`."""
    BR, BC = tile.Br, tile.Bc
    tiles = numba_tiles(1, tile, spans)  # no row of Q, K or V is touched
    first_seen, end_seen, limits_in_memory = tiles.first_seen, tiles.end_seen, tiles.limits_in_memory
    look_at_tile = of_rule.look_at_tile

    # The grid is (blocks of rows, lists of a sequence, sequences that differ).
    @cuda.jit(launch_bounds=(32 * LISTING_WARPS,))
    def list_visits(visits, q_len, kv_len, before, after, rule_0, rule_1, rule_2):
        seen = cuda.shared.array(LISTING_WARPS, boolean)
        seen_whole = cuda.shared.array(LISTING_WARPS, boolean)
        rule = (rule_0, rule_1, rule_2, cuda.blockIdx.y & MASK)
        thread = int32(cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x)  # of more than other kernels have
        warp, lane = thread // 32, thread % 32
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        before, after = limits_in_memory(before, after)
        first_tile = first_seen(first_row, q_len, kv_len, before) // BC
        end_tile = (end_seen(first_row + rows - 1, q_len, kv_len, after) + BC - 1) // BC
        listed = visits[batch_index(), cuda.blockIdx.y & MASK, block_index()]

        count = 0
        for tile in range(first_tile, end_tile, LISTING_WARPS):
            if tile + warp < end_tile:  # each warp looks at a tile
                first_key = (tile + warp) * BC
                some, each = look_at_tile(rule, tile + warp, first_row, rows, first_key, min(BC, kv_len - first_key))
                if lane == 0:
                    seen[warp & MASK] = some
                    seen_whole[warp & MASK] = each
            cuda.syncthreads()
            if warp == 0:  # a lane puts each into the list
                visited = False
                if lane < end_tile - tile:
                    visited = seen[lane & MASK]
                all_visited = cuda.ballot_sync(ALL_LANES, visited)
                before_this = cuda.popc(all_visited & ((uint32(1) << uint32(lane)) - uint32(1)))
                if visited:
                    entry = 2 * (tile + lane) + (0 if seen_whole[lane & MASK] else 1)
                    listed[(1 + count + before_this) & MASK] = entry
                count += cuda.popc(all_visited)
            cuda.syncthreads()
        if thread == 0:
            listed[0] = count

    return list_visits
