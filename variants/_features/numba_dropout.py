"""Dropout: which weights of a row become 0. The CUDA twin is dropout.cuh.

    drawn = dropout.of_head(argument, head, batch)
    kept = dropout.kept(drawn, row, first_key, column)     # for keys first_key + column + 8 j
    p = dropout.or_zero(kept, p, j)

Weights that are kept are multiplied by dropout.factor(argument), 1 / (1 - P), in the end. The argument is a tuple of
the threshold, the two halves of the seed and that factor, and empty without dropout.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint32
from numba.cuda import libdevice

ONE = np.float32(1)
M0, M1 = uint32(0xD2511F53), uint32(0xCD9E8D57)
STEP_LOW, STEP_HIGH = uint32(0x9E3779B9), uint32(0xBB67AE85)


class HeadDropout(NamedTuple):
    """The numbers of one query head of one batch entry."""

    threshold: Any
    seed_low: Any
    seed_high: Any
    head: Any
    batch: Any


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
# of word w is that of row 8 r and key 8 w further.
@cuda.jit(device=True, forceinline=True)
def numbers(drawn, row_block, row_of_8, key_block, key_of_8):
    x, y = uint32(key_block * 8 + key_of_8), uint32(row_block * 8 + row_of_8)
    return philox(x, y, uint32(drawn.head), uint32(drawn.batch), drawn.seed_low, drawn.seed_high)


# The number of a row, of a word.
@cuda.jit(device=True, forceinline=True)
def number_of_row(word, row):
    return (word >> (uint32(row) % uint32(32) // uint32(8) * uint32(8))) & uint32(0xFF)


@functools.cache
def numba_dropout(drops: bool, tiles: int = 1) -> SimpleNamespace:
    """Device functions for a kernel with or without dropout, whose tiles have `tiles`, at most 32, times 8 keys."""
    return SimpleNamespace(DROPS=drops, **(_philox_dropout(tiles) if drops else _no_dropout()))


def _philox_dropout(tiles: int) -> dict[str, Any]:
    TILES = tiles

    @cuda.jit(device=True, forceinline=True)
    def of_head(dropout, head, batch):
        return HeadDropout(dropout[0], dropout[1], dropout[2], head, batch)

    # Bit j: whether the row keeps key first_key + column + 8 j, if that key is in the block of 32. first_key is a
    # multiple of 8, and the block begins at most 28 x 8 keys behind it.
    @cuda.jit(device=True, forceinline=True)
    def kept_of_block(drawn, row, block, first_key, column):
        x, y, z, w = numbers(drawn, row >> 5, row & 7, block, column)
        bits = uint32(1) if number_of_row(x, row) >= drawn.threshold else uint32(0)
        bits |= uint32(2) if number_of_row(y, row) >= drawn.threshold else uint32(0)
        bits |= uint32(4) if number_of_row(z, row) >= drawn.threshold else uint32(0)
        bits |= uint32(8) if number_of_row(w, row) >= drawn.threshold else uint32(0)
        ahead = int32(4 * block - int32(uint32(first_key) >> uint32(3)))  # of the tile's first eight keys
        return uint32(bits >> uint32(-ahead) if ahead < 0 else bits << uint32(ahead))

    # The same of all blocks, for j < TILES.
    @cuda.jit(device=True, forceinline=True)
    def kept(drawn, row, first_key, column):
        bits = uint32(0)
        block = int32(uint32(first_key) >> uint32(5))
        while 32 * block < first_key + 8 * TILES:
            bits |= kept_of_block(drawn, row, block, first_key, column)
            block = int32(block + 1)
        return bits

    @cuda.jit(device=True, forceinline=True)
    def or_zero(bits, p, j):
        return p if (bits >> uint32(j)) & uint32(1) else np.float32(0)

    # Whether the row keeps one key: a call of its own.
    @cuda.jit(device=True, forceinline=True)
    def keeps(drawn, row, key):
        x, y, z, w = numbers(drawn, row >> 5, row & 7, key >> 5, key & 7)
        low, high = (y if key & 8 else x), (w if key & 8 else z)
        return number_of_row(high if key & 16 else low, row) >= drawn.threshold

    @cuda.jit(device=True, forceinline=True)
    def factor(dropout):
        return dropout[3]

    return {"of_head": of_head, "kept": kept, "or_zero": or_zero, "keeps": keeps, "factor": factor}


def _no_dropout() -> dict[str, Any]:
    @cuda.jit(device=True, forceinline=True)
    def of_head(dropout, head, batch):
        return ()

    @cuda.jit(device=True, forceinline=True)
    def kept(drawn, row, first_key, column):
        return ()

    @cuda.jit(device=True, forceinline=True)
    def or_zero(bits, p, j):
        return p

    @cuda.jit(device=True, forceinline=True)
    def keeps(drawn, row, key):
        return True

    @cuda.jit(device=True, forceinline=True)
    def factor(dropout):
        return ONE

    return {"of_head": of_head, "kept": kept, "or_zero": or_zero, "keeps": keeps, "factor": factor}
