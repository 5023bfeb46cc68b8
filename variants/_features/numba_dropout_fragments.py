"""Dropout in the fragments of products on tensor cores: which weights of a lane become 0.

The CUDA twin is dropout_fragments.cuh. Kernels have an array `marks` of uint32 with the shape MARKS for what is drawn:

    kept = kept_in_rows(drops, TM, TN)                      # of a warp's TM tiles of 16 rows and TN tiles of 8 keys
    kept.draw(marks, s, drawn, warp_row, first_key)
    P = kept.both(P, marks, i, h, s, j)                     # two neighbours, in 16 bits
    dS = p * kept.minus(dP, D, factor, marks, i, h, j, c)
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

from variants._features.numba_dropout import numbers
from variants._mma.numba_assembly import U32, assembly


# Digit n of `choice` is 8 + i: byte n is all bits the sign of byte i, of the eight of low and high.
@intrinsic
def signs_of_bytes(typing_context, low, high, choice):
    return assembly("prmt.b32 $0, $1, $2, $3;", U32(U32, U32, U32))


# Which of four numbers reach the threshold, by the sign of each byte. Seven bits of a byte and of the threshold are
# compared, of which none borrows from its neighbour. The eighth bit: where the threshold has it a byte needs it, too;
# else it is enough.
@cuda.jit(device=True, forceinline=True)
def reached_by(numbers, threshold):
    seven_bits = (threshold & uint32(0x7F)) * uint32(0x01010101)
    eighth_is_enough = uint32(0) if threshold & uint32(0x80) else uint32(0xFFFFFFFF)
    reached = uint32((numbers | uint32(0x80808080)) - seven_bits)
    return (numbers & reached) | (eighth_is_enough & (numbers | reached))


# What a lane keeps of a block of 32 rows and 32 keys: one call for each of its two neighbouring columns c. The sign of
# byte r of marks[block, c, w] is for keys 8 w and rows 8 r further than the lane's first. Where a tile begins in the
# middle of the block, of keys or of rows, its first words or bytes come first.
@cuda.jit(device=True, forceinline=True)
def set_marks(marks, block, c, words, threshold, from_key_16, from_row_16):
    x, y, z, w = words
    bits = uint32(16) if from_row_16 else uint32(0)
    marks[block, c, 0] = reached_by(z if from_key_16 else x, threshold) >> bits
    marks[block, c, 1] = reached_by(w if from_key_16 else y, threshold) >> bits
    marks[block, c, 2] = reached_by(z, threshold) >> bits
    marks[block, c, 3] = reached_by(w, threshold) >> bits


# All ones where the weight of column c is kept, else 0.
@cuda.jit(device=True, forceinline=True)
def mask_of_one(marks, block, c, word, byte):
    return signs_of_bytes(marks[block, c, word], marks[block, c, word], uint32(0x8888 + 0x1111 * byte))


# The same of both columns, in the low and in the high half.
@cuda.jit(device=True, forceinline=True)
def mask_of_both(marks, block, word, byte):
    return signs_of_bytes(marks[block, 0, word], marks[block, 1, word], uint32(0xCC88 + 0x1111 * byte))


# D dP - delta, of which dS = P o that: `mask` is all ones where the weight is kept, else 0, whatever dP is.
@cuda.jit(device=True, forceinline=True)
def dropped_minus(dP, mask, delta, factor):
    kept = libdevice.int_as_float(int32(uint32(libdevice.float_as_int(dP)) & mask))
    return libdevice.fmaf(factor, kept, -delta)


# --- Nothing drops out ------------------------------------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def draw_nothing(*arguments):
    pass


@cuda.jit(device=True, forceinline=True)
def both_kept(P, *arguments):
    return P


@cuda.jit(device=True, forceinline=True)
def minus(dP, delta, *arguments):
    return dP - delta


ALL_KEPT = SimpleNamespace(MARKS=(1, 1, 1), draw=draw_nothing, both=both_kept, minus=minus)


# --- Drawn weights ----------------------------------------------------------------------------------------------------


@functools.cache
def kept_in_rows(drops: bool, row_tiles: int, key_tiles: int) -> SimpleNamespace:
    """Device functions for a warp that has `row_tiles` times 16 rows and a tile of `key_tiles` times 8 keys.

    Both begin at multiples of so many.
    """
    if not drops:
        return ALL_KEPT
    TM = row_tiles
    IN_PAIRS = TM % 2 == 0  # the tiles of rows: they share blocks
    WHOLE_BLOCKS = key_tiles % 4 == 0  # of keys
    MARKS = (TM // 2 if IN_PAIRS else TM, 2, 4)

    # For keys 16 s to 16 s + 15 of the tile, in ascending order.
    @cuda.jit(device=True, forceinline=True)
    def draw(marks, s, drawn, warp_row, first_key):
        if not (WHOLE_BLOCKS and s & 1):  # else drawn with the keys before
            lane, key = uint32(cuda.threadIdx.x & 31), uint32(first_key + 16 * s)
            for block in range(MARKS[0]):
                row = uint32(warp_row + (32 if IN_PAIRS else 16) * block)
                for c in range(2):
                    g, column = lane >> uint32(2), (lane & uint32(3)) * uint32(2) + uint32(c)
                    words = numbers(drawn, row >> uint32(5), g, key >> uint32(5), column)
                    from_key_16 = not WHOLE_BLOCKS and (key & uint32(31)) != 0
                    from_row_16 = not IN_PAIRS and (row & uint32(31)) != 0
                    set_marks(marks, block, c, words, drawn.threshold, from_key_16, from_row_16)

    # Two columns of P as they are packed: rows g (h = 0) and g + 8 of tile i, and tile j of 8 of these 16 keys.
    @cuda.jit(device=True, forceinline=True)
    def both(P, marks, i, h, s, j):
        block, byte = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
        return P & mask_of_both(marks, block, s % 2 * 2 + j if WHOLE_BLOCKS else j, byte)

    # D dP - delta of column c of tile j of 8 of the first 32 keys, where tiles have whole blocks.
    @cuda.jit(device=True, forceinline=True)
    def minus(dP, delta, factor, marks, i, h, j, c):
        block, byte = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
        return dropped_minus(dP, mask_of_one(marks, block, c, j, byte), delta, factor)

    return SimpleNamespace(MARKS=MARKS, draw=draw, both=both, minus=minus)


@functools.cache
def kept_in_keys(drops: bool, key_tiles: int, row_tiles: int) -> SimpleNamespace:
    """As `kept_in_rows`, with S transposed: a warp has `key_tiles` times 16 keys and `row_tiles` times 8 rows."""
    if not drops:
        return ALL_KEPT
    TM, TN = key_tiles, row_tiles
    IN_PAIRS = TM % 2 == 0  # the tiles of keys: they share blocks
    WHOLE_BLOCKS = TN % 4 == 0  # of rows
    ACROSS = TN // 4 if WHOLE_BLOCKS else TN // 2
    MARKS = ((TM // 2 if IN_PAIRS else TM) * ACROSS, 2, 4)

    @cuda.jit(device=True, forceinline=True)
    def draw(marks, drawn, first_key, first_row):
        lane = uint32(cuda.threadIdx.x & 31)
        for block in range(MARKS[0]):
            key = uint32(first_key + (32 if IN_PAIRS else 16) * (block // ACROSS))
            row = uint32(first_row + (32 if WHOLE_BLOCKS else 16) * (block % ACROSS))
            for c in range(2):
                column, g = (lane & uint32(3)) * uint32(2) + uint32(c), lane >> uint32(2)
                words = numbers(drawn, row >> uint32(5), column, key >> uint32(5), g)
                from_key_16 = not IN_PAIRS and (key & uint32(31)) != 0
                from_row_16 = not WHOLE_BLOCKS and (row & uint32(31)) != 0
                set_marks(marks, block, c, words, drawn.threshold, from_key_16, from_row_16)

    # Keys g (h = 0) and g + 8 of tile i, and tile j of 8 rows: which block, word and byte.
    @cuda.jit(device=True, forceinline=True)
    def place(i, h, j):
        of_keys, word = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
        of_rows, byte = (j // 4, j % 4) if WHOLE_BLOCKS else (j // 2, j % 2)
        return of_keys * ACROSS + of_rows, word, byte

    # Two columns of P as they are packed.
    @cuda.jit(device=True, forceinline=True)
    def both(P, marks, i, h, j):
        block, word, byte = place(i, h, j)
        return P & mask_of_both(marks, block, word, byte)

    # D dP - delta of column c of them.
    @cuda.jit(device=True, forceinline=True)
    def minus(dP, delta, factor, marks, i, h, j, c):
        block, word, byte = place(i, h, j)
        return dropped_minus(dP, mask_of_one(marks, block, c, word, byte), delta, factor)

    return SimpleNamespace(MARKS=MARKS, draw=draw, both=both, minus=minus)
