"""P^T and dS^T of a tile, in a warpgroup's registers. The CUDA twin is scoring.cuh: same names, same order.

S^T and dP^T, then P^T and dS^T, are local arrays in the layout of products: keys g and g + 8 of the warp's 16 are h = 0
and 1, at [4 j + 2 h] and the next, which are rows 8 j + 2 q and the next. Rounded, they are A of the next product, four
registers for 16 rows.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32
from numba.cuda import libdevice

from variants._hopper.numba_hopper import WARPGROUP, registers_written, store_matrices
from variants._mma.numba_mma import CHUNK_BYTES, exp2_approx, lane_index, numba_mma, thread_index
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward.numba_products import load_floats
from variants._mma_backward.numba_seen import numba_seen
from variants.attention_backward.fa3 import LARGEST_DQ, BackwardWarpgroupTile
from variants.attention_backward.fa3.numba_chip import FLOAT_BYTES, KEY_BYTES, numba_chip

ZERO = np.float32(0)


# L_i or D_i of the lane's rows: where they lie.
@cuda.jit(device=True, forceinline=True)
def lane_stats(tile):
    return uint32(tile + (lane_index() & uint32(3)) * uint32(2 * FLOAT_BYTES))


@functools.cache
def numba_scoring(head_dim: int, tile: BackwardWarpgroupTile, dtype: str, spans: bool) -> SimpleNamespace:
    """Device functions for these compile-time parameters. `spans`: arrays hold which rows see a key."""
    TN = tile.Br // 8  # tiles of 8 rows
    # Whether the sum dP begins with -D_i instead of 0. In tiles of 128 rows, there are no registers for D_i beside P
    # and dP, and above 96 columns the CUDA twin uses them for K_j.
    D_BEFORE_DP = tile.Br == 128 or head_dim > LARGEST_DQ
    DS_BOX_BYTES = numba_chip(head_dim, tile).DS_BOX_BYTES
    write_until_here = registers_written(tile.Br // 2)
    packed, rows_seeing = numba_mma(dtype).packed, numba_seen(spans).rows_seeing

    @cuda.jit(device=True, forceinline=True)
    def load_stats_of_8_rows(j, stats, lane):
        stats[2 * j], stats[2 * j + 1] = load_floats(uint32(lane + uint32(8 * j * FLOAT_BYTES)))

    load_stats_of_all_rows = unrolled(TN, load_stats_of_8_rows)

    @cuda.jit(device=True, forceinline=True)
    def load_stats(stats, tile):
        load_stats_of_all_rows(stats, lane_stats(tile))

    @cuda.jit(device=True, forceinline=True)
    def exponentiate_8_rows(j, S, L, tau2):
        for h in range(2):
            for e in range(2):
                x = S[4 * j + 2 * h + e]
                S[4 * j + 2 * h + e] = exp2_approx(libdevice.fmaf(x, tau2, -L[2 * j + e]))

    @cuda.jit(device=True, forceinline=True)
    def begin_8_rows_with_D(j, X, lane):
        D_low, D_high = load_floats(uint32(lane + uint32(8 * j * FLOAT_BYTES)))
        for h in range(2):
            X[4 * j + 2 * h], X[4 * j + 2 * h + 1] = -D_low, -D_high

    begin_all_rows_with_D = unrolled(TN, begin_8_rows_with_D)

    # X = -D_i, in front of a product that is added to it. Later, products before this one would have to end first.
    @cuda.jit(device=True, forceinline=True)
    def begin_with_D(X, tile):
        begin_all_rows_with_D(X, lane_stats(tile))
        write_until_here(X)

    @cuda.jit(device=True, forceinline=True)
    def multiply_P_alone_of_8_rows(j, dP, P):
        for e in range(4):
            dP[4 * j + e] *= P[4 * j + e]

    multiply_P_alone_of_all_rows = unrolled(TN, multiply_P_alone_of_8_rows)

    @cuda.jit(device=True, forceinline=True)
    def multiply_P_of_8_rows(j, dP, P, delta_lane):
        D_low, D_high = load_floats(uint32(delta_lane + uint32(8 * j * FLOAT_BYTES)))
        for h in range(2):
            dP[4 * j + 2 * h] = P[4 * j + 2 * h] * (dP[4 * j + 2 * h] - D_low)
            dP[4 * j + 2 * h + 1] = P[4 * j + 2 * h + 1] * (dP[4 * j + 2 * h + 1] - D_high)

    multiply_P_of_all_rows = unrolled(TN, multiply_P_of_8_rows)

    # dS = P o (dP - D_i), in the place of dP.
    @cuda.jit(device=True, forceinline=True)
    def multiply_P(dP, P, delta_tile):
        if D_BEFORE_DP:
            multiply_P_alone_of_all_rows(dP, P)
        else:
            multiply_P_of_all_rows(dP, P, lane_stats(delta_tile))

    @cuda.jit(device=True, forceinline=True)
    def mask_8_rows(j, X, h, first, end):
        for e in range(2):
            seen = 8 * j + e >= first and 8 * j + e < end
            X[4 * j + 2 * h + e] = X[4 * j + 2 * h + e] if seen else ZERO

    mask_all_rows = unrolled(TN, mask_8_rows)

    # X = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. The
    # warpgroup's first key is `key`, the tile's first row `row`.
    @cuda.jit(device=True, forceinline=True)
    def mask(X, seeing, key, row):
        thread = uint32(thread_index())
        lane, warps_key = thread & uint32(31), uint32(thread % uint32(WARPGROUP) // uint32(32) * uint32(16))
        column = int32((lane & uint32(3)) * uint32(2))  # the lane's first row
        for h in range(2):
            first, end = rows_seeing(seeing, int32(warps_key + uint32(8 * h) + (lane >> uint32(2))), key, row)
            mask_all_rows(X, h, int32(first - column), int32(end - column))

    @cuda.jit(device=True, forceinline=True)
    def bring_NaN_of_8_rows(j, P, dS):
        for e in range(4):
            P[4 * j + e] = libdevice.fmaf(ZERO, dS[4 * j + e], P[4 * j + e])

    @cuda.jit(device=True, forceinline=True)
    def round_8_rows(j, W, X):
        for h in range(2):
            W[2 * j + h] = packed(X[4 * j + 2 * h], X[4 * j + 2 * h + 1])

    @cuda.jit(device=True, forceinline=True)
    def store_16_rows(k, tile, dS, key, half):
        piece = ((uint32(2 * k) + half) & uint32(7)) ^ (key & uint32(7))
        at = tile + uint32(k // 4 * DS_BOX_BYTES) + key * uint32(KEY_BYTES) + piece * uint32(CHUNK_BYTES)
        store_matrices(uint32(at), (dS[4 * k], dS[4 * k + 1], dS[4 * k + 2], dS[4 * k + 3]))

    store_all_rows = unrolled(TN // 2, store_16_rows)

    # dS^T of the warpgroup's keys -> the tile (PTX ISA: stmatrix).
    @cuda.jit(device=True, forceinline=True)
    def store_dS(tile, consumer, dS):
        thread = uint32(thread_index()) % uint32(WARPGROUP)
        key = uint32(uint32(consumer) * uint32(64) + thread // uint32(32) * uint32(16) + thread % uint32(16))
        store_all_rows(tile, dS, key, uint32(thread % uint32(32) // uint32(16)))

    return SimpleNamespace(
        load_stats=load_stats,  # L_i or D_i of the lane's rows
        exponentiate=unrolled(TN, exponentiate_8_rows),  # P = exp(tau S - L_i), in the place of S
        D_BEFORE_DP=D_BEFORE_DP,
        begin_with_D=begin_with_D,
        multiply_P=multiply_P,
        mask=mask,
        bring_NaN=unrolled(TN, bring_NaN_of_8_rows),  # NaN in dS is brought to P, and with it to dV
        round_weights=unrolled(TN, round_8_rows),  # to 16 bits: what a product leaves is A of the next one
        store_dS=store_dS,
    )
