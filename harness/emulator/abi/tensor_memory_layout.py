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
OPERATION_BYTES = 192
PRODUCT, COPY, SHIFT, COMMIT = range(1, 5)
"""Kinds of operation."""

F16, TF32, F8F6F4, I8 = range(4)
"""Kinds of product."""
FORM_KIND, FORM_PAIR, FORM_TENSOR_A, FORM_STATIONARY, FORM_SCALE, FORM_DISABLED = 0, 2, 3, 4, 5, 9
"""Bits of the form of a product: its kind, 2 bits; whether two blocks take part; whether A is in tensor memory; whether
it is a `.ws`; the power of two by which D is divided, 4 bits; whether it has lanes that are not written."""

# Scratch memory -------------------------------------------------------------------------------------------------------
(
    COLUMNS_D, WORDS_A, ROWS_B, COLUMN_COUNT, KEEPS, SIGNS, SCALE, FLAG_A, FLAG_B, SATURATES,
) = range(0, 80, 8)  # fmt: skip
"""Arguments of the function of a product: addresses of the first column of D, of the first word of A, and of B;
number of columns; whether D is added to; sign bits to flip in each word of A; the factor of D, as bits of a float32;
type of A and of B, 0 or 1; whether integers saturate."""
LANE_MASKS = 80
"""The lanes to compute, 4 words of 32 lanes."""
SCRATCH_A = 128
"""A: up to 8 words of 32 bits for each lane, in the layout of tensor memory."""
SCRATCH_B = SCRATCH_A + 8 * COLUMN_BYTES
"""B: 32 bytes for each column."""
SCRATCH_ROWS = SCRATCH_B + 32 * 256
"""Rows of A before they are distributed to lanes, 32 bytes each; also what a copy moves."""
SCRATCH_BYTES = SCRATCH_ROWS + 32 * 128 + 4096

# A `tcgen05.ld` or `.st` ----------------------------------------------------------------------------------------------
FORM_SHAPE, FORM_PACKED, FORM_REGISTERS, FORM_HALF = 0, 3, 4, 16
"""Bits of the form of an access: shape, 3 bits; whether a register has two cells; number of registers; distance of the
two halves of `.16x32bx2` in columns."""
WHOLE, OF_64, OF_128, OF_256, TWO_HALVES = range(5)
"""Shapes `.32x32b`, `.16x64b`, `.16x128b`, `.16x256b` and `.16x32bx2`."""
