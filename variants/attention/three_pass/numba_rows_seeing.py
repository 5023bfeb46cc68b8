"""Which rows of a block see a key. The CUDA twin is rows_seeing.cuh."""

from __future__ import annotations

from typing import Any

from numba import cuda

from variants._features.numba_limits import MASK


def rows_seeing_in(spans: bool) -> Any:
    """The device function `rows_seeing`: which rows of a block see a key. It returns the first and their end, counted
    from the block's first row."""

    # In a band, key j lies on row j + q_len - kv_len; rows from `after` before that one to `before` after it see the
    # key.
    if not spans:

        @cuda.jit(device=True, forceinline=True)
        def rows_seeing(run, block, key):
            own_row = key + run.q_len - run.kv_len
            first_row = max(own_row - run.after, 0)
            end_row = own_row + run.before + 1 if key < run.kv_len else 0
            return first_row - block.first_row, min(end_row - block.first_row, block.rows)

        return rows_seeing

    # How many of the block's rows have a limit up to `key`.
    @cuda.jit(device=True, forceinline=True)
    def rows_up_to(limits, rows, key):
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if limits[middle & MASK] > key:
                high = middle
            else:
                low = middle + 1
        return low

    # Under other masks: from the first row whose run ends after the key to the first whose run begins after it.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(run, block, key):
        return rows_up_to(run.end_keys, block.rows, key), rows_up_to(run.first_keys, block.rows, key)

    return rows_seeing
