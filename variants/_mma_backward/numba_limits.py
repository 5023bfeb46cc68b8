"""Limits as gradients on tensor cores read them: the run of each row is two numbers, or lies in shared memory, which
addresses of 32 bits name. A kernel's parameter `limits` is as in _features/numba_limits.py, mirrored where a block owns
keys.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32

from variants._features.numba_limits import BandRun, SpansRun
from variants._mma.numba_mma import load_shared, shared_address, store_shared, thread_index

INT32_BYTES = 4
load_word, store_word = load_shared(INT32_BYTES), store_shared(INT32_BYTES)


# No mask, a causal mask, a sliding window.
@cuda.jit(device=True, forceinline=True)
def own_key(run, row):
    return int32(row + run.kv_len - run.q_len)


@cuda.jit(device=True, forceinline=True)
def first_in_band(run, row):
    return int32(max(int32(own_key(run, row) - run.before), int32(0)))


@cuda.jit(device=True, forceinline=True)
def end_in_band(run, row):
    return int32(min(max(int32(own_key(run, row) + run.after + 1), int32(0)), run.kv_len))


@cuda.jit(device=True, forceinline=True)
def band_of_block(limits, batch, first_row, rows, q_len, kv_len):
    return BandRun(limits[0], limits[1], q_len, kv_len)


# Packed documents, a prefix, and what else is no band.
@cuda.jit(device=True, forceinline=True)
def first_in_spans(run, row):
    return int32(load_word(uint32(run.first_keys + uint32(int32(row - run.first_row)) * uint32(INT32_BYTES))))


@cuda.jit(device=True, forceinline=True)
def end_in_spans(run, row):
    return int32(load_word(uint32(run.end_keys + uint32(int32(row - run.first_row)) * uint32(INT32_BYTES))))


@functools.cache
def numba_limits(spans: bool, rows: int) -> SimpleNamespace:
    """Device functions for `Spans` or `Band`; blocks have up to `rows` rows."""
    if not spans:
        return SimpleNamespace(of_block=band_of_block, first=first_in_band, end=end_in_band)
    ROWS = rows

    # Called by all threads of the block. A tile may have room for more rows than the block has: these see nothing,
    # after all keys.
    @cuda.jit(device=True, forceinline=True)
    def of_block(limits, batch, first_row, rows, q_len, kv_len):
        first_kept = shared_address(cuda.shared.array(ROWS, uint32))
        end_kept = shared_address(cuda.shared.array(ROWS, uint32))
        t = thread_index()
        if t < ROWS:
            first, end = int32(kv_len), int32(kv_len)
            if t < rows:
                first, end = limits[0][batch, first_row + t], limits[1][batch, first_row + t]
            store_word(first_kept + uint32(t) * uint32(INT32_BYTES), uint32(first))
            store_word(end_kept + uint32(t) * uint32(INT32_BYTES), uint32(end))
        cuda.syncthreads()
        return SpansRun(first_kept, end_kept, first_row)

    return SimpleNamespace(of_block=of_block, first=first_in_spans, end=end_in_spans)
