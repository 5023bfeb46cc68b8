"""Elements of at most 8 bits: how products are told their types, and how 6 and 4 bits are unpacked.

In shared memory, 16 elements of 6 or 4 bits are packed in the first 12 or 8 of 16 bytes (PTX ISA 9.7.16.10.4.4). In
tensor memory each has a byte: 6 bits are its lower bits, 4 bits are in its middle, bits 2 to 5. `tcgen05.cp` can unpack
them on the way. The PTX ISA shows the bytes in drawings only; CUTLASS describes the same bytes for `mma` of sm_120. The
products of `.kind::mxf4` have elements of 4 bits without padding instead, in both memories.
"""

from __future__ import annotations

from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.memory.tensor_memory.descriptors import I8, MXF8F6F4, PIECE, ROW, kind_of, operand_bits

E5M2, E3M2 = 1, 4
"""Numbers of types in an instruction descriptor."""
ONES = -1
BYTES_OF_WORD = 8


def flags_of(operation: int, side: int) -> int:
    """The type of A, or for `side` 1 of B, for the function of a product."""
    number = (load64(operation + tensor.DESCRIPTOR) >> (10 if side else 7)) & 7
    if kind_of(operation) == I8:
        return int(number & 1)
    bits = operand_bits(operation, side)
    if bits == 8:
        return int((5 if number == E5M2 else 4) | (0xFF << tensor.FLAG_MASK))
    exponent = 3 if bits == 6 and number == E3M2 else 2
    shift = 4 if kind_of(operation) > MXF8F6F4 else 2
    return int(exponent | (shift << tensor.FLAG_SHIFT) | (((0xFF << (8 - bits)) & 0xFF) << tensor.FLAG_MASK))


def sign_bits(operation: int) -> int:
    """The sign bits in each word of A, for types of at most 8 bits."""
    if kind_of(operation) > MXF8F6F4:
        return 0x88888888
    return 0x80808080 if operand_bits(operation, 0) == 8 else 0x20202020


def padded_bits(operation: int, side: int) -> int:
    """Bits of the elements of A, or for `side` 1 of B, that have padding in shared memory; 0 if they have none.

    Also those that a copy unpacks, for either side.
    """
    if load64(operation + tensor.KIND) == tensor.COPY:
        return int(load64(operation + tensor.DESCRIPTOR))
    bits = operand_bits(operation, side)
    return bits if bits < 8 and kind_of(operation) <= MXF8F6F4 else 0


def used_bytes(operation: int, side: int) -> int:
    """Bytes of 16 in shared memory that have elements of A, or for `side` 1 of B, and no padding."""
    bits = padded_bits(operation, side)
    return 2 * bits if bits else PIECE


def unpack_rows(rows: int, count: int, steps: int, bits: int) -> None:
    """Unpack elements of 6 or 4 bits in rows of so many pieces of 16 bytes: each gets a byte, as in tensor memory."""
    for row in range(count):
        for step in range(steps):
            unpack_piece(rows + ROW * row + PIECE * step, bits)


def unpack_piece(place: int, bits: int) -> None:
    """Unpack 16 elements of 6 or 4 bits."""
    low, high = load64(place), load64(place + 8)
    store64(place, spread(low, bits))
    # The second half begins at bit 48, or 32.
    rest = (low >> 8 * bits) & ~(ONES << (64 - 8 * bits))
    store64(place + 8, spread(rest | (high << (64 - 8 * bits)), bits))


def spread(packed: int, bits: int) -> int:
    """The lowest 8 elements of 6 or 4 bits, each in a byte."""
    word = 0
    for element in range(BYTES_OF_WORD):
        pattern = (packed >> (bits * element)) & ((1 << bits) - 1)
        word |= (pattern << 2 if bits == 4 else pattern) << (8 * element)
    return word
