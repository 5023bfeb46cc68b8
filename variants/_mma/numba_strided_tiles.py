"""Tiles whose rows the strides of their array place. The CUDA twin is strided_tiles.cuh."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32, uint64

from variants._mma.numba_mma import global_address, load_shared, store_global, thread_index
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._tiles.numba_grids import entry_of_head, head_of_entry


@functools.cache
def layout_tiles(head_dim: int, warps: int, dtype: str, aligned: int | None, varlen: bool = False) -> SimpleNamespace:
    """As `numba_tiles`, for rows that begin at multiples of `aligned` elements; None if those of a head are one run.

    Besides, `rows_of` and `rows_at` give the address of a row of a head, that of the block or any, and `stride_of` the
    bytes from a row to the next. Rows of copies and stores are that far apart. `varlen`: all sequences are in one batch
    entry.
    """
    if aligned is None:
        return run_tiles(head_dim, warps, dtype)
    return strided_tiles(head_dim, warps, dtype, aligned, varlen)


def run_tiles(head_dim: int, warps: int, dtype: str) -> SimpleNamespace:
    """The rows of a head are one run."""
    tiles = numba_tiles(head_dim, warps, dtype)
    copy_run, store_run = tiles.copy_tile, tiles.store_tile

    # `first` is the place of the row among the bytes of all heads.
    @cuda.jit(device=True, forceinline=True)
    def rows_of(array, first, heads, group, row):
        return global_address(array) + first

    @cuda.jit(device=True, forceinline=True)
    def rows_at(array, first, entry, head, row):
        return global_address(array) + first

    @cuda.jit(device=True, forceinline=True)
    def stride_of(array):
        return uint64(head_dim * STORED_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, extent, source, stride, rows):
        copy_run(tile, extent, source, rows)

    @cuda.jit(device=True, forceinline=True)
    def store_tile(target, stride, tile, rows):
        store_run(target, tile, rows)

    places = {"rows_of": rows_of, "rows_at": rows_at, "stride_of": stride_of}
    return SimpleNamespace(**vars(tiles) | places | {"copy_tile": copy_tile, "store_tile": store_tile})


def strided_tiles(head_dim: int, warps: int, dtype: str, aligned: int, varlen: bool) -> SimpleNamespace:
    """Rows lie where the strides of their array say. Lanes have the same elements of a tile."""
    tiles = numba_tiles(head_dim, warps, dtype, aligned)
    place, copy_unit = tiles.place, tiles.copy_unit
    THREADS, UNITS, UNIT_BYTES = tiles.THREADS, tiles.UNITS, tiles.UNIT * STORED_BYTES
    load_unit, store_unit = load_shared(UNIT_BYTES), store_global(UNIT_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def rows_at(array, first, entry, head, row):
        before = uint64(0 if varlen else entry) * uint64(array.strides[0]) + uint64(head) * uint64(array.strides[1])
        return global_address(array) + before + uint64(row) * uint64(array.strides[2])

    @cuda.jit(device=True, forceinline=True)
    def rows_of(array, first, heads, group, row):
        return rows_at(array, first, entry_of_head(heads), head_of_entry(heads) // uint32(group), row)

    @cuda.jit(device=True, forceinline=True)
    def stride_of(array):
        return uint64(array.strides[2])

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, extent, source, stride, rows):
        for further in range(0, extent * UNITS, THREADS):
            e = uint32(thread_index() + further)
            if extent * UNITS % THREADS == 0 or e < uint32(extent * UNITS):
                row, column = e // uint32(UNITS), e % uint32(UNITS)
                offset = uint64(row) * stride + uint64(column * uint32(UNIT_BYTES))
                copy_unit(tile + place(e), source + offset, int32(row) < rows)

    @cuda.jit(device=True, forceinline=True)
    def store_tile(target, stride, tile, rows):
        units = int32(rows * UNITS)
        for start in range(int32(0), units, int32(cuda.blockDim.x)):
            e = int32(start + thread_index())
            if e < units:
                offset = uint64(uint32(e) // uint32(UNITS)) * stride
                column = uint64(uint32(e) % uint32(UNITS) * uint32(UNIT_BYTES))
                store_unit(target + offset + column, load_unit(tile + place(e)))

    places = {"rows_of": rows_of, "rows_at": rows_at, "stride_of": stride_of}
    return SimpleNamespace(**vars(tiles) | places | {"copy_tile": copy_tile, "store_tile": store_tile})
