"""Splits of keys put together, a block or a warp per row. The CUDA twin is combine.cuh: same names, same order.

A warp has SHARE consecutive splits at once, and of a row with more, every so many-th share, as many as there are warps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda, float32, int32, uint16, uint32, uint64
from numba.cuda import libdevice

from variants._mma.numba_mma import ALL_LANES, MINUS_INFINITY, load_global, numba_mma, store_global
from variants._mma.numba_split_attention import FLOAT_BYTES, STORED_BYTES, exp_below
from variants._mma.splits import MOST_COMBINE_WARPS, SHARE

ZERO, ONE = np.float32(0), np.float32(1)
load_word, store_word, store_element = load_global(FLOAT_BYTES), store_global(FLOAT_BYTES), store_global(STORED_BYTES)


@cuda.jit(device=True, forceinline=True)
def load_float_global(array, at):
    return libdevice.int_as_float(int32(load_word(array + at * uint64(FLOAT_BYTES))))


# Over the lanes of a warp.
@cuda.jit(device=True, forceinline=True)
def warp_max(x):
    for distance in (16, 8, 4, 2, 1):
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, distance))
    return x


@cuda.jit(device=True, forceinline=True)
def warp_sum(x):
    for distance in (16, 8, 4, 2, 1):
        x += cuda.shfl_xor_sync(ALL_LANES, x, distance)
    return x


@functools.cache
def numba_combine(width: int, dtype: str) -> Callable:
    """The device function `combine_splits` for rows of O of `width` elements."""
    DV = width
    PARTS = -(-DV // 32)  # elements of O per lane
    AT_ONCE = SHARE // 4  # splits whose O are under way together
    packed = numba_mma(dtype).packed

    @cuda.jit(device=True, forceinline=True)
    def store_rounded(O, e, x):
        store_element(O + uint64(e) * uint64(STORED_BYTES), uint16(packed(x, ZERO)))

    @cuda.jit(device=True, forceinline=True)
    def store_lse(lse, l, m):
        store_word(lse, uint32(libdevice.float_as_int(m + libdevice.logf(l))))

    # One row of O and its log-sum-exp from so many `splits`, whose l and m lie `stride` apart, from `first_stat` on,
    # and whose O are DV times as far from each other. Arrays are addresses.
    @cuda.jit(device=True, forceinline=True)
    def combine_splits(O, lse, O_split, l_split, m_split, first_stat, stride, splits):
        O_warps = cuda.shared.array((MOST_COMBINE_WARPS, DV), float32)
        l_warps = cuda.shared.array(MOST_COMBINE_WARPS, float32)
        m_warps = cuda.shared.array(MOST_COMBINE_WARPS, float32)
        O_row = cuda.local.array(PARTS, float32)
        O_s = cuda.local.array((AT_ONCE, PARTS), float32)
        t, threads = int32(cuda.threadIdx.x), int32(cuda.blockDim.x)
        warp, lane, warps = t // 32, t % 32, threads // 32
        l, m = ZERO, MINUS_INFINITY
        for j in range(PARTS):
            O_row[j] = ZERO
        for first in range(warp * SHARE, splits, warps * SHARE):
            count = min(SHARE, splits - first)
            stat = first_stat + uint64(first) * stride
            l_own, m_own = ZERO, MINUS_INFINITY
            if lane < count:
                l_own = load_float_global(l_split, stat + uint64(lane) * stride)
                m_own = load_float_global(m_split, stat + uint64(lane) * stride)
            m_new = max(m, warp_max(m_own))
            correction, weight = exp_below(m, m_new), exp_below(m_own, m_new)
            m = m_new
            l = libdevice.fmaf(correction, l, warp_sum(weight * l_own))
            for j in range(PARTS):
                O_row[j] *= correction
            for start in range(0, SHARE, AT_ONCE):
                for s in range(AT_ONCE):
                    row = (stat + uint64(start + s) * stride) * uint64(DV)
                    for j in range(PARTS):
                        e = lane + 32 * j
                        O_s[s, j] = ZERO
                        if start + s < count and e < DV:
                            O_s[s, j] = load_float_global(O_split, row + uint64(e))
                for s in range(AT_ONCE):
                    of_split = cuda.shfl_sync(ALL_LANES, weight, start + s)
                    for j in range(PARTS):
                        O_row[j] = libdevice.fmaf(of_split, O_s[s, j], O_row[j])
        # A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
        if warps == 1:
            inverse = ZERO if l == ZERO else ONE / l
            for j in range(PARTS):
                e = lane + 32 * j
                if e < DV:
                    store_rounded(O, e, O_row[j] * inverse)
            if lane == 0:
                store_lse(lse, l, m)
            return
        for j in range(PARTS):
            e = lane + 32 * j
            if e < DV:
                O_warps[warp, e] = O_row[j]
        if lane == 0:
            l_warps[warp], m_warps[warp] = l, m
        cuda.syncthreads()

        m, l = MINUS_INFINITY, ZERO
        for w in range(warps):
            m = max(m, m_warps[w])
        for w in range(warps):
            l = libdevice.fmaf(exp_below(m_warps[w], m), l_warps[w], l)
        inverse = ZERO if l == ZERO else ONE / l
        for e in range(t, DV, threads):
            sum = ZERO
            for w in range(warps):
                sum = libdevice.fmaf(exp_below(m_warps[w], m), O_warps[w, e], sum)
            store_rounded(O, e, sum * inverse)
        if t == 0:
            store_lse(lse, l, m)

    return combine_splits
