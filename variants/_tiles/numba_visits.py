"""Lists which tiles of keys each block of rows visits under a mask that is no run of keys.

The CUDA twin is list_visits.cu. A mask's rule is in numba_block_rule.py or numba_flashmask_rule.py.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import boolean, cuda, int32, uint32

from variants._features.numba_limits import numba_limits
from variants._features.numba_tile_order import NumbaRule
from variants._tiles import THREADS_X, Tile
from variants._tiles.numba_tiles import MASK, batch_index, block_index
from variants._tiles.visits import LISTING_WARPS

ALL_LANES = 0xFFFFFFFF


@functools.cache
def list_visits_kernel(tile: Tile, spans: bool, of_rule: NumbaRule) -> Any:
    """The kernel that lists tiles for these compile-time parameters; `spans`: see `numba_limits`."""
    BR, BC = tile.Br, tile.Bc
    runs = numba_limits(spans)
    of_sequence, first_seen, end_seen = runs.of_sequence, runs.first, runs.end
    look_at_tile = of_rule.look_at_tile

    # The grid is (blocks of rows, lists of a sequence, sequences that differ).
    @cuda.jit(launch_bounds=(32 * LISTING_WARPS,))
    def list_visits(visits, q_len, kv_len, limits, rule):
        seen = cuda.shared.array(LISTING_WARPS, boolean)
        seen_whole = cuda.shared.array(LISTING_WARPS, boolean)
        head = cuda.blockIdx.y & MASK
        thread = int32(cuda.threadIdx.y * THREADS_X + cuda.threadIdx.x)  # of more than other kernels have
        warp, lane = thread // 32, thread % 32
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        run = of_sequence(limits, batch_index(), q_len, kv_len)
        first_key, end_key = first_seen(run, first_row), end_seen(run, first_row + rows - 1)
        first_tile = first_key // BC
        end_tile = (end_key + BC - 1) // BC if first_key < end_key else 0
        listed = visits[batch_index(), head, block_index()]

        count = 0
        for tile in range(first_tile, end_tile, LISTING_WARPS):
            if tile + warp < end_tile:  # each warp looks at a tile
                key = (tile + warp) * BC
                some, each = look_at_tile(rule, head, tile + warp, first_row, rows, key, min(BC, kv_len - key))
                if lane == 0:
                    seen[warp & MASK] = some
                    seen_whole[warp & MASK] = each
            cuda.syncthreads()
            if warp == 0:  # each lane puts one tile into the list
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
