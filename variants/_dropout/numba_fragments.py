"""Dropout in the fragments of products on tensor cores. The CUDA twin is fragments.cuh."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

from variants._dropout import FEATURE
from variants._dropout.numba_dropout import numbers
from variants._mma.numba_assembly import U32, assembly


# Digit n of `choice` is 8 + i: byte n is all bits the sign of byte i, of the eight of low and high.
@intrinsic
def signs_of_bytes(typing_context, low, high, choice):
    return assembly("prmt.b32 $0, $1, $2, $3;", U32(U32, U32, U32))


# Which of four numbers reach the threshold, by the sign of each byte. Seven bits of a byte and of the threshold are
# compared, of which none borrows from its neighbour. What the eighth adds: where the threshold has it a byte needs it,
# too, else it is enough.
@cuda.jit(device=True, forceinline=True)
def reached_by(numbers, threshold):
    seven_bits = (threshold & uint32(0x7F)) * uint32(0x01010101)
    eighth_is_enough = uint32(0) if threshold & uint32(0x80) else uint32(0xFFFFFFFF)
    reached = uint32((numbers | uint32(0x80808080)) - seven_bits)
    return (numbers & reached) | (eighth_is_enough & (numbers | reached))


# What a lane of a product on tensor cores keeps of a block of 32 rows and 32 keys: one call for each of its two
# neighbouring columns c. The sign of byte r of marks[block, c, w] is for keys 8 w and rows 8 r further than the lane's
# first. Where a tile begins in the middle of the block, of keys or of rows, its first words or bytes come first.
@cuda.jit(device=True, forceinline=True)
def set_marks(marks, block, c, drawn, threshold, from_key_16, from_row_16):
    x, y, z, w = drawn
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


# x where the mask is all ones, 0 where it is 0, whatever x is.
@cuda.jit(device=True, forceinline=True)
def left_of(x, mask):
    return libdevice.int_as_float(int32(uint32(libdevice.float_as_int(x)) & mask))


@functools.cache
def drawn_rows(features: tuple[str, ...], row_tiles: int, key_tiles: int) -> SimpleNamespace:
    """Device functions for a warp that has `row_tiles` times 16 rows and a tile of `key_tiles` times 8 keys.

    Both begin at multiples of so many. MARKS: the shape of an array of uint32 for the blocks of 16 or 32 keys.
    """
    TM = row_tiles
    IN_PAIRS = TM % 2 == 0  # the tiles of rows: they share blocks
    WHOLE_BLOCKS = key_tiles % 4 == 0  # of keys

    if FEATURE in features:
        MARKS = (TM // 2 if IN_PAIRS else TM, 2, 4)

        # For keys 16 s to 16 s + 15 of the tile, in ascending order.
        @cuda.jit(device=True, forceinline=True)
        def draw_rows(marks, s, draw, warp_row, first_key, head, entry):
            if not (WHOLE_BLOCKS and s & 1):  # else drawn with the keys before
                lane, key = uint32(cuda.threadIdx.x & 31), uint32(first_key + 16 * s)
                for block in range(MARKS[0]):
                    row = uint32(warp_row + (32 if IN_PAIRS else 16) * block)
                    for c in range(2):
                        g, column = lane >> uint32(2), (lane & uint32(3)) * uint32(2) + uint32(c)
                        drawn = numbers(draw, row >> uint32(5), g, key >> uint32(5), column, head, entry)
                        from_key_16 = not WHOLE_BLOCKS and (key & uint32(31)) != 0
                        from_row_16 = not IN_PAIRS and (row & uint32(31)) != 0
                        set_marks(marks, block, c, drawn, draw[0], from_key_16, from_row_16)

        # What is left of P, as two columns are packed: rows g (h = 0) and g + 8 of tile i, tile j of 8 of these keys.
        @cuda.jit(device=True, forceinline=True)
        def left_of_both(two, marks, i, h, s, j):
            block, byte = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
            return two & mask_of_both(marks, block, s % 2 * 2 + j if WHOLE_BLOCKS else j, byte)

        # D dP - delta, of column c of tile j of 8 of the first 32 keys, where tiles have whole blocks.
        @cuda.jit(device=True, forceinline=True)
        def grown_less(dP, delta, marks, i, h, j, c, kept_factor):
            block, byte = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
            left = left_of(dP, mask_of_one(marks, block, c, j, byte))
            return libdevice.fmaf(kept_factor, left, -delta)

    else:
        MARKS = (1, 1, 1)

        @cuda.jit(device=True, forceinline=True)
        def draw_rows(marks, s, draw, warp_row, first_key, head, entry):
            pass

        @cuda.jit(device=True, forceinline=True)
        def left_of_both(two, marks, i, h, s, j):
            return two

        @cuda.jit(device=True, forceinline=True)
        def grown_less(dP, delta, marks, i, h, j, c, kept_factor):
            return dP - delta

    return SimpleNamespace(MARKS=MARKS, draw_rows=draw_rows, left_of_both=left_of_both, grown_less=grown_less)


@functools.cache
def drawn_keys(features: tuple[str, ...], key_tiles: int, row_tiles: int) -> SimpleNamespace:
    """As `drawn_rows`, with S transposed: a warp has `key_tiles` times 16 keys and `row_tiles` times 8 rows."""
    TM, TN = key_tiles, row_tiles
    IN_PAIRS = TM % 2 == 0  # the tiles of keys: they share blocks
    WHOLE_BLOCKS = TN % 4 == 0  # of rows
    ACROSS = TN // 4 if WHOLE_BLOCKS else TN // 2

    if FEATURE in features:
        MARKS = ((TM // 2 if IN_PAIRS else TM) * ACROSS, 2, 4)

        # Of a query head. `draw`: the kernel's parameter.
        @cuda.jit(device=True, forceinline=True)
        def draw_keys(marks, draw, head, first_key, first_row):
            lane = uint32(cuda.threadIdx.x & 31)
            for block in range(MARKS[0]):
                key = uint32(first_key + (32 if IN_PAIRS else 16) * (block // ACROSS))
                row = uint32(first_row + (32 if WHOLE_BLOCKS else 16) * (block % ACROSS))
                for c in range(2):
                    column, g = (lane & uint32(3)) * uint32(2) + uint32(c), lane >> uint32(2)
                    drawn = numbers(draw, row >> uint32(5), column, key >> uint32(5), g, head, cuda.blockIdx.z)
                    from_key_16 = not IN_PAIRS and (key & uint32(31)) != 0
                    from_row_16 = not WHOLE_BLOCKS and (row & uint32(31)) != 0
                    set_marks(marks, block, c, drawn, draw[0], from_key_16, from_row_16)

        # Of keys g (h = 0) and g + 8 of tile i and tile j of 8 rows: which block, word and byte.
        @cuda.jit(device=True, forceinline=True)
        def place(i, h, j):
            of_keys, word = (i // 2, i % 2 * 2 + h) if IN_PAIRS else (i, h)
            of_rows, byte = (j // 4, j % 4) if WHOLE_BLOCKS else (j // 2, j % 2)
            return of_keys * ACROSS + of_rows, word, byte

        # What is left of two columns, as they are packed.
        @cuda.jit(device=True, forceinline=True)
        def left_of_both(two, marks, i, h, j):
            block, word, byte = place(i, h, j)
            return two & mask_of_both(marks, block, word, byte)

        # D dP - delta, of column c.
        @cuda.jit(device=True, forceinline=True)
        def grown_less(dP, delta, marks, i, h, j, c, kept_factor):
            block, word, byte = place(i, h, j)
            return libdevice.fmaf(kept_factor, left_of(dP, mask_of_one(marks, block, c, word, byte)), -delta)

    else:
        MARKS = (1, 1, 1)

        @cuda.jit(device=True, forceinline=True)
        def draw_keys(marks, draw, head, first_key, first_row):
            pass

        @cuda.jit(device=True, forceinline=True)
        def left_of_both(two, marks, i, h, j):
            return two

        @cuda.jit(device=True, forceinline=True)
        def grown_less(dP, delta, marks, i, h, j, c, kept_factor):
            return dP - delta

    return SimpleNamespace(MARKS=MARKS, draw_keys=draw_keys, left_of_both=left_of_both, grown_less=grown_less)
