"""Masks that are no band: each row's first key and the end of what it sees come from two arrays of (batch, q_len).

The CUDA twin is _tiles/spans.cuh. A limit is where in shared memory a block keeps that of its rows, and the first of
those rows.
"""

from __future__ import annotations

from types import SimpleNamespace

from numba import cuda, int32, uint32

from variants._mma.numba_mma import lane_index, load_shared, shared_address, store_shared, thread_index

INT32_BYTES = 4
load_word, store_word = load_shared(INT32_BYTES), store_shared(INT32_BYTES)


@cuda.jit(device=True, forceinline=True)
def kept_of(limit, row):
    return int32(load_word(uint32(limit + uint32(row) * uint32(INT32_BYTES))))


@cuda.jit(device=True, forceinline=True)
def first_seen(row, q_len, kv_len, before):
    return kept_of(before[0], int32(row - before[1]))


@cuda.jit(device=True, forceinline=True)
def end_seen(row, q_len, kv_len, after):
    return kept_of(after[0], int32(row - after[1]))


# Rows are counted from the warp's first: all that changes from tile to tile is where the tile begins.
@cuda.jit(device=True, forceinline=True)
def place_of(warp_row, q_len, kv_len, first_key):
    return first_key


# Which block of rows this one owns, see _tiles/longest_first.py.
@cuda.jit(device=True, forceinline=True)
def row_block(order):
    return int32(order[0][cuda.blockIdx.z, cuda.blockIdx.y])


def numba_spans(rows_kept: int, warp_rows: int) -> SimpleNamespace:
    """Device functions for blocks of so many rows, and warps of so many of them."""
    ROWS_KEPT, WARP_ROWS = rows_kept, warp_rows

    # The block's, of `rows` rows from `first_row` on; those that its tile has room for besides see nothing, behind all
    # keys.
    @cuda.jit(device=True, forceinline=True)
    def keep_limits(first_keys, end_keys, first_row, rows, q_len, kv_len):
        first_kept = shared_address(cuda.shared.array(ROWS_KEPT, uint32))
        end_kept = shared_address(cuda.shared.array(ROWS_KEPT, uint32))
        t = thread_index()
        if t < ROWS_KEPT:
            first, end = int32(kv_len), int32(kv_len)
            if t < rows:
                first = first_keys[cuda.blockIdx.z, first_row + t]
                end = end_keys[cuda.blockIdx.z, first_row + t]
            store_word(first_kept + uint32(t) * uint32(INT32_BYTES), uint32(first))
            store_word(end_kept + uint32(t) * uint32(INT32_BYTES), uint32(end))
        cuda.syncthreads()
        return (first_kept, first_row), (end_kept, first_row)

    # Of row g, or g + 8, of tile i of the warp's 16 rows, counted from the key `place` that a tile of keys begins with.
    @cuda.jit(device=True, forceinline=True)
    def row_of(i, h):
        warp = uint32(uint32(thread_index()) // uint32(32))
        return int32(warp * uint32(WARP_ROWS) + uint32(16 * i + 8 * h) + (lane_index() >> uint32(2)))

    @cuda.jit(device=True, forceinline=True)
    def first_of_row(place, before, i, h):
        return int32(kept_of(before[0], row_of(i, h)) - place)

    @cuda.jit(device=True, forceinline=True)
    def end_of_row(place, after, keys, i, h):
        return int32(kept_of(after[0], row_of(i, h)) - place)

    return SimpleNamespace(
        first_seen=first_seen,
        end_seen=end_seen,
        keep_limits=keep_limits,
        place_of=place_of,
        first_of_row=first_of_row,
        end_of_row=end_of_row,
        row_block=row_block,
    )
