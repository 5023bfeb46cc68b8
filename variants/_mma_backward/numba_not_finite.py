"""Gradients on tensor cores multiply whole tiles: a dS of 0, where a row does not see a key, must not meet NaN or
infinity. The CUDA twin is not_finite.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32

from variants._mma import LINE_BYTES, LINE_ELEMENTS
from variants._mma.numba_mma import CHUNK_BYTES, keep_loop, load_shared, numba_mma, store_shared, swizzled, unknown
from variants._mma.numba_tiles import NOTHING, STORED_BYTES

CHUNK = CHUNK_BYTES // STORED_BYTES
NOT_A_NUMBER = np.uint16(0x7FFF)  # in either dtype
load_element, store_element = load_shared(STORED_BYTES), store_shared(STORED_BYTES)


@functools.cache
def numba_not_finite(head_dim: int, dtype: str) -> SimpleNamespace:
    """Device functions for tiles of rows of `head_dim` elements."""
    D = head_dim
    ROW_BYTES = -(-D // LINE_ELEMENTS) * LINE_BYTES
    not_finite = numba_mma(dtype).not_finite

    # Row `row` of a tile: what is NaN or infinity becomes 0. Whether there was any.
    @cuda.jit(device=True, forceinline=True)
    def clear_not_finite(tile, row):
        found = False
        for element in range(int32(0), unknown(int32(D)), int32(1)):
            keep_loop()
            e = uint32(element)
            at = tile + swizzled(ROW_BYTES, row, e // uint32(CHUNK)) + e % uint32(CHUNK) * uint32(STORED_BYTES)
            if not_finite(uint32(load_element(at))):
                store_element(at, NOTHING)
                found = True
        return found

    # The same with a key of K_j. In the place of what was there V_j has a NaN: dP = dO_i V_j^T brings it to the rows
    # that see the key, and a mask keeps it from all others.
    @cuda.jit(device=True, forceinline=True)
    def move_not_finite(K_tile, V_tile, key):
        if clear_not_finite(K_tile, key):
            store_element(V_tile + swizzled(ROW_BYTES, key, 0), NOT_A_NUMBER)

    return SimpleNamespace(clear_not_finite=clear_not_finite, move_not_finite=move_not_finite)
