"""Algorithm 1, lines 4 to 10: the producer. The CUDA twin is `produce` in _hopper/pipeline.cuh. Registers are few here:
`setmaxnreg` has given the others to consumers."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint32

from variants._hopper import WARPGROUP_ROWS, WarpgroupTile
from variants._hopper.numba_hopper import arrive, arrive_and_expect, numba_hopper, wait
from variants._hopper.numba_layout import place_in
from variants._hopper.numba_limits import WarpgroupLimits
from variants._mma.numba_mma import store_shared, unknown
from variants._mma.numba_module_variable import atomic_increment, module_variable
from variants.attention.fa3.numba_block import numba_block
from variants.attention.fa3.numba_inspection import numba_inspection
from variants.attention.fa3.numba_row_tiles import Reached, numba_row_tiles, of_sequence

store_word = store_shared(4)

# Number of tiles of rows that blocks have taken after their first ones. Each launch increments it once for each tile of
# rows, so that it wraps to 0 for the next launch.
taken = module_variable("taken")


@functools.cache
def numba_producer(
    D: int, tile: WarpgroupTile, limits: WarpgroupLimits, dtype: str, is_dense: bool, varlen: bool
) -> Any:
    """The device function `produce`; see `numba_block`, `numba_row_tiles` and, for `is_dense`, `place_in`."""
    BR, BC, CONSUMERS = tile.Br, tile.Bc, tile.consumers
    hopper, place = numba_hopper(D), place_in(is_dense)
    load_tile, load_rows, ROW_BYTES = hopper.load_tile, hopper.load_rows, hopper.ROW_BYTES
    block = numba_block(D, tile, limits)
    Q_BYTES, KV_BYTES = block.Q_BYTES, block.KV_BYTES
    row_tiles = numba_row_tiles(tile, limits, varlen)
    row_tile, whole_tiles, index_of = row_tiles.row_tile, row_tiles.whole_tiles, row_tiles.index_of
    row_in_Q, key_in_K = row_tiles.row, row_tiles.key
    inspection = numba_inspection(D, tile, limits, dtype)
    mark, end_inspection = inspection.mark, inspection.end
    phase, barrier_of, tile_of = block.phase, block.barrier_of, block.tile_of
    K_FULL, K_EMPTY, V_FULL, V_EMPTY = block.K_FULL, block.K_EMPTY, block.V_FULL, block.V_EMPTY
    Q_FULL, Q_EMPTY = block.Q_FULL, block.Q_EMPTY
    WORK_FULL, WORK_EMPTY, INDEX = block.WORK_FULL, block.WORK_EMPTY, block.INDEX

    # Each consumer's rows.
    @cuda.jit(device=True, forceinline=True)
    def load_Q(Q_tile, barriers, Q, first_row, pack, head_shift, parity):
        for w in range(int32(0), unknown(CONSUMERS), int32(1)):
            full = uint32(barriers + Q_FULL + uint32(w) * uint32(8))
            wait(uint32(barriers + Q_EMPTY + uint32(w) * uint32(8)), uint32(parity ^ uint32(1)))
            arrive_and_expect(full, Q_BYTES // CONSUMERS)
            rows = uint32(Q_tile + uint32(w) * uint32(WARPGROUP_ROWS * ROW_BYTES))
            load_rows(rows, BR, Q, int32(first_row + int32(w << head_shift)), pack, full)

    @cuda.jit(device=True, forceinline=True)
    def await_empty(barriers, empty, step):
        wait(barrier_of(barriers, empty, step), phase(step) ^ uint32(1))

    @cuda.jit(device=True, forceinline=True)
    def load_keys(tiles, barriers, full, tensor_map, first_key, kv_head, step):
        arrive_and_expect(barrier_of(barriers, full, step), KV_BYTES)
        load_tile(tile_of(tiles, step), BC, tensor_map, first_key, kv_head, barrier_of(barriers, full, step))

    @cuda.jit(device=True, forceinline=True)
    def kv_head_of(rows, p):
        sharing = uint32(p.packs.per_kv_head)
        if is_dense:
            return place(int32(uint32(unknown(rows.pack)) // sharing), None, None)
        return place(None, rows.own.batch, int32(uint32(rows.head) // sharing))

    @cuda.jit(device=True, forceinline=True)
    def after(all_tiles):
        return int32(cuda.gridDim.x + int32(atomic_increment(taken(), uint32(all_tiles - 1))))

    @cuda.jit(device=True, forceinline=True)
    def first_key_of(rows, j):
        return key_in_K(rows.own, int32(j * BC))

    # By one lane: tiles are fetched in the order in which consumers ask for them.
    @cuda.jit(device=True, forceinline=True)
    def produce(chip, Q, K, V, p):
        Q_tile, K_tiles, V_tiles, barriers = chip
        all_tiles = int32(p.packs.row_tiles * p.packs.count)
        taken_in_all = p.sequences[5] if varlen else all_tiles
        index, reached = index_of(int32(cuda.blockIdx.x), Reached(int32(0), int32(0), int32(0)), p)
        parity, step = uint32(0), uint32(0)
        while True:
            wait(uint32(barriers + WORK_EMPTY), uint32(parity ^ uint32(1)))
            store_word(uint32(barriers + INDEX), uint32(index))
            arrive(uint32(barriers + WORK_FULL))
            if index >= all_tiles:
                end_inspection(barriers, step)
                break
            rows = row_tile(index, p)
            whole_from, whole_to = whole_tiles(rows, of_sequence(p, rows.own))
            j, is_first = int32(rows.end - 1), True
            while True:
                sees_keys = j >= rows.first  # rows that see no key have a Q_i nevertheless
                if sees_keys:
                    await_empty(barriers, K_EMPTY, step)
                    load_keys(K_tiles, barriers, K_FULL, K, first_key_of(rows, j), kv_head_of(rows, p), step)
                if is_first:
                    is_first = False
                    pack = place(rows.pack, rows.own.batch, rows.head)
                    load_Q(Q_tile, barriers, Q, row_in_Q(rows.own, rows.first_row), pack, p.packs.head_shift, parity)
                if not sees_keys:
                    break
                await_empty(barriers, V_EMPTY, step)
                mark(barriers, step, whole_from <= j < whole_to)
                load_keys(V_tiles, barriers, V_FULL, V, first_key_of(rows, j), kv_head_of(rows, p), step)
                # A loop whose length can be told would be unrolled, for which there are no registers.
                j, step = unknown(int32(j - 1)), uint32(step + uint32(1))
                if j < rows.first:
                    break
            index, reached = index_of(after(taken_in_all), reached, p)
            parity = uint32(parity ^ uint32(1))

    return produce
