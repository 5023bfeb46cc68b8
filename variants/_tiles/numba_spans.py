"""Masks that are no band: each row's first key and the end of what it sees come from two arrays of (batch, q_len).

The CUDA twin is spans.cuh: same names. A limit is an array of one sequence's, or of those rows that a block keeps on
chip, with the row that it begins with.
"""

from __future__ import annotations

from types import SimpleNamespace

from numba import cuda, int32

from variants._tiles.numba_tiles import MASK, batch_index, thread_index


@cuda.jit(device=True, forceinline=True)
def limit_of(row, limit):
    kept, first_row = limit
    return kept[(row - first_row) & MASK]


@cuda.jit(device=True, forceinline=True)
def first_seen(row, q_len, kv_len, before):
    return limit_of(row, before)


@cuda.jit(device=True, forceinline=True)
def end_seen(row, q_len, kv_len, after):
    return limit_of(row, after)


# The sequence's, in memory.
@cuda.jit(device=True, forceinline=True)
def limits_in_memory(first_keys, end_keys):
    return (first_keys[batch_index()], 0), (end_keys[batch_index()], 0)


def numba_spans(rows_kept: int) -> SimpleNamespace:
    """Device functions for blocks whose tiles have room for so many rows."""
    ROWS_KEPT = rows_kept

    # The block's, of `rows` rows from `first_row` on, and of those that its tile has room for besides: these see
    # nothing, behind all keys.
    @cuda.jit(device=True, forceinline=True)
    def keep_limits(first_keys, end_keys, first_row, rows, kv_len):
        first_kept = cuda.shared.array(ROWS_KEPT, int32)
        end_kept = cuda.shared.array(ROWS_KEPT, int32)
        t = thread_index()
        if t < ROWS_KEPT:
            first_kept[t] = first_keys[batch_index(), first_row + t] if t < rows else kv_len
            end_kept[t] = end_keys[batch_index(), first_row + t] if t < rows else kv_len
        cuda.syncthreads()
        return (first_kept, first_row), (end_kept, first_row)

    return SimpleNamespace(
        limit_of=limit_of,
        first_seen=first_seen,
        end_seen=end_seen,
        limits_in_memory=limits_in_memory,
        keep_limits=keep_limits,
    )
