"""Pools whose pages, heads and rows have strides of their own, and tiles of their rows.

The CUDA twins are strided_pools.cuh and strided_key_tiles.cuh: there, too, a pool is an argument with its strides.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from numba import cuda, int32, uint32, uint64

from variants._mma.numba_mma import CHUNK_BYTES, copy_async, load_global, store_shared, swizzled
from variants._mma.splits import BC
from variants._paged.numba_e4m3_tiles import numba_pools

LINE_BYTES = 128
STORED_BYTES, E4M3_BYTES = 2, 1


def strided_pools(head_dim: int, slots: int, dtype: str, kv_dtype: str | None, aligned: int | None) -> SimpleNamespace:
    """As `numba_pools`, whose `strides` are those of (page, head, row) of a pool in bytes; empty if it is dense.

    `aligned`: the elements at whose multiples rows begin; None if pools are dense. Otherwise the source of copies is
    the address of a row, and the bytes from a row to the next.
    """
    pools = numba_pools(head_dim, slots, dtype, kv_dtype)
    if aligned is None:

        @cuda.jit(device=True, forceinline=True)
        def no_strides(pool):
            return ()

        return SimpleNamespace(**vars(pools), strides=no_strides)
    first_address, times_scale, finish_O = pools.first_address, pools.times_scale, pools.finish_O
    is_scaled = kv_dtype is not None
    ITEM_BYTES = E4M3_BYTES if is_scaled else STORED_BYTES

    @cuda.jit(device=True, forceinline=True)
    def strided_address(pool):
        return first_address(pool[0])

    @cuda.jit(device=True, forceinline=True)
    def times_scale_of_strided(tau, pool, kv_head):
        return times_scale(tau, pool[0], kv_head)

    @cuda.jit(device=True, forceinline=True)
    def finish_strided(O, pool, kv_head):
        finish_O(O, pool[0], kv_head)

    @cuda.jit(device=True, forceinline=True)
    def strides(pool):
        of = pool[1]
        return uint64(of[0] * ITEM_BYTES), uint64(of[1] * ITEM_BYTES), uint64(of[2] * ITEM_BYTES)

    copy_tile = copy_strided(head_dim * ITEM_BYTES, aligned * ITEM_BYTES)
    keys = SimpleNamespace(**{**vars(pools.splits.keys), "copy_tile": copy_tile})
    splits = SimpleNamespace(**{**vars(pools.splits), "keys": keys})
    return SimpleNamespace(
        splits=splits, row_bytes=pools.row_bytes, first_address=strided_address, times_scale=times_scale_of_strided,
        finish_O=finish_strided, strides=strides,
    )  # fmt: skip


def copy_strided(row_bytes: int, aligned_bytes: int) -> Any:
    """Device function `copy_tile` for rows of so many bytes, which begin at multiples of `aligned_bytes`."""
    BYTES = next(size for size in (16, 8, 4, 2, 1) if row_bytes % size == 0 and size <= aligned_bytes)
    PITCH, PIECES = -(-row_bytes // LINE_BYTES) * LINE_BYTES, row_bytes // BYTES
    if BYTES >= 4:
        copy_piece = copy_async(BYTES)
    else:
        load_piece, store_piece, nothing = load_global(BYTES), store_shared(BYTES), uint32(0)

        @cuda.jit(device=True, forceinline=True)
        def copy_piece(to, source, wanted):
            store_piece(to, load_piece(source) if wanted else nothing)

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, source, first, end, lane):
        for start in range(0, BC * PIECES, 32):
            piece = uint32(start + lane)
            if BC * PIECES % 32 == 0 or piece < BC * PIECES:
                row, byte = piece // uint32(PIECES), piece % uint32(PIECES) * uint32(BYTES)
                at = swizzled(PITCH, row, byte // uint32(CHUNK_BYTES)) + byte % uint32(CHUNK_BYTES)
                wanted = int32(row) >= first and int32(row) < end
                copy_piece(uint32(tile + at), source[0] + uint64(row) * source[1] + uint64(byte), wanted)

    return copy_tile
