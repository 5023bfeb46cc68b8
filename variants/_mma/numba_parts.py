"""Parts of a row's keys that several blocks have, put together by the last of them. The CUDA twin is parts.cuh."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint16, uint32
from numba.cuda import libdevice

from variants._features.numba_scores import numba_sink
from variants._mma.numba_assembly import U64
from variants._mma.numba_mma import load, numba_mma, store_global
from variants._mma.numba_split_attention import FLOAT_BYTES, STORED_BYTES, exp_below

ZERO, ONE = np.float32(0), np.float32(1)
store_word = store_global(FLOAT_BYTES)
load_word_cg = load("global.cg", U64, FLOAT_BYTES)


# From L2: another block wrote it.
@cuda.jit(device=True, forceinline=True)
def load_cg(at):
    return libdevice.int_as_float(int32(load_word_cg(at)))


@cuda.jit(device=True, forceinline=True)
def store_float_global(at, x):
    store_word(at, uint32(libdevice.float_as_int(x)))


class FinishedRow(NamedTuple):
    """A row's l and m with the sink, which is a key more."""

    m: Any
    inverse: Any
    """1 / l, to be multiplied by exp(m of the keys - m)."""
    lse: Any


@functools.cache
def numba_parts(head_dim: int, dtype: str, sinks: bool) -> SimpleNamespace:
    """Device functions for rows of `head_dim` elements, of heads with or without sinks.

    WIDTH: neighbouring elements of a row that a thread reads at once.
    """
    WIDTH = 4 if head_dim % 4 == 0 else 2 if head_dim % 2 == 0 else 1
    WEIGHT, packed = numba_sink(sinks).WEIGHT, numba_mma(dtype).packed
    load_words, store_element = load("global.cg", U64, WIDTH * FLOAT_BYTES), store_global(STORED_BYTES)
    store_elements = store_global(WIDTH * STORED_BYTES)

    # A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
    @cuda.jit(device=True, forceinline=True)
    def finished_row(l_keys, m_keys, logit):
        m = max(m_keys, logit)
        l = exp_below(m_keys, m) * l_keys + exp_below(logit, m) * WEIGHT
        return FinishedRow(m, ZERO if l == ZERO else ONE / l, m + libdevice.logf(l))

    @cuda.jit(device=True, forceinline=True)
    def store_rounded(at, x):
        store_element(at, uint16(packed(x, ZERO)))

    if WIDTH == 1:
        # sum += weight * what lies at `at`, of WIDTH elements; then these, times a factor, rounded to 16 bits.
        @cuda.jit(device=True, forceinline=True)
        def add_weighted(sum, weight, at):
            sum[0] = libdevice.fmaf(weight, libdevice.int_as_float(int32(load_words(at))), sum[0])

        @cuda.jit(device=True, forceinline=True)
        def store_sum(at, sum, factor):
            store_rounded(at, sum[0] * factor)

    else:

        @cuda.jit(device=True, forceinline=True)
        def add_weighted(sum, weight, at):
            words = load_words(at)
            for i in range(WIDTH):
                sum[i] = libdevice.fmaf(weight, libdevice.int_as_float(int32(words[i])), sum[i])

        if WIDTH == 2:

            @cuda.jit(device=True, forceinline=True)
            def store_sum(at, sum, factor):
                store_elements(at, packed(sum[0] * factor, sum[1] * factor))

        else:

            @cuda.jit(device=True, forceinline=True)
            def store_sum(at, sum, factor):
                store_elements(at, (packed(sum[0] * factor, sum[1] * factor), packed(sum[2] * factor, sum[3] * factor)))

    return SimpleNamespace(
        WIDTH=WIDTH,
        finished_row=finished_row,
        store_rounded=store_rounded,
        add_weighted=add_weighted,
        store_sum=store_sum,
    )
