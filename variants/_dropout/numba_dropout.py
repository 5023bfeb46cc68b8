"""Dropout: which weights of a row become 0. The CUDA twin is dropout.cuh.

Kernels have two parameters for it, the last ones: a tuple of the threshold and the two halves of the seed, which is
empty where nothing drops out, and `kept_factor`, what the weights that are left are multiplied by, empty then, too.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32
from numba.cuda import libdevice

from variants._dropout import FEATURE

ONE = np.float32(1)
M0, M1 = uint32(0xD2511F53), uint32(0xCD9E8D57)
STEP_LOW, STEP_HIGH = uint32(0x9E3779B9), uint32(0xBB67AE85)


@cuda.jit(device=True, forceinline=True)
def high_product(a, b):
    return uint32(libdevice.umulhi(int32(a), int32(b)))


@cuda.jit(device=True, forceinline=True)
def philox(x, y, z, w, key_low, key_high):
    """Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"."""
    for _ in range(10):
        even, odd = high_product(M0, x), high_product(M1, z)
        x, y, z, w = odd ^ y ^ key_low, uint32(M1 * z), even ^ w ^ key_high, uint32(M0 * x)
        key_low, key_high = uint32(key_low + STEP_LOW), uint32(key_high + STEP_HIGH)
    return x, y, z, w


# The numbers of those rows and keys of two blocks of 32 that are row_of_8 and key_of_8 behind a multiple of 8: byte r
# of word w is that of row 8 r and key 8 w further. `draw`: the kernel's parameter.
@cuda.jit(device=True, forceinline=True)
def numbers(draw, row_block, row_of_8, key_block, key_of_8, head, entry):
    x, y = uint32(key_block * 8 + key_of_8), uint32(row_block * 8 + row_of_8)
    return philox(x, y, uint32(head), uint32(entry), draw[1], draw[2])


# The number of a row, of a word.
@cuda.jit(device=True, forceinline=True)
def number_of_row(word, row):
    return (word >> (uint32(row) % uint32(32) // uint32(8) * uint32(8))) & uint32(0xFF)


@functools.cache
def numba_dropout(features: tuple[str, ...], tiles: int = 1) -> SimpleNamespace:
    """Device functions for a kernel with these features, whose tiles have `tiles`, at most 32, times 8 keys."""
    DROPOUT, TILES = FEATURE in features, tiles

    if DROPOUT:
        # Bit j: whether the row keeps key first_key + column + 8 j, as far as it is in the block of 32. first_key
        # is a multiple of 8, and the block begins at most 28 x 8 keys behind it.
        @cuda.jit(device=True, forceinline=True)
        def kept_of_block(draw, row, block, first_key, column, head, entry):
            x, y, z, w = numbers(draw, row >> 5, row & 7, block, column, head, entry)
            bits = uint32(1) if number_of_row(x, row) >= draw[0] else uint32(0)
            bits |= uint32(2) if number_of_row(y, row) >= draw[0] else uint32(0)
            bits |= uint32(4) if number_of_row(z, row) >= draw[0] else uint32(0)
            bits |= uint32(8) if number_of_row(w, row) >= draw[0] else uint32(0)
            ahead = int32(4 * block - int32(uint32(first_key) >> uint32(3)))  # of the block's first eight keys
            return uint32(bits >> uint32(-ahead) if ahead < 0 else bits << uint32(ahead))

        # The same of all blocks, for j < TILES.
        @cuda.jit(device=True, forceinline=True)
        def kept(draw, row, first_key, column, head, entry):
            bits = uint32(0)
            block = int32(uint32(first_key) >> uint32(5))
            while 32 * block < first_key + 8 * TILES:
                bits |= kept_of_block(draw, row, block, first_key, column, head, entry)
                block = int32(block + 1)
            return bits

        # p where bit j says that it is kept.
        @cuda.jit(device=True, forceinline=True)
        def dropped(p, bits, j):
            return p if (bits >> uint32(j)) & uint32(1) else np.float32(0)

        # Whether the row keeps one key: a call of its own.
        @cuda.jit(device=True, forceinline=True)
        def keeps(draw, row, key, head, entry):
            x, y, z, w = numbers(draw, row >> 5, row & 7, key >> 5, key & 7, head, entry)
            low, high = (y if key & 8 else x), (w if key & 8 else z)
            return number_of_row(high if key & 16 else low, row) >= draw[0]

        @cuda.jit(device=True, forceinline=True)
        def factor_of(kept_factor):
            return kept_factor

    else:

        @cuda.jit(device=True, forceinline=True)
        def kept(draw, row, first_key, column, head, entry):
            return uint32(0)

        @cuda.jit(device=True, forceinline=True)
        def dropped(p, bits, j):
            return p

        @cuda.jit(device=True, forceinline=True)
        def keeps(draw, row, key, head, entry):
            return True

        @cuda.jit(device=True, forceinline=True)
        def factor_of(kept_factor):
            return ONE

    return SimpleNamespace(DROPOUT=DROPOUT, kept=kept, dropped=dropped, keeps=keeps, factor_of=factor_of)
