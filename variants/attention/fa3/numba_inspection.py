"""Warps that look through tiles of V for values that are not finite, so that consumers need not. The CUDA twin is
inspection.cuh in _hopper: same names, same order."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32

from variants._hopper import WarpgroupTile
from variants._hopper.numba_hopper import arrive, wait
from variants._hopper.numba_limits import WarpgroupLimits
from variants._mma.numba_mma import ALL_LANES, lane_index, load_shared, numba_mma, store_shared, thread_index, unknown
from variants.attention.fa3.numba_block import INSPECTORS, numba_block

PASS, INSPECT, END = range(3)
"""Marks of tiles."""
load_word, store_word, load_piece = load_shared(4), store_shared(4), load_shared(16)


@functools.cache
def numba_inspection(D: int, tile: WarpgroupTile, limits: WarpgroupLimits, dtype: str) -> SimpleNamespace:
    """Device functions: the producer marks the tiles that not all rows see all keys of, its other three warps inspect.

    Where all rows see all keys they do nothing.
    """
    HIDES_KEYS = limits.HIDES_LAST
    block, carry = numba_block(D, tile, limits), numba_mma(dtype).carry
    V_FULL, V_EMPTY, INSPECTED, MARKS, FOUND = block.V_FULL, block.V_EMPTY, block.INSPECTED, block.MARKS, block.FOUND
    stage, phase, barrier_of, tile_of = block.stage, block.phase, block.barrier_of, block.tile_of
    PIECES = block.KV_BYTES // 16

    # By the producer, of a tile that is about to be fetched.
    @cuda.jit(device=True, forceinline=True)
    def mark(barriers, step, all_seen):
        if HIDES_KEYS:
            store_word(barrier_of(barriers, MARKS, step), uint32(PASS) if all_seen else uint32(INSPECT))

    # By the producer, behind the last tile: it fills a slot of V with none.
    @cuda.jit(device=True, forceinline=True)
    def end(barriers, step):
        if HIDES_KEYS:
            wait(barrier_of(barriers, V_EMPTY, step), phase(step) ^ uint32(1))
            store_word(barrier_of(barriers, MARKS, step), uint32(END))
            arrive(barrier_of(barriers, V_FULL, step))

    @cuda.jit(device=True, forceinline=True)
    def found_by(barriers, step, warp):
        return uint32(barriers + FOUND + stage(step) * uint32(4 * INSPECTORS) + uint32(warp) * uint32(4))

    # By the warps, all of the launch.
    @cuda.jit(device=True, forceinline=True)
    def inspect(chip):
        barriers, thread, step = chip.barriers, int32(thread_index() - 32), uint32(0)
        while HIDES_KEYS:
            wait(barrier_of(barriers, V_FULL, step), phase(step))
            mark = load_word(barrier_of(barriers, MARKS, step))
            if mark == uint32(END):
                break
            if mark == uint32(INSPECT):
                V_tile, carries = tile_of(chip.V_tiles, step), uint32(0)
                for e in range(thread, unknown(PIECES), int32(32 * INSPECTORS)):
                    v = load_piece(V_tile + uint32(e) * uint32(16))
                    carries = uint32(carries | carry(v[0]) | carry(v[1]) | carry(v[2]) | carry(v[3]))
                any_found = cuda.any_sync(ALL_LANES, carries & uint32(0x80008000))
                if lane_index() == 0:
                    store_word(found_by(barriers, step, uint32(thread) // uint32(32)), uint32(any_found))
            cuda.syncwarp(ALL_LANES)
            if lane_index() == 0:
                arrive(barrier_of(barriers, INSPECTED, step))
                arrive(barrier_of(barriers, V_EMPTY, step))
            step = uint32(step + uint32(1))

    # By consumers, of a tile so marked: whether V has NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def finds(barriers, step):
        wait(barrier_of(barriers, INSPECTED, step), phase(step))
        any_found = uint32(0)
        for warp in range(INSPECTORS):
            any_found |= load_word(found_by(barriers, step, warp))
        return any_found != uint32(0)

    return SimpleNamespace(mark=mark, end=end, inspect=inspect, finds=finds)
