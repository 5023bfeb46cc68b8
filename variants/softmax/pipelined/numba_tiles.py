"""Tiles of rows: how a block copies one, and how a cluster takes one more."""

from __future__ import annotations

import functools
from collections.abc import Callable

from numba import cuda, int32, int64, uint32, uint64

from variants._hopper.numba_hopper import arrive_and_expect, load_run
from variants._mma.numba_module_variable import atomic_increment
from variants.softmax.pipelined import PIECE_BYTES


@functools.cache
def tiles_of(TILE_ROWS: int, STAGES: int) -> tuple[Callable, Callable]:
    """Device functions for tiles of so many rows, of which a block has room for so many."""

    # Rows of X from `row` on, at most a tile: this block's pieces of them -> shared memory.
    @cuda.jit(device=True, forceinline=True)
    def load_tile(to, barrier, X_share, row, rows, pieces, row_bytes):
        copied_bytes = int32(min(int32(TILE_ROWS), int32(rows - row)) * pieces * PIECE_BYTES)
        arrive_and_expect(barrier, copied_bytes)
        load_run(to, uint64(X_share + uint64(int64(row) * row_bytes)), copied_bytes, barrier)

    # Each cluster begins with STAGES tiles, and then takes one after the other of those that are left, one at a time.
    # `taken` counts these. The last cluster to find no tile left sets it to 0.
    @cuda.jit(device=True, forceinline=True)
    def take_tile(taken, tiles, clusters):
        begun = int32(STAGES * clusters)
        left = max(int32(0), int32(tiles - begun))
        return int32(begun + int32(atomic_increment(taken, uint32(left + clusters - 1))))

    return load_tile, take_tile
