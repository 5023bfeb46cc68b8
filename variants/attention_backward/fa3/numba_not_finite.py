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
from variants._hopper.numba_hopper import WARPGROUP, any_of_threads, numba_hopper, publish_to_async, sync_threads
from variants._mma.numba_mma import CHUNK_BYTES, keep_loop, load_shared, numba_mma, store_shared, thread_index, unknown
from variants._mma.numba_unrolled import unrolled
from variants.attention_backward.fa3 import BackwardWarpgroupTile
from variants.attention_backward.fa3.numba_chip import ALL_CONSUMERS, CONSUMER_THREADS, FLOAT_BYTES, numba_chip

CHUNK = CHUNK_BYTES // ELEMENT_BYTES
NOT_A_NUMBER = np.uint32(0x7FFFFFFF)
NOT_A_NUMBER_OF_16_BITS = np.uint16(0x7FFF)  # in either dtype
load_word, store_word, load_piece, store_element = load_shared(4), store_shared(4), load_shared(16), store_shared(2)


@functools.cache
def numba_not_finite(head_dim: int, tile: BackwardWarpgroupTile, dtype: str) -> SimpleNamespace:
    """`move_not_finite` and `clear_rows_not_finite` for these compile-time parameters."""
    places, mma = numba_chip(head_dim, tile), numba_mma(dtype)
    D, BR, BC, KEYS_BYTES = places.D, tile.Br, tile.Bc, places.KEYS_BYTES
    V_tile, Q_tile, dO_tile, L_of = places.V_tile, places.Q_tile, places.dO_tile, places.L_of
    hopper, not_finite, finite_or_zero = numba_hopper(D), mma.not_finite, mma.finite_or_zero
    COLUMNS, ROW_BYTES, piece_of_row = hopper.COLUMNS, hopper.ROW_BYTES, hopper.piece_of_row

    # Of all consumers.
    @cuda.jit(device=True, forceinline=True)
    def own_thread():
        return int32(thread_index() - WARPGROUP)

    # Whether the thread, one of all consumers, finds NaN or infinity in its part of K_j.
    @cuda.jit(device=True, forceinline=True)
    def finds_not_finite(chip):
        found = False
        e = own_thread()
        while e < KEYS_BYTES // 16:
            keep_loop()
            x = load_piece(uint32(chip + uint32(e) * uint32(16)))
            found |= not_finite(x[0]) | not_finite(x[1]) | not_finite(x[2]) | not_finite(x[3])
            e = unknown(int32(e + CONSUMER_THREADS))
        return found

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

    # By all consumers, of K_j. In the place of what was there V_j has a NaN: dP = dO_i V_j^T brings it to the rows that
    # see the key, and a mask keeps it from all others. Whether there was any.
    @cuda.jit(device=True, forceinline=True)
    def move_not_finite(chip):
        found = finds_not_finite(chip)
        if any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, int32(found)) == 0:
            return False
        key = own_thread()
        if key < BC and clear_not_finite(chip, BC, key):
            store_element(uint32(V_tile(chip) + piece_of_row(key, 0)), NOT_A_NUMBER_OF_16_BITS)
        publish_to_async()
        sync_threads(ALL_CONSUMERS, CONSUMER_THREADS)
        return True

    @cuda.jit(device=True, forceinline=True)
    def add_zero_times(e, zero, X):
        zero[0] = libdevice.fmaf(np.float32(0), X[e], zero[0])

    add_zero_times_all = unrolled(BR // 2, add_zero_times)

    # By all consumers, of a tile with a row that does not see all keys. A row of Q_i or dO_i that is not finite makes
    # all its elements of S or dP not finite, whatever the keys are. L_i of such a row becomes NaN, and with it what the
    # row adds where it sees a key.
    @cuda.jit(device=True, forceinline=True)
    def clear_rows_not_finite(chip, n, S, dP):
        zero = cuda.local.array(1, float32)
        zero[0] = np.float32(0)
        add_zero_times_all(zero, S)
        add_zero_times_all(zero, dP)
        found = zero[0] != zero[0]
        if any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, int32(found)) != 0:
            row = own_thread()
            if row < BR:
                in_Q, in_dO = clear_not_finite(Q_tile(chip, n), BR, row), clear_not_finite(dO_tile(chip, n), BR, row)
                if in_Q or in_dO:
                    store_word(uint32(L_of(chip, n) + uint32(row) * uint32(FLOAT_BYTES)), NOT_A_NUMBER)
            publish_to_async()
            sync_threads(ALL_CONSUMERS, CONSUMER_THREADS)

    return SimpleNamespace(move_not_finite=move_not_finite, clear_rows_not_finite=clear_rows_not_finite)
