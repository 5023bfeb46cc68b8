"""Scales of products with block scaling, which are in tensor memory (PTX ISA 9.7.16.10.7).

A word has up to four scales of one row of A, or column of B. Row r is in lane r % 32 of column r // 32, from the
column of the operand's address on. Each quarter of the lanes has a copy of all of them, and rows of D in a quarter are
computed with the copy there: scales that are missing in a quarter are NaN. With fewer than four scales, the descriptor
of the instruction has the byte at which they begin. The upper two bits of an address are ignored: CUTLASS keeps this
byte there.
"""

from __future__ import annotations

from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.tensor_memory.cells import memory_of
from harness.emulator.memory.tensor_memory.descriptors import (
    columns_of,
    scale_columns,
    scale_place,
    scales_of,
)

QUARTER = 32
LANE_BITS = 14
"""Bits of an address between the column and the bits that are ignored."""
GROUPS_OF_QUARTERS = 0x55
"""The first 16 lanes of each quarter, as groups of 16 lanes."""


def scale_address(operation: int, side: int) -> int:
    """The address of the scales of A, or for `side` 1 of B."""
    return int(load64(operation + (tensor.SCALES_B if side else tensor.SCALES_A)) & ((1 << (16 + LANE_BITS)) - 1))


def scale_groups(operation: int, side: int, column: int) -> int:
    """The groups of 16 lanes that have scales in a column, counted from the first: a bit for each."""
    rows = QUARTER * (scale_columns(operation, side) - column)
    if side:
        rows = columns_of(operation) - QUARTER * column
    return GROUPS_OF_QUARTERS if rows <= tensor.GROUP_LANES else 0xFF


def scale_bytes(operation: int) -> int:
    """Bytes of scales that a product reads in each block, not counting copies."""
    rows = QUARTER * scale_columns(operation, 0)
    return int(scales_of(operation) * (rows + columns_of(operation)))


def describe_scales(operation: int, scratch: int) -> None:
    """Set the arguments of a product's function that are the same for all quarters."""
    store64(scratch + tensor.BLOCK_SHIFT, 4 if scales_of(operation) == 4 else 5)
    store64(scratch + tensor.WIDE_SCALES, (load64(operation + tensor.DESCRIPTOR) >> 23) & 1)


def load_scales(ctx: int, operation: int, rank: int, quarter: int, scratch: int) -> None:
    """Load the scales of a quarter's rows, and its copy of the scales of B."""
    for side in range(2):
        column, shift = scale_address(operation, side) & 0xFFFF, 8 * scale_place(operation, side)
        words = memory_of(ctx, rank) + tensor.CELLS + tensor.COLUMN_BYTES * column + 4 * QUARTER * quarter
        if side:
            for row in range(columns_of(operation)):
                word = load32(words + tensor.COLUMN_BYTES * (row // QUARTER) + 4 * (row % QUARTER))
                store32(scratch + tensor.SCALE_WORDS_B + 4 * row, word >> shift)
        else:
            for lane in range(QUARTER):
                word = load32(words + tensor.COLUMN_BYTES * quarter + 4 * lane)
                store32(scratch + tensor.SCALE_WORDS_A + 4 * (QUARTER * quarter + lane), word >> shift)
