"""Tiles of rows in shared memory, in 16 bits: brought there by asynchronous copies, taken back as they lie.

The CUDA twin is tiles.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32, uint64

from variants._mma import elements_per_copy
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    copy_async,
    lane_index,
    load_global,
    load_shared,
    numba_mma,
    store_global,
    store_shared,
    swizzled,
    thread_index,
)

STORED_BYTES = 2
NOTHING = np.uint16(0)


@functools.cache
def numba_tiles(head_dim: int, warps: int, dtype: str, aligned: int | None = None) -> SimpleNamespace:
    """Device functions and constants for tiles of rows of `head_dim` elements, which `warps` warps copy.

    `aligned`: the elements at whose multiples rows begin, if they may be fewer than a thread copies at once.
    """
    D = head_dim
    THREADS = 32 * warps
    ROW_BYTES = -(-D // 64) * 128  # of a row in shared memory: whole lines

    # What one thread copies at once: as much as rows of D elements keep aligned.
    UNIT = elements_per_copy(D) if aligned is None else min(elements_per_copy(D), aligned)
    UNIT_BYTES = UNIT * STORED_BYTES
    UNITS = D // UNIT  # per row

    not_finite = numba_mma(dtype).not_finite
    load_unit, store_unit = load_shared(UNIT_BYTES), store_global(UNIT_BYTES)

    if UNIT > 1:
        copy_unit = copy_async(UNIT_BYTES)
    else:
        load_element, store_element = load_global(STORED_BYTES), store_shared(STORED_BYTES)

        @cuda.jit(device=True, forceinline=True)
        def copy_unit(to, source, valid):
            store_element(to, load_element(source) if valid else NOTHING)

    # Where unit e of a run of rows lies in a tile.
    @cuda.jit(device=True, forceinline=True)
    def place(e):
        row, byte = uint32(e) // uint32(UNITS), uint32(e) % uint32(UNITS) * uint32(UNIT_BYTES)
        return uint32(swizzled(ROW_BYTES, row, byte // uint32(CHUNK_BYTES)) + byte % uint32(CHUNK_BYTES))

    # `rows` rows of global memory -> a tile of `extent` rows, zeros below. The rows of a head lie one after the other:
    # the block copies them as one run, 32 consecutive units per warp.
    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, extent, source, rows):
        t = thread_index()
        mine = source + uint64(t) * uint64(UNIT_BYTES)
        left = int32(rows * UNITS - t)
        for further in range(0, extent * UNITS, THREADS):
            if extent * UNITS % THREADS == 0 or t < extent * UNITS - further:
                # Whole lines of swizzled rows further: a constant.
                whole_lines = THREADS % (8 * UNITS) == 0
                at = uint32(place(t) + further // UNITS * ROW_BYTES) if whole_lines else place(t + further)
                copy_unit(tile + at, mine + uint64(further * UNIT_BYTES), further < left)

    if UNIT_BYTES > 4:

        @cuda.jit(device=True, forceinline=True)
        def unit_not_finite(unit):
            found = False
            for both in unit:
                found |= not_finite(both)
            return found

    else:

        @cuda.jit(device=True, forceinline=True)
        def unit_not_finite(unit):
            return not_finite(uint32(unit))

    # Whether what this thread itself copied into a tile of `extent` rows holds NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def copied_not_finite(tile, extent):
        found = False
        for e in range(thread_index(), int32(extent * UNITS), int32(cuda.blockDim.x)):
            found |= unit_not_finite(load_unit(tile + place(e)))
        return int32(found)

    # The first `rows` rows of a tile -> global memory, as one run. All threads go round equally often: no compiler then
    # lets a warp's lanes get out of step.
    @cuda.jit(device=True, forceinline=True)
    def store_tile(target, tile, rows):
        units = int32(rows * UNITS)
        for start in range(int32(0), units, int32(cuda.blockDim.x)):
            e = int32(start + thread_index())
            if e < units:
                store_unit(target + uint64(e) * uint64(UNIT_BYTES), load_unit(tile + place(e)))

    # This lane's part in loads of fragments, counted from a tile's first row: of A, and of V, which is B transposed;
    # and of K, whose rows are the columns of B.
    @cuda.jit(device=True, forceinline=True)
    def lane_in_A():
        lane = lane_index()
        return swizzled(ROW_BYTES, lane & uint32(15), lane >> uint32(4))

    @cuda.jit(device=True, forceinline=True)
    def lane_in_K():
        lane = lane_index()
        return swizzled(ROW_BYTES, uint32((lane >> 4) * 8 + (lane & 7)), uint32((lane >> 3) & 1))

    return SimpleNamespace(
        THREADS=THREADS,
        ROW_BYTES=ROW_BYTES,
        UNIT=UNIT,
        UNITS=UNITS,
        place=place,
        copy_unit=copy_unit,
        copy_tile=copy_tile,
        copied_not_finite=copied_not_finite,
        store_tile=store_tile,
        lane_in_A=lane_in_A,
        lane_in_K=lane_in_K,
    )
