"""Descriptors of Blackwell's products and copies (PTX ISA 9.7.16.4): shapes, types, and locations of operands.

The lanes and columns of D depend on the shape (PTX ISA 9.7.16.10.5). With M = 128 in one block or 256 in two, each lane
has a row. With M = 64, half of the lanes do. With M = 128 in two blocks, and for `.ws` with M = 64 or 32, the lanes are
divided into two or four parts, each of which has all rows of its block for a part of the columns.

An operand in shared memory is 32 bytes of K for each row of A or column of B. A descriptor gives the location of pieces
of 16 bytes; in two blocks, each has half of the rows of A and half of the columns of B.
"""

from __future__ import annotations

from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import load64

PIECE, ROW = 16, 32
"""Bytes that lie together, and bytes of K."""
COPY_PIECE = 4
"""Columns of tensor memory that a copy fills from 16 bytes."""
F16, TF32, F8F6F4, I8, MXF8F6F4 = tensor.F16, tensor.TF32, tensor.F8F6F4, tensor.I8, tensor.MXF8F6F4
(
    NO_FLAW, SPARSE, TYPES, SHAPE, RESERVED, TRANSPOSED, SHIFTS_B, NARROW_TRANSPOSED, SCALE_PLACE, SCALE_TYPE, LONG_K,
    PAIR_OF_64,
) = range(12)  # fmt: skip
"""What is wrong with an instruction descriptor."""
GOOD, BEYOND, CONSTANT_BITS, SWIZZLE_MODE, ABSOLUTE = range(5)
"""What is wrong with a descriptor of shared memory."""
ROWS_OF_BLOCK, D_COLUMNS, PARTS, LANE_STEP = range(4)
"""Properties of a product's shape: rows in each block; columns of D in tensor memory; parts of lanes; whether only half
of the lanes have rows."""
CP_128X256, CP_4X256, CP_128X128, CP_64X128_02_13, CP_64X128_01_23, CP_32X128 = range(6)
"""Shapes of copies."""


# Instruction descriptors (PTX ISA 9.7.16.4.2) -------------------------------------------------------------------------


def kind_of(operation: int) -> int:
    """The kind of a product."""
    return int(load64(operation + tensor.FORM) & 7)


def rows_of(operation: int) -> int:
    """M."""
    return int(((load64(operation + tensor.DESCRIPTOR) >> 24) & 0x1F) << 4)


def columns_of(operation: int) -> int:
    """N."""
    return int(((load64(operation + tensor.DESCRIPTOR) >> 17) & 0x3F) << 3)


def is_stationary(operation: int) -> bool:
    """Whether it is a `.ws`."""
    return bool((load64(operation + tensor.FORM) >> tensor.FORM_STATIONARY) & 1)


def is_scaled(operation: int) -> bool:
    """Whether a product has block scaling."""
    return load64(operation + tensor.KIND) == tensor.PRODUCT and kind_of(operation) >= MXF8F6F4


def element_bytes(operation: int) -> int:
    """Bytes of an element of A or B, or of what contains it."""
    if load64(operation + tensor.KIND) != tensor.PRODUCT:
        return 1
    kind = kind_of(operation)
    return 2 if kind == F16 else 4 if kind == TF32 else 1


def shape_of(operation: int, wanted: int) -> int:
    """A property of the shape of a product."""
    rows, pair = rows_of(operation), load64(operation + tensor.PAIR)
    of_block = rows >> 1 if pair else rows
    parts = 1
    if is_stationary(operation):
        parts = 128 // of_block
    elif pair and of_block == 64:
        parts = 2
    if wanted == ROWS_OF_BLOCK:
        return int(of_block)
    if wanted == D_COLUMNS:
        return int(columns_of(operation) // parts)
    if wanted == PARTS:
        return int(parts)
    return int(of_block == 64 and parts == 1)


def is_turned(operation: int, side: int) -> int:
    """Whether rows of A, or for `side` 1 columns of B, are contiguous in shared memory instead of steps of K."""
    if load64(operation + tensor.KIND) != tensor.PRODUCT:
        return 0
    return int((load64(operation + tensor.DESCRIPTOR) >> (15 + side)) & 1)


def flaw_of_product(operation: int) -> int:
    """What is wrong with the instruction descriptor; `NO_FLAW` if nothing is."""
    word, kind = load64(operation + tensor.DESCRIPTOR), kind_of(operation)
    if kind >= MXF8F6F4:
        return flaw_of_scaled(operation)
    a, b, d = (word >> 7) & 7, (word >> 10) & 7, (word >> 4) & 3
    if (word >> 2) & 1 or word & 3:
        return SPARSE
    if word & ((1 << 6) | (1 << 23) | (1 << 29)) or (kind != I8 and (word >> 3) & 1) or (kind == I8 and word >> 13 & 3):
        return RESERVED
    if (word >> 30) & 3 and not is_stationary(operation):
        return SHIFTS_B
    good = 0
    if kind == F16:
        good = a == b and ((a == 0 and d < 2) or (a == 1 and d == 1))
    elif kind == TF32:
        good = a == 2 and b == 2 and d == 1
    elif kind == F8F6F4:
        good = element_bits(a) > 0 and element_bits(b) > 0 and d < 2
    else:
        good = a < 2 and b < 2 and d == 2
    if not good:
        return TYPES
    if not is_shape(operation):
        return SHAPE
    return flaw_of_transposition(operation) if kind > TF32 else NO_FLAW


def element_bits(kind: int) -> int:
    """Bits of an element of A or B of `F8F6F4` and `MXF8F6F4`, by its number in the descriptor; 0 if there is none."""
    if kind < 2:
        return 8
    if kind == 3 or kind == 4:
        return 6
    return 4 if kind == 5 else 0


def operand_bits(operation: int, side: int) -> int:
    """Bits of an element of A, or for `side` 1 of B, if the kind of a product has at most 8; otherwise 8."""
    kind = kind_of(operation)
    if kind > MXF8F6F4:
        return 4
    if kind != F8F6F4 and kind != MXF8F6F4:
        return 8
    return element_bits((load64(operation + tensor.DESCRIPTOR) >> (10 if side else 7)) & 7)


def flaw_of_transposition(operation: int) -> int:
    """What is wrong with the transposition of elements of at most 8 bits; `NO_FLAW` if nothing is."""
    word, step = load64(operation + tensor.DESCRIPTOR), 32 if load64(operation + tensor.PAIR) else 16
    for side in range(2):
        if (word >> (15 + side)) & 1 and operand_bits(operation, side) < 8:
            return NARROW_TRANSPOSED
    return TRANSPOSED if (word >> 16) & 1 and columns_of(operation) % step else NO_FLAW


def flaw_of_scaled(operation: int) -> int:
    """What is wrong with the descriptor of a product with block scaling; `NO_FLAW` if nothing is."""
    word, kind = load64(operation + tensor.DESCRIPTOR), kind_of(operation)
    a, b, scales = (word >> 7) & 7, (word >> 10) & 7, scales_of(operation)
    if (word >> 2) & 1:
        return SPARSE
    if word & 3 or word & ((1 << 3) | (1 << 6) | (7 << 24)):
        return RESERVED
    if (kind == MXF8F6F4 and word >> 31) or (kind > MXF8F6F4 and word & (3 << 15)):
        return RESERVED
    if word >> 31:
        return LONG_K
    if kind == MXF8F6F4 and (element_bits(a) == 0 or element_bits(b) == 0):
        return TYPES
    if kind > MXF8F6F4 and (a != 1 or b != 1):
        return TYPES
    if (word >> 23) & 1 == 0 and (kind != tensor.MXF4NVF4 or scales != 4):
        return SCALE_TYPE
    for side in range(2):
        if scale_place(operation, side) % scales:
            return SCALE_PLACE
    if not is_shape(operation):
        return SHAPE
    if load64(operation + tensor.PAIR) and rows_of(operation) == 128:
        return PAIR_OF_64
    return flaw_of_transposition(operation) if kind == MXF8F6F4 else NO_FLAW


def scales_of(operation: int) -> int:
    """The scales of each row of A, and of each column of B."""
    return int((load64(operation + tensor.FORM) >> tensor.FORM_BLOCKS) & 7)


def scale_place(operation: int, side: int) -> int:
    """The byte of a word at which the scales of A begin, or for `side` 1 those of B."""
    return int((load64(operation + tensor.DESCRIPTOR) >> (4 if side else 29)) & 3)


def scale_columns(operation: int, side: int) -> int:
    """Columns of tensor memory that have the scales of A, or for `side` 1 of B: 32 rows in each."""
    return int((columns_of(operation) + 31) // 32 if side else shape_of(operation, ROWS_OF_BLOCK) // 32)


def is_shape(operation: int) -> bool:
    """Whether M and N are those of the table of shapes (PTX ISA 9.7.16.2.1)."""
    rows, columns, pair = rows_of(operation), columns_of(operation), load64(operation + tensor.PAIR)
    if is_stationary(operation):
        return bool((rows == 32 or rows == 64 or rows == 128) and (columns == 64 or columns == 128 or columns == 256))
    if columns < 8 or columns > 256 or (rows != 128 and rows != (256 if pair else 64)):
        return False
    if kind_of(operation) >= MXF8F6F4 and rows == 64:
        return False
    step = 16 if pair else 8
    if kind_of(operation) == I8:
        step = 32 if pair else (16 if columns > 32 else 8)
    return columns % step == 0


def function_of(operation: int, first: int, second: int, third: int) -> int:
    """The function of a product, among those of its kind: by type of A for `F16`, otherwise by type of D."""
    word, kind = load64(operation + tensor.DESCRIPTOR), kind_of(operation)
    if kind == F16 and (word >> 7) & 7:
        return second
    if kind == F16:
        return first if (word >> 4) & 3 else third
    if kind == F8F6F4:
        return first if (word >> 4) & 3 else second
    return first


def lane_groups(operation: int) -> int:
    """The groups of 16 lanes that an operation writes, a bit for each."""
    kind, lane = load64(operation + tensor.KIND), load64(operation + tensor.D) >> tensor.LANE_SHIFT
    if kind == tensor.SHIFT:
        return int(3 << (lane // tensor.GROUP_LANES))
    if kind == tensor.COPY and load64(operation + tensor.FORM) == CP_4X256:
        return int(0x55 << (lane // tensor.GROUP_LANES))
    if kind == tensor.PRODUCT and shape_of(operation, LANE_STEP):
        return int(0x55 << (lane // tensor.GROUP_LANES))
    return 0xFF


# Operands in shared memory --------------------------------------------------------------------------------------------


def mode_of(descriptor: int) -> int:
    """The swizzling mode."""
    return int((descriptor >> 61) & 7)


def swizzle_bits(mode: int) -> int:
    """log2 of the pieces of 16 bytes in a row of the swizzled pattern."""
    return 3 if mode == 1 else (4 - (mode >> 1)) & 3


def flaw_of_descriptor(operation: int, side: int) -> int:
    """What is wrong with the descriptor of A, or for `side` 1 of B; `GOOD` if nothing is."""
    descriptor = load64(operation + (tensor.B if side else tensor.A))
    mode, turned = mode_of(descriptor), is_turned(operation, side)
    if (descriptor >> 46) & 7 != 1 or (descriptor >> 53) & 0xFF:
        return CONSTANT_BITS
    if (descriptor >> 52) & 1:
        return ABSOLUTE
    if mode == 3 or mode == 5 or mode == 7:
        return SWIZZLE_MODE
    atoms_of_32 = turned and element_bytes(operation) == 4
    if (mode == 1) != (atoms_of_32 != 0):
        return SWIZZLE_MODE
    return GOOD


def swizzled(descriptor: int, offset: int) -> int:
    """Location in shared memory of what the pattern without a swizzle has at an offset.

    A base offset is the number of rows of 128 bytes, modulo 8, at which the pattern begins. Without a swizzle it has no
    effect; Triton sets it nevertheless.
    """
    mode = mode_of(descriptor)
    row = (offset >> 7) - ((descriptor >> 49) & 7)
    if mode == 1:
        return offset ^ ((row & 3) << 5)
    return offset ^ ((row & ((1 << swizzle_bits(mode)) - 1)) << 4)


def start_of(descriptor: int) -> int:
    """The start address."""
    return int((descriptor & 0x3FFF) << 4)


def leading_of(descriptor: int) -> int:
    """The leading dimension byte offset."""
    return int(((descriptor >> 16) & 0x3FFF) << 4)


def stride_of(descriptor: int) -> int:
    """The stride dimension byte offset."""
    return int(((descriptor >> 32) & 0x3FFF) << 4)


def straight_piece(descriptor: int, row: int, step: int) -> int:
    """Location of 16 bytes of K of a row of A or column of B, if steps of K are contiguous."""
    mode = mode_of(descriptor)
    apart = PIECE if mode else leading_of(descriptor)
    inside = (row & 7) * (PIECE << swizzle_bits(mode)) + step * apart
    return swizzled(descriptor, start_of(descriptor) + (row >> 3) * stride_of(descriptor) + inside)


def turned_piece(descriptor: int, piece: int, k: int) -> int:
    """Location of 16 bytes of rows of A, or columns of B, of one step of K, if those are contiguous."""
    mode = mode_of(descriptor)
    bits = swizzle_bits(mode)
    offset = start_of(descriptor)
    if mode == 0:
        offset += piece * stride_of(descriptor) + (k & 7) * PIECE + (k >> 3) * leading_of(descriptor)
    else:
        rows = 2 if mode == 1 else 3
        offset += (piece & ((1 << bits) - 1)) * PIECE + (piece >> bits) * leading_of(descriptor)
        offset += (k & ((1 << rows) - 1)) * (PIECE << bits) + (k >> rows) * stride_of(descriptor)
    return swizzled(descriptor, offset)


def rows_to_copy(shape: int) -> int:
    """Rows of shared memory that a copy reads."""
    if shape == CP_4X256:
        return 4
    if shape == CP_32X128:
        return 32
    return 128 if shape <= CP_128X128 else 64
