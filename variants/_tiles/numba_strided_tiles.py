"""Tiles whose rows the strides of their array place. The CUDA twin is strided_tiles.cuh."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint32, uint64

from variants._features.numba_stored import conversions
from variants._mma.numba_mma import copy_async, global_address, shared_address
from variants._tiles.numba_copies import FLOAT_BYTES, copy_tile_of
from variants._tiles.numba_tile_copies import AT_ONCE, copies, places
from variants._tiles.numba_tiles import MASK, THREADS, step_over, thread_index


@functools.cache
def layout_copies(D: int, dtype: str, aligned: int | None) -> tuple[Any, Any]:
    """Device functions `load_tile` and `store_tile` for rows of D elements, stored as `dtype`.

    `aligned`: the number of elements at whose multiples rows begin; None if the rows of a head are one run (`copies`).
    Lanes have the same elements of a tile either way.
    """
    if aligned is None:
        return copies(D, dtype)
    stored, widen, narrow = conversions(dtype)
    place, place_further = places(D)

    @cuda.jit(device=True, forceinline=True)
    def load_tile(tile, extent, source, first_row, rows):
        x = cuda.local.array(AT_ONCE, stored)
        for start in range(0, extent * source.shape[1], AT_ONCE * THREADS):
            e = (start & MASK) + thread_index()
            for c in range(AT_ONCE):
                own = uint32(e + c * THREADS)
                x[c] = source[first_row + own // D, own % D] if e + c * THREADS < rows * D else stored(0)
            for c in range(AT_ONCE):
                if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:
                    tile.flat[place_further(e, c * THREADS)] = widen(x[c])

    @cuda.jit(device=True, forceinline=True)
    def store_tile(target, first_row, tile, rows):
        for start in range(0, rows * D, THREADS):
            e = uint32((start & MASK) + thread_index())
            if e < rows * D:
                target[first_row + e // D, e % D] = narrow(tile.flat[place(e)])

    return load_tile, store_tile


@functools.cache
def layout_copy_tile(D: int, extent: int, dtype: str, aligned: int | None) -> Any:
    """Device function `copy_tile` for a tile of `extent` rows of D elements; arguments as of `layout_copies`."""
    if aligned is None:
        return copy_tile_of(D, extent, dtype)
    place, _ = places(D)
    load_tile, _ = layout_copies(D, dtype, aligned)
    UNIT = min(step_over(D), aligned)
    UNITS_AT_ONCE = THREADS * UNIT
    COPIES = -(-extent * D // UNITS_AT_ONCE)

    # What is widened passes through registers, and is there at once.
    if dtype != "float32":

        @cuda.jit(device=True, forceinline=True)
        def copy_tile(tile, source, first_row, rows):
            load_tile(tile, extent, source, first_row, rows)

        return copy_tile
    copy = copy_async(UNIT * FLOAT_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, source, first_row, rows):
        own, target = uint32(thread_index() * UNIT), shared_address(tile)
        first = uint64(global_address(source) + uint64(first_row * source.strides[0]))
        for c in range(COPIES):
            e = uint32(own + c * UNITS_AT_ONCE)
            if extent * D % UNITS_AT_ONCE == 0 or e < extent * D:
                offset = uint64(uint64(e // D) * source.strides[0] + uint64(e % D * FLOAT_BYTES))
                copy(uint32(target + place(e) * FLOAT_BYTES), uint64(first + offset), int32(e) < rows * D)

    return copy_tile
