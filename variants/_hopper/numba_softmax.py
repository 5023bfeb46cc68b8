"""Softmax and mask of what products of a warpgroup leave in registers. The CUDA twins: softmax.cuh and key_tiles.cuh.

S, O and P are local arrays of float32, float32 and uint32. The layout of sums of products: rows g = lane / 4 and g + 8
of the warp's 16 are h = 0 and 1, at [4 j + 2 h] and the next. P is A of a product, four registers for 16 keys. What a
consumer has for each row, m, l and the correction, are arrays of two. m is in powers of two; l is that of the lane's
own columns.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba import cuda, float32, int32

from variants._hopper.numba_limits import WarpgroupLimits
from variants._mma.numba_mma import MINUS_INFINITY, exp2_approx, lane_index, numba_mma, quad_max
from variants._mma.numba_unrolled import unrolled

ZERO = np.float32(0)


# m of row h, whose largest S, of the lane's, is x. `of_row` is for functions in their place that add to factor S.
@cuda.jit(device=True, forceinline=True)
def maximum(factor, x, of_row, h):
    return factor * quad_max(x)


# What is added to factor S for powers of two relative to m.
@cuda.jit(device=True, forceinline=True)
def relative_to(minus_m, of_row, h):
    return minus_m


@functools.cache
def numba_softmax(
    head_dim: int,
    keys: int,
    limits: WarpgroupLimits,
    dtype: str,
    maximum: Any = maximum,
    relative_to: Any = relative_to,
) -> SimpleNamespace:
    """For rows of `head_dim` elements and tiles of so many keys.

    `maximum` and `relative_to`: what makes powers of two of S, if it is more than a factor.
    """
    TN = keys // 8  # tiles of 8 keys
    TD = head_dim // 8  # tiles of 8 elements of O
    HIDES_FIRST, first_of_lane, end_of_lane = limits.HIDES_FIRST, limits.first_of_lane, limits.end_of_lane
    packed = numba_mma(dtype).packed

    # What the lane's two rows see of a tile, counted from the first of its columns there, into two arrays: the first
    # key of each, and the end. The rows are row[0] and row[1]; `p` has the limits.
    @cuda.jit(device=True, forceinline=True)
    def keys_seen(first, end, row, first_key, p):
        column = int32(first_key + int32(lane_index() & 3) * 2)
        for h in range(2):
            first[h] = int32(first_of_lane(p, row[h]) - column)
            end[h] = int32(end_of_lane(p, row[h]) - column)

    # -inf where the row does not see the key: chosen, not added, so that NaN behind the mask stays there.
    @cuda.jit(device=True, forceinline=True)
    def mask_columns(j, S, first, end):
        for h in range(2):
            for c in range(2):
                key = int32(8 * j + c)
                if (HIDES_FIRST and key < first[h]) or key >= end[h]:
                    S[4 * j + 2 * h + c] = MINUS_INFINITY

    mask_all_columns = unrolled(TN, mask_columns)

    @cuda.jit(device=True, forceinline=True)
    def mask(S, row, first_key, p):
        first, end = cuda.local.array(2, int32), cuda.local.array(2, int32)
        keys_seen(first, end, row, first_key, p)
        mask_all_columns(S, first, end)

    @cuda.jit(device=True, forceinline=True)
    def raise_largest(j, largest, S):
        for h in range(2):
            largest[h] = max(largest[h], max(S[4 * j + 2 * h], S[4 * j + 2 * h + 1]))

    raise_largest_to_all = unrolled(TN, raise_largest)

    @cuda.jit(device=True, forceinline=True)
    def exponentiate_columns(j, S, l, minus_m, factor):
        for h in range(2):
            low = exp2_approx(cuda.fma(S[4 * j + 2 * h], factor, minus_m[h]))
            high = exp2_approx(cuda.fma(S[4 * j + 2 * h + 1], factor, minus_m[h]))
            S[4 * j + 2 * h], S[4 * j + 2 * h + 1] = low, high
            l[h] += low + high

    exponentiate_all_columns = unrolled(TN, exponentiate_columns)

    # m = max(m, rowmax(tau S)), P = exp(tau S - m) in the place of S, l = exp(m_old - m) l + rowsum(P). O_i is to be
    # multiplied by `correction` = exp(m_old - m), too, once nothing is added to it any more. Where nothing was seen yet
    # m = -inf, and (-inf) - (-inf) would be NaN.
    @cuda.jit(device=True, forceinline=True)
    def exponentiate(m, l, S, correction, factor, of_row):
        largest, minus_m = cuda.local.array(2, float32), cuda.local.array(2, float32)
        largest[0], largest[1] = S[0], S[2]
        raise_largest_to_all(largest, S)
        for h in range(2):
            new_m = max(m[h], maximum(factor, largest[h], of_row, h))
            minus_m[h] = ZERO if new_m == MINUS_INFINITY else -new_m
            correction[h] = exp2_approx(m[h] + minus_m[h])
            m[h] = new_m
            l[h] *= correction[h]
            minus_m[h] = relative_to(minus_m[h], of_row, h)
        exponentiate_all_columns(S, l, minus_m, factor)

    @cuda.jit(device=True, forceinline=True)
    def correct_columns(j, O, correction):
        for c in range(4):
            O[4 * j + c] *= correction[c // 2]

    # P, rounded to 16 bits: what a product leaves in two tiles of 8 keys is A of the next one.
    @cuda.jit(device=True, forceinline=True)
    def round_pairs(j, P, S):
        for h in range(2):
            P[2 * j + h] = packed(S[4 * j + 2 * h], S[4 * j + 2 * h + 1])

    return SimpleNamespace(
        TD=TD,
        keys_seen=keys_seen,
        mask=mask,
        exponentiate=exponentiate,
        correct=unrolled(TD, correct_columns),
        round_weights=unrolled(TN, round_pairs),
    )
