"""Tiles multiply whole: a P or dS of 0, where a row does not see a key, must not meet NaN or infinity. The CUDA twin is
not_finite.cuh: same names, same order.

It is to be short, and need not be fast. A loop whose length can be told would be unrolled.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32, uint32
from numba.cuda import libdevice

from variants._hopper import ELEMENT_BYTES
from variants._hopper.numba_hopper import WARPGROUP, any_of_threads, numba_hopper, publish_to_async
from variants._mma.numba_mma import CHUNK_BYTES, keep_loop, load_shared, numba_mma, store_shared, thread_index, unknown
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward.numba_products import load_floats
from variants.attention_backward.fa3 import BackwardWarpgroupTile
from variants.attention_backward.fa3.numba_chip import ALL_CONSUMERS, CONSUMER_THREADS, FLOAT_BYTES, numba_chip
from variants.attention_backward.fa3.numba_scoring import lane_stats

CHUNK = CHUNK_BYTES // ELEMENT_BYTES
ZERO = np.float32(0)
NOT_A_NUMBER = np.uint32(0x7FFFFFFF)
NOT_A_NUMBER_OF_16_BITS = np.uint16(0x7FFF)  # in either dtype
load_word, store_word, store_element = load_shared(4), store_shared(4), store_shared(2)


@functools.cache
def numba_not_finite(head_dim: int, tile: BackwardWarpgroupTile, dtype: str) -> SimpleNamespace:
    """`clear_all_not_finite` for these compile-time parameters."""
    places, mma = numba_chip(head_dim, tile), numba_mma(dtype)
    D, BR, BC = places.D, tile.Br, tile.Bc
    V_tile, Q_tile, dO_tile, L_of = places.V_tile, places.Q_tile, places.dO_tile, places.L_of
    delta_of = places.delta_of
    hopper, not_finite, finite_or_zero = numba_hopper(D), mma.not_finite, mma.finite_or_zero
    COLUMNS, ROW_BYTES, piece_of_row = hopper.COLUMNS, hopper.ROW_BYTES, hopper.piece_of_row

    # Row `row` of a tile of ROWS rows: what is NaN or infinity becomes 0. Whether there was any.
    @cuda.jit(device=True, forceinline=True)
    def clear_not_finite(tile, ROWS, row):
        found = False
        e = uint32(0)
        while e < uint32(D):
            keep_loop()
            box, column = e // uint32(COLUMNS), e % uint32(COLUMNS)
            at = tile + box * uint32(ROWS * ROW_BYTES) + piece_of_row(row, column // uint32(CHUNK))
            at = uint32(at + column % uint32(CHUNK) * uint32(ELEMENT_BYTES))
            both = load_word(at)
            if not_finite(both):
                store_word(at, finite_or_zero(both))
                found = True
            e = unknown(uint32(e + uint32(2)))
        return found

    @cuda.jit(device=True, forceinline=True)
    def add_zero_times(e, zero, X):
        zero[0] = libdevice.fmaf(ZERO, X[e], zero[0])

    @cuda.jit(device=True, forceinline=True)
    def add_zero_times_delta(j, zero, lane):
        D_low, D_high = load_floats(uint32(lane + uint32(8 * j * FLOAT_BYTES)))
        zero[0] = libdevice.fmaf(ZERO, D_low, libdevice.fmaf(ZERO, D_high, zero[0]))

    add_zero_times_all = unrolled(BR // 2, add_zero_times)
    add_zero_times_all_delta = unrolled(BR // 8, add_zero_times_delta)

    # Whether an element, or D_i of the lane's rows, is NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def scores_not_finite(S, dP, delta_tile):
        zero = cuda.local.array(1, float32)
        zero[0] = ZERO
        add_zero_times_all(zero, S)
        add_zero_times_all(zero, dP)
        add_zero_times_all_delta(zero, lane_stats(delta_tile))
        return zero[0] != zero[0]

    # By all consumers, of a tile with a row that does not see all keys: whether anything in it is not finite, and
    # whether K_j ever was. A row of Q_i, K_j or dO_i that is not finite makes all its elements of S or dP not finite,
    # whatever the other factor is. It becomes 0. L_i of such a row of Q_i or dO_i becomes NaN, and with it what the row
    # adds where it sees a key. In the place of what was in K_j, V_j has a NaN: dP = dO_i V_j^T brings it to the rows
    # that see the key, here and in later tiles, and a mask keeps it from all others.
    @cuda.jit(device=True, forceinline=True)
    def clear_all_not_finite(chip, n, S, dP, keys_not_finite):
        found = scores_not_finite(S, dP, delta_of(chip, n))
        if any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, int32(found)) == 0:
            return False, keys_not_finite
        row = int32(thread_index() - WARPGROUP)
        if row < BR:
            in_Q, in_dO = clear_not_finite(Q_tile(chip, n), BR, row), clear_not_finite(dO_tile(chip, n), BR, row)
            if in_Q or in_dO:
                store_word(uint32(L_of(chip, n) + uint32(row) * uint32(FLOAT_BYTES)), NOT_A_NUMBER)
        in_K = False
        if row < BC:
            in_K = clear_not_finite(chip, BC, row)
        if in_K:
            store_element(uint32(V_tile(chip) + piece_of_row(row, 0)), NOT_A_NUMBER_OF_16_BITS)
        publish_to_async()
        return True, keys_not_finite | (any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, int32(in_K)) != 0)

    return SimpleNamespace(clear_all_not_finite=clear_all_not_finite)
