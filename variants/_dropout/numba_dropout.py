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


# The numbers of keys 64 block + column, 8 further, and so on. `draw`: the kernel's parameter.
@cuda.jit(device=True, forceinline=True)
def numbers(draw, row, block, column, head, entry):
    return philox(uint32(block * 8 + column), uint32(row), uint32(head), uint32(entry), draw[1], draw[2])


# Bits 0 and 1: whether the low half and the high half of a word are kept.
@cuda.jit(device=True, forceinline=True)
def kept_halves(word, threshold):
    low, high = (word & uint32(0xFFFF)) >= threshold, (word >> uint32(16)) >= threshold
    return (uint32(1) if low else uint32(0)) | (uint32(2) if high else uint32(0))


@functools.cache
def numba_dropout(features: tuple[str, ...], tiles: int = 1) -> SimpleNamespace:
    """Device functions for a kernel with these features, whose tiles have `tiles`, at most 32, times 8 keys."""
    DROPOUT, TILES = FEATURE in features, tiles

    if DROPOUT:
        # Bit j: whether the row keeps key first_key + column + 8 j, as far as it is in the block of 64. first_key
        # is a multiple of 8, and the block begins at most 24 x 8 keys behind it.
        @cuda.jit(device=True, forceinline=True)
        def kept_of_block(draw, row, block, first_key, column, head, entry):
            x, y, z, w = numbers(draw, row, block, column, head, entry)
            bits = kept_halves(x, draw[0]) | kept_halves(y, draw[0]) << uint32(2)
            bits |= kept_halves(z, draw[0]) << uint32(4) | kept_halves(w, draw[0]) << uint32(6)
            ahead = int32(8 * block - int32(uint32(first_key) >> uint32(3)))  # of the block's first eight keys
            return uint32(bits >> uint32(-ahead) if ahead < 0 else bits << uint32(ahead))

        # The same of all blocks, for j < TILES.
        @cuda.jit(device=True, forceinline=True)
        def kept(draw, row, first_key, column, head, entry):
            bits = uint32(0)
            block = int32(uint32(first_key) >> uint32(6))
            while 64 * block < first_key + 8 * TILES:
                bits |= kept_of_block(draw, row, block, first_key, column, head, entry)
                block = int32(block + 1)
            return bits

        # In the layout of a product on tensor cores: the lane's rows g and g + 8 of tile i of 16 rows are h = 0 and 1.
        # Bit j of bits[i, h] is of its first column in tile j of 8 keys, bit 16 + j of its second. TILES is at most 16.
        @cuda.jit(device=True, forceinline=True)
        def draw_kept(bits, draw, warp_row, first_key, head, entry):
            lane = uint32(cuda.threadIdx.x & 31)
            for i in range(bits.shape[0]):
                for h in range(2):
                    bits[i, h] = uint32(0)
            block = int32(uint32(first_key) >> uint32(6))
            while 64 * block < first_key + 8 * TILES:
                for i in range(bits.shape[0]):
                    for h in range(2):
                        row = uint32(warp_row + 16 * i + 8 * h) + (lane >> uint32(2))
                        for c in range(2):
                            column = (lane & uint32(3)) * uint32(2) + uint32(c)
                            own = kept_of_block(draw, row, block, first_key, column, head, entry)
                            bits[i, h] |= (own & uint32(0xFFFF)) << uint32(16 * c)
                block = int32(block + 1)

        # p where bit j says that it is kept.
        @cuda.jit(device=True, forceinline=True)
        def dropped(p, bits, j):
            return p if (bits >> uint32(j)) & uint32(1) else np.float32(0)

        # Whether the row keeps one key: a call of its own.
        @cuda.jit(device=True, forceinline=True)
        def keeps(draw, row, key, head, entry):
            x, y, z, w = numbers(draw, row, key >> 6, key & 7, head, entry)
            low, high = (y if key & 16 else x), (w if key & 16 else z)
            word = high if key & 32 else low
            return (word >> uint32(16) if key & 8 else word & uint32(0xFFFF)) >= draw[0]

        @cuda.jit(device=True, forceinline=True)
        def factor_of(kept_factor):
            return kept_factor

    else:

        @cuda.jit(device=True, forceinline=True)
        def kept(draw, row, first_key, column, head, entry):
            return uint32(0)

        @cuda.jit(device=True, forceinline=True)
        def draw_kept(bits, draw, warp_row, first_key, head, entry):
            pass

        @cuda.jit(device=True, forceinline=True)
        def dropped(p, bits, j):
            return p

        @cuda.jit(device=True, forceinline=True)
        def keeps(draw, row, key, head, entry):
            return True

        @cuda.jit(device=True, forceinline=True)
        def factor_of(kept_factor):
            return ONE

    return SimpleNamespace(
        DROPOUT=DROPOUT, kept=kept, draw_kept=draw_kept, dropped=dropped, keeps=keeps, factor_of=factor_of
    )
