"""Layout, in bytes, of tensor memory and of the operations on it, shared by Python and the runtime.

A worker has one such state for the blocks that it runs together. It exists only for kernels with `tcgen05`.
"""

from __future__ import annotations

LANES, COLUMNS = 128, 512
"""Rows and columns of a block's tensor memory, in cells of 32 bits (PTX ISA 9.7.16.1)."""
LANE_SHIFT = 16
"""From this bit on, an address contains the lane; the bits below contain the column."""
COLUMN_BYTES = 4 * LANES
GROUP_LANES = 16
"""Lanes for which the pending accesses of a column are recorded together."""
GROUPS = LANES // GROUP_LANES
UNIT_COLUMNS = 32
"""Tensor memory is allocated in units of so many columns."""
UNITS = COLUMNS // UNIT_COLUMNS

# The tensor memory of one block ---------------------------------------------------------------------------------------
CELLS = 0
"""The cells of each column, lane by lane, 4 bytes each."""
PENDING = CELLS + COLUMNS * COLUMN_BYTES
"""Per column and group of lanes, 4 bytes: number of products in flight that write there, and from bit `OTHERS` on, of
copies and shifts."""
OTHERS = 16
STORED = PENDING + 4 * COLUMNS * GROUPS
"""Per column and group of lanes, 8 bytes: the last `tcgen05.st` there, see `ACCESS_*`."""
LOADED = STORED + 8 * COLUMNS * GROUPS
"""The same for `tcgen05.ld`."""
OWNERS = LOADED + 8 * COLUMNS * GROUPS
"""Per unit, 8 bytes: 1 + the first unit of its allocation; 0 if it is free."""
SIZES = OWNERS + 8 * UNITS
"""Per unit, 8 bytes: columns of the allocation that begins here, else 0."""
SITES = SIZES + 8 * UNITS
"""Per unit, 8 bytes: the instruction that allocated what begins here."""
RELINQUISHED = SITES + 8 * UNITS
"""1 + the instruction by which the block gave up its right to allocate; 0 while it has it."""
BLOCK_BYTES = -(-(RELINQUISHED + 8) // 4096) * 4096

ACCESS_SITE, ACCESS_WARP = 32, 52
"""The word of an access: how often its warp has waited, from these bits on its instruction, and 1 + its warp's number.
It is pending until its warp waits once more."""

# The state ------------------------------------------------------------------------------------------------------------
MEMORIES, OPERATIONS, HEAD, TAIL, LAND, AWAITED, SCRATCH, WAITS, SHADOW = range(0, 72, 8)
"""Addresses of the blocks' memories and of the ring of operations; numbers of the oldest operation and of the next;
address of the function that completes what an mbarrier waits for, and the place of that mbarrier; address of scratch
memory; address of the number of waits of each warp, 8 bytes for loads and 8 for stores; address of the sanitizer's
shadow cells of each block, one per column and group of lanes."""
STATE_BYTES = 72
CAPACITY = 1 << 12
"""Operations that the ring holds, a power of two."""

# An operation in flight -----------------------------------------------------------------------------------------------
(
    KIND, IN_FLIGHT, THREAD, PAIR, RANK, D, A, B, DESCRIPTOR, FORM, ADDS, SITE, FUNCTION, BARRIER, ISSUED, TAINTED,
) = range(0, 128, 8)  # fmt: skip
"""Fields: kind, see below; whether it is in flight; thread within the cluster; whether two blocks take part; rank of
the block that issued it; address of D in tensor memory; address or descriptor of A; descriptor of B; instruction
descriptor; see `FORM_*`; whether D is added to; instruction; address of the function of the product; place of the
mbarrier of a commit; time of issue, for the sanitizer; whether its operands were not complete when it was issued."""
DISABLED = 128
"""Lanes of D that are not written: a bit for each lane of the first block, then of the second."""
SCALES_A, SCALES_B = 160, 168
"""Addresses of the scales of A and of B in tensor memory, for products with block scaling."""
OPERATION_BYTES = 192
PRODUCT, COPY, SHIFT, COMMIT = range(1, 5)
"""Kinds of operation."""

F16, TF32, F8F6F4, I8, MXF8F6F4, MXF4, MXF4NVF4 = range(7)
"""Kinds of product. From `MXF8F6F4` on they have block scaling."""
FORM_KIND, FORM_PAIR, FORM_TENSOR_A, FORM_STATIONARY, FORM_SCALE, FORM_DISABLED, FORM_BLOCKS = 0, 3, 4, 5, 6, 10, 11
"""Bits of the form of a product: its kind, 3 bits; whether two blocks take part; whether A is in tensor memory; whether
it is a `.ws`; the power of two by which D is divided, 4 bits; whether it has lanes that are not written; the scales of
each row of A, 3 bits."""

# Scratch memory -------------------------------------------------------------------------------------------------------
(
    COLUMNS_D, WORDS_A, ROWS_B, COLUMN_COUNT, KEEPS, SIGNS, SCALE, FLAG_A, FLAG_B, SATURATES, BLOCK_SHIFT, WIDE_SCALES,
) = range(0, 96, 8)  # fmt: skip
"""Arguments of the function of a product: addresses of the first column of D, of the first word of A, and of B;
number of columns; whether D is added to; sign bits to flip in each word of A; the factor of D, as bits of a float32;
type of A and of B: whether integers have a sign, or see `FLAG_*`; whether integers saturate; log2 of the elements that
share a scale; whether scales are ue8m0, not ue4m3."""
FLAG_EXPONENT, FLAG_SHIFT, FLAG_MASK = 0, 8, 16
"""Bits of a type of at most 8 bits: bits of its exponent; how far left its sign has to be shifted to be bit 7; mask of
the element after this shift."""
LANE_MASKS = 96
"""The lanes to compute, 4 words of 32 lanes."""
SCRATCH_A = 128
"""A: up to 8 words of 32 bits for each lane, in the layout of tensor memory."""
SCRATCH_B = SCRATCH_A + 8 * COLUMN_BYTES
"""B: 32 bytes for each column."""
SCRATCH_ROWS = SCRATCH_B + 32 * 256
"""Rows of A before they are distributed to lanes, 32 bytes each; also what a copy moves."""
SCALE_WORDS_A = SCRATCH_ROWS + 32 * 128 + 4096
"""The scales of the row of each lane, 4 bytes each."""
SCALE_WORDS_B = SCALE_WORDS_A + COLUMN_BYTES
"""The scales of each column of B, 4 bytes each."""
SCRATCH_BYTES = SCALE_WORDS_B + 4 * 256

# A `tcgen05.ld` or `.st` ----------------------------------------------------------------------------------------------
FORM_SHAPE, FORM_PACKED, FORM_REGISTERS, FORM_HALF = 0, 3, 4, 16
"""Bits of the form of an access: shape, 3 bits; whether a register has two cells; number of registers; distance of the
two halves of `.16x32bx2` in columns."""
WHOLE, OF_64, OF_128, OF_256, TWO_HALVES = range(5)
"""Shapes `.32x32b`, `.16x64b`, `.16x128b`, `.16x256b` and `.16x32bx2`."""
