"""Tiles are brought on chip element by element, and taken back. Those of `cp.async` are in numba_copies.py.

The CUDA twin is tiles.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba import cuda

from variants._features.numba_stored import conversions
from variants._tiles.numba_tiles import MASK, THREADS, leading_dimension, thread_index

AT_ONCE = 16


@functools.cache
def places(D: int) -> tuple[Callable, Callable]:
    """Device functions `place` and `place_further`: where the elements of rows of D elements lie in a tile."""
    LD = leading_dimension(D)

    # Where element e of a run of rows lies in a tile, and the one `further` elements after it.
    @cuda.jit(device=True, forceinline=True)
    def place(e):
        return e + e // D * (LD - D)

    @cuda.jit(device=True, forceinline=True)
    def place_further(e, further):
        return place(e) + place(further) if THREADS % D == 0 else place(e + further)  # whole rows: without a division

    return place, place_further


@functools.cache
def copies(D: int, dtype: str) -> tuple[Callable, Callable]:
    """Device functions `load_tile` and `store_tile` for rows of D elements, stored as `dtype`."""
    stored, widen, narrow = conversions(dtype)
    place, place_further = places(D)

    # `rows` rows of global memory -> a tile of `extent` rows; zeros below, so that nothing stale is left in the tile.
    # The rows of a head lie one after the other: the block copies them as one run, 32 consecutive elements per warp.
    # AT_ONCE loads are under way before the first is waited for; even to widen what it brings would be to wait.
    # All threads go round a loop over memory equally often: no compiler then lets a warp's lanes get out of step.
    # The length of a row is read from the array, for a loop with a constant bound would be unrolled completely.
    @cuda.jit(device=True, forceinline=True)
    def load_tile(tile, extent, source, first_row, rows):
        x = cuda.local.array(AT_ONCE, stored)
        for start in range(0, extent * source.shape[1], AT_ONCE * THREADS):
            e = (start & MASK) + thread_index()
            for c in range(AT_ONCE):
                x[c] = source.flat[first_row * D + e + c * THREADS] if e + c * THREADS < rows * D else stored(0)
            for c in range(AT_ONCE):
                if extent * D % (AT_ONCE * THREADS) == 0 or e + c * THREADS < extent * D:
                    tile.flat[place_further(e, c * THREADS)] = widen(x[c])

    # The first `rows` rows of a tile -> global memory, as one run.
    @cuda.jit(device=True, forceinline=True)
    def store_tile(target, first_row, tile, rows):
        for start in range(0, rows * D, THREADS):
            e = (start & MASK) + thread_index()
            if e < rows * D:
                target.flat[first_row * D + e] = narrow(tile.flat[place(e)])

    return load_tile, store_tile
