"""Memory layout, in bytes, of asynchronous operations in flight, shared by Python and the runtime.

Each worker has one such state: a ring of its blocks' bulk copies in order of issue, and for each warp the `wgmma`
products that no wait has covered.
"""

from __future__ import annotations

# The state ------------------------------------------------------------------------------------------------------------
HEAD, TAIL, COPIES, GROUPS, QUEUES, SCRATCH = range(0, 48, 8)
"""Numbers of the oldest bulk copy and of the next; addresses of the ring, of the number of bulk groups that each thread
has committed (8 bytes), of the warps' queues of products, and of scratch memory for one product."""
HELD = 48
"""Address of the offsets, in a warp's state, of the registers that may hold tickets, 4 bytes each, preceded by their
count."""
EXPECTED_BY = 56
"""Address of a table with 4 bytes for each 8 bytes of shared memory: 1 + the instruction that last set the expected
bytes of an mbarrier there; 0 if none did."""
CAPACITY = 64
"""Bulk copies that the ring holds, a power of two."""
TENSOR_MEMORY = 72
"""Address of the state of tensor memory, see `tensor_memory_layout.py`; 0 in kernels without `tcgen05`."""
STATE_BYTES = 80
SCRATCH_BYTES = 128 * 8
COPY_CAPACITY = 1 << 14
"""Maximum bulk copies of each block, a power of two: more than its shared memory has pieces of 16 bytes."""

# A bulk copy ----------------------------------------------------------------------------------------------------------
(
    IN_FLIGHT, STORES, RANK, SHARED, BYTES, MAP, BARRIER, THREAD, GROUP, SITE, ADDRESS, ISSUED, REDUCTION, SOURCE,
    COORDINATES,
) = range(0, 120, 8)  # fmt: skip
"""Fields of a bulk copy: whether it is in flight; whether it writes global memory; number of dimensions, 0 for a
contiguous copy; place in shared memory (see `cluster_memory.py`); bytes there; host address of the tensor map; place of
the mbarrier; thread within the cluster; its bulk group; instruction; address in global memory, or place in another
block's shared memory; time of issue, for the sanitizer; address of the reduction function, 0 for a plain copy; kind of
source, see `FROM_*`; coordinates of the box, 8 bytes each, or the value."""
FROM_GLOBAL, FROM_SHARED, FROM_REGISTERS, FROM_LAUNCH = range(4)
"""A copy between shared and global memory; a copy from one block's shared memory to another's; the value of an
`st.async` or `red.async`; the response to a `clusterlaunchcontrol.try_cancel`."""
# Flags of how a copy is issued, passed by generated code.
TO_GLOBAL, TO_OTHER_BLOCK, MULTICAST, OWN_BLOCK, TO_PAIR = 1, 2, 4, 8, 16
"""Flags of the direction: to global memory; from the block's shared memory to another block's; from global memory to
several blocks; to the block's own shared memory only; with the mbarrier in either block of the pair that contains the
destination (`.cta_group::2`)."""
REDUCTION_ROW = 256
"""Bytes of one row of elements that a reduction function takes; it takes two rows."""
MAP_BYTES = 128
MAP_COPY = COORDINATES + 8 * 5
"""The tensor map as of the copy's issue, after which a kernel may modify it."""
COPY_BYTES = MAP_COPY + MAP_BYTES

# Products of one warp -------------------------------------------------------------------------------------------------
FIRST, NEXT, COMMITTED, CURSOR = range(0, 32, 8)
"""Numbers of the oldest product in flight and of the next; number of committed groups; start of the search for a free
ticket."""
TICKETS = 1 << 13
"""Maximum accumulators of a warp in flight; a power of two."""
PRODUCT_CAPACITY = 512
OWNERS = 64
"""Per ticket, 4 bytes: place of the register that the ticket was issued for."""
SOURCES = OWNERS + 4 * TICKETS
"""Per ticket, 4 bytes: 1 + the ticket with its initial value; 0 if its row holds that value itself."""
LAST = SOURCES + 4 * TICKETS
"""Per ticket, 8 bytes: 1 + the number of the last product that adds to it."""
ROWS = LAST + 8 * TICKETS
"""Per ticket, 4 bytes for each lane: the accumulator."""
PRODUCTS = ROWS + 128 * TICKETS

# A product: one wgmma.mma_async of one warp ---------------------------------------------------------------------------
FUNCTION, SHAPE, DESCRIPTOR_A, DESCRIPTOR_B, PRODUCT_GROUP, PRODUCT_SITE, PRODUCT_ISSUED = range(0, 56, 8)
"""Fields of a product: address of the function for one slice of 8 columns; shape, see `SHAPE_*`; descriptors; group;
instruction; time of issue, for the sanitizer."""
FRAGMENT = 64
"""Four registers of A, 128 bytes each, if A is in registers."""
ACCUMULATORS = FRAGMENT + 4 * 128
"""The ticket of each register of D, 4 bytes each."""
PRODUCT_BYTES = ACCUMULATORS + 4 * 128
QUEUE_BYTES = PRODUCTS + PRODUCT_BYTES * PRODUCT_CAPACITY

SHAPE_REGISTERS = 0
"""Bits 0 to 7: number of registers of D."""
SHAPE_SLICE = 8
"""Bits 8 to 11: number of registers of D in a slice of 8 columns, 2 or 4."""
SHAPE_SHARED_A = 12
"""Bit that is set if A is in shared memory."""
SHAPE_TURNED_A, SHAPE_TURNED_B = 13, 14
"""Bits that are set if A, or B, is transposed: rows of A, or columns of B, are contiguous in memory instead of steps of
K."""
SHAPE_SIZE = 16
"""Bits 16 to 23: a nonzero ID of the product's shape."""
SHAPE_SIGNS = 32
"""Bits 32 to 63: sign bits to flip in each register of A."""

# A ticket as a register holds it: NaN, as float32 and as two float16 -------------------------------------------------
TICKET = 0x7FE07E00
TICKET_MASK = 0xFFF0FE00
TICKET_LOW_BITS = 9
"""Number of low bits of a ticket in a register; the other bits are in bits 16 to 19."""

# Marks, which the sanitizer has of registers of products, in the warp's state ---------------------------------------
NO_MARK = 0xFFFFFFFF
"""The value of all words when a block begins."""
MARKS = 64
"""Offset of the marks. The first word is 0 once a `wgmma.fence` was executed. It is followed by three lists with 4
bytes per register of a product; those are the first of the warp's registers. The lists contain the instruction that
wrote the register since the last fence, the one that read it (see below), and 1 + the number of the last product with
the register as A."""
MARK_SITE_BITS = 23
"""Bits of a mark for its instruction. The bits above contain `SHAPE_SIZE` if it is a product that adds to the register,
else 0."""

# An mbarrier, 64 bits in shared memory --------------------------------------------------------------------------------
MBARRIER_BYTES = 8
COUNT_BITS = 20
"""Bits 0 to 19: pending arrivals of this phase; bits 20 to 39: expected arrivals per phase."""
BYTES_AT = 40
"""Bits 40 to 60: pending bytes of this phase, plus `NO_BYTES`."""
NO_BYTES = 1 << 20
PHASE_AT = 61
VALID_AT = 62
"""Bits 62 and 63: 1 if initialized. Neither zeros nor the NaN pattern of fresh memory has this value."""

# A tensor map, 128 bytes ----------------------------------------------------------------------------------------------
MAGIC = 0x70616D726F736E74
MAP_MAGIC, MAP_ADDRESS, MAP_RANK, MAP_ELEMENT, MAP_SWIZZLE = range(0, 40, 8)
"""Magic number; address of the first element; number of dimensions; bits per element in shared memory; log2 of the
swizzle's span in units of 16 bytes, 0 for none."""
MAP_EXTENTS = 40
"""Extents of the tensor, 4 bytes each, innermost first."""
MAP_BOX = 60
"""Extents of a box, 4 bytes each, innermost first."""
MAP_STRIDES = 80
"""Strides in bytes of all dimensions but the innermost, 8 bytes each."""
MAP_TYPE = 112
"""Type of the elements: an index into `MAP_TYPES`, 4 bytes."""
MAP_FILL = 116
"""What is loaded outside the tensor, 4 bytes: 0 for zeros, 1 for NaN."""
MAP_OUTER = 120
"""Bits per element in global memory, 4 bytes; fewer than in shared memory if there is padding."""
MAP_DIMENSIONS = 5
MODIFIED = 0x7061646F6D736E74
"""The magic number of a map that a kernel has modified, whose fields are checked at its use."""
_TYPE_SIZES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2,
    "uint32": 4, "uint64": 8,
}  # fmt: skip
TYPE_BYTES = sum(size << 4 * number for number, size in enumerate(_TYPE_SIZES.values()))
"""Bytes of each of these types, in 4 bits."""
MAP_TYPES = (*_TYPE_SIZES, "b4x16", "b4x16_p64", "b6x16_p32")
"""All types. The last three are 16 elements of 4 or 6 bits (PTX ISA 5.5.1.1)."""
PACKED, PADDED_4, PADDED_6 = range(len(_TYPE_SIZES), len(_TYPE_SIZES) + 3)
"""Numbers of these: as many bits in shared memory, or a byte."""
PADDED_BOX = 128
"""Elements of a box's row, and a divisor of its first coordinate and of the tensor's rows, if there is padding."""
MAP_FIELDS = (
    "global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype",
    "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode",
)  # fmt: skip
"""Fields that `tensormap.replace` sets."""
