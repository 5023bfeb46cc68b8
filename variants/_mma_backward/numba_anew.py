"""Copies of tiles of rows in a loop whose registers are for sums: what depends on the thread's index is computed anew.

The CUDA twins are anew.cuh and strided_anew.cuh.
"""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, uint32, uint64

from variants._mma.numba_mma import keep_loop, thread_index
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward import BackwardMmaTile


def copies_anew(head_dim: int, tile: BackwardMmaTile, dtype: str, aligned: int | None) -> Any:
    """`copy_tile_anew`, of the rows of a tile; `aligned` as of `layout_tiles`."""
    D, BR = head_dim, tile.Br
    tiles = numba_tiles(D, tile.warps, dtype, aligned)
    THREADS, ROW_BYTES, UNIT, UNITS = tiles.THREADS, tiles.ROW_BYTES, tiles.UNIT, tiles.UNITS
    UNIT_BYTES = STORED_BYTES * UNIT
    place, copy_unit = tiles.place, tiles.copy_unit

    # Steps are whole lines of swizzled rows: constants.
    WHOLE_LINES = UNIT > 1 and BR * UNITS % THREADS == 0 and THREADS % (8 * UNITS) == 0

    @cuda.jit(device=True, forceinline=True)
    def copy_step(step, tile, source):
        copy_unit(
            uint32(tile + step * (THREADS // UNITS) * ROW_BYTES), source + uint64(step * THREADS * UNIT_BYTES), True
        )

    copy_steps = unrolled(BR * UNITS // THREADS if WHOLE_LINES else 1, copy_step)

    # copy_tile, of BR rows, by the thread read anew.
    @cuda.jit(device=True, forceinline=True)
    def copy_run_anew(tile, source, stride, rows):
        thread = thread_index()
        if WHOLE_LINES and rows >= BR:
            copy_steps(uint32(tile + place(thread)), source + uint64(uint32(thread)) * uint64(UNIT_BYTES))
        else:
            e = int32(thread)
            while e < BR * UNITS:
                keep_loop()
                valid = e < int32(rows * UNITS)
                at = uint64(uint32(e)) * uint64(UNIT_BYTES)
                copy_unit(uint32(tile + place(e)), source + at if valid else source, valid)
                e = int32(e + THREADS)

    # The same, of rows so many bytes apart.
    @cuda.jit(device=True, forceinline=True)
    def copy_rows_anew(tile, source, stride, rows):
        e = int32(thread_index())
        while e < BR * UNITS:
            keep_loop()
            row, column = uint32(e) // uint32(UNITS), uint32(e) % uint32(UNITS)
            valid = int32(row) < rows
            offset = uint64(row if valid else uint32(0)) * stride + uint64(column * uint32(UNIT_BYTES))
            copy_unit(uint32(tile + place(e)), source + offset, valid)
            e = int32(e + THREADS)

    return copy_run_anew if aligned is None else copy_rows_anew
