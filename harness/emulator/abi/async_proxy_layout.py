"""What asynchronous instructions have under way: where Python and the runtime keep it, in bytes.

A worker has one such state: the bulk copies of its blocks, a ring in the order of their issue, and for each warp the
`wgmma` products that no wait has covered.
"""

from __future__ import annotations

# The state ------------------------------------------------------------------------------------------------------------
HEAD, TAIL, COPIES, GROUPS, QUEUES, SCRATCH = range(0, 48, 8)
"""Numbers of the oldest bulk copy and of the next; addresses of the ring, of the number of bulk groups that each thread
has committed (8 bytes), of the warps' queues of products, and of what one product needs."""
HELD = 48
"""Address of the places, in a warp's state, of the registers that may hold tickets, 4 bytes each, after their count."""
EXPECTED_BY = 56
"""Address of what last said how many bytes are to come, for each 8 bytes of shared memory: its instruction plus 1, 4
bytes; 0 where nothing did."""
CAPACITY = 64
"""How many bulk copies the ring takes, a power of two."""
STATE_BYTES = 72
SCRATCH_BYTES = 128 * 8
COPY_CAPACITY = 1 << 14
"""Bulk copies of each block, a power of two: more than its shared memory has pieces of 16 bytes."""

# A bulk copy ----------------------------------------------------------------------------------------------------------
(
    IN_FLIGHT, STORES, RANK, SHARED, BYTES, MAP, BARRIER, THREAD, GROUP, SITE, ADDRESS, ISSUED, REDUCTION, SOURCE,
    COORDINATES,
) = range(0, 120, 8)  # fmt: skip
"""Whether it has not landed; whether it goes to global memory; dimensions, 0 where it is a plain run of bytes; place in
shared memory (see `cluster_memory.py`); bytes there; host address of the tensor map; place of the mbarrier; thread of
the cluster; its bulk group; instruction; address in global memory, or place in another block's shared memory; when, for
the sanitizer; address of the function that combines what is there with what comes, 0 where it is written over; where
it comes from, or goes to, see `FROM_*`; coordinates of the box, 8 bytes each, or the value."""
FROM_GLOBAL, FROM_SHARED, FROM_REGISTERS = range(3)
"""A copy between shared and global memory; out of one block's shared memory into another's; the value of an `st.async`
or `red.async`."""
# How a copy is issued, as generated code tells it.
TO_GLOBAL, TO_OTHER_BLOCK, MULTICAST, OWN_BLOCK = 1, 2, 4, 8
"""It goes to global memory; out of the block's shared memory to another block's; from global memory to several blocks;
to the block's own shared memory and nowhere else."""
REDUCTION_ROW = 256
"""Bytes of the row of elements that such a function takes; it has two."""
COPY_BYTES = COORDINATES + 8 * 5

# Products of one warp -------------------------------------------------------------------------------------------------
FIRST, NEXT, COMMITTED, CURSOR = range(0, 32, 8)
"""Numbers of the oldest product under way and of the next; groups that were committed; where the search for a free
ticket begins."""
TICKETS = 1 << 13
"""How many accumulators of a warp may be under way; a power of two."""
PRODUCT_CAPACITY = 512
OWNERS = 64
"""Per ticket, 4 bytes: place of the register that it was given to."""
SOURCES = OWNERS + 4 * TICKETS
"""Per ticket, 4 bytes: the ticket whose value it begins with, plus 1; 0 where its row holds that value itself."""
LAST = SOURCES + 4 * TICKETS
"""Per ticket, 8 bytes: number of the last product that adds to it, plus 1."""
ROWS = LAST + 8 * TICKETS
"""Per ticket, 4 bytes for each lane: the accumulator."""
PRODUCTS = ROWS + 128 * TICKETS

# A product: one wgmma.mma_async of one warp ---------------------------------------------------------------------------
FUNCTION, SHAPE, DESCRIPTOR_A, DESCRIPTOR_B, PRODUCT_GROUP, PRODUCT_SITE, PRODUCT_ISSUED = range(0, 56, 8)
"""Address of the function that multiplies one slice of 8 columns; see `SHAPE_*`; descriptors; group; instruction; when,
for the sanitizer."""
FRAGMENT = 64
"""Four registers of A, 128 bytes each, where it does not come from shared memory."""
ACCUMULATORS = FRAGMENT + 4 * 128
"""The ticket of each register of D, 4 bytes."""
PRODUCT_BYTES = ACCUMULATORS + 4 * 128
QUEUE_BYTES = PRODUCTS + PRODUCT_BYTES * PRODUCT_CAPACITY

SHAPE_REGISTERS = 0
"""Bits 0 to 7: registers of D."""
SHAPE_SLICE = 8
"""Bits 8 to 11: registers of D in a slice of 8 columns, 2 or 4."""
SHAPE_SHARED_A = 12
"""Whether A comes from shared memory."""
SHAPE_TURNED_A, SHAPE_TURNED_B = 13, 14
"""Whether rows of A, or columns of B, lie side by side in memory, and not steps of K."""
SHAPE_SIZE = 16
"""Bits 16 to 23: a number, not 0, that products of one shape have in common."""
SHAPE_SIGNS = 32
"""Bits 32 to 63: what is flipped in each register of A."""

# A ticket as a register holds it: NaN, as float32 and as two float16 -------------------------------------------------
TICKET = 0x7FE07E00
TICKET_MASK = 0xFFF0FE00
TICKET_LOW_BITS = 9
"""Of its number; the others are in bits 16 to 19."""

# Marks, which the sanitizer has of registers of products, in the warp's state ---------------------------------------
NO_MARK = 0xFFFFFFFF
"""As all of a warp's state is when a block begins."""
MARKS = 64
"""The first word is 0 once there was a `wgmma.fence`. Behind these bytes are three lists, with 4 bytes per register
of a product; those are the first of the warp's registers. Who has written it since the last fence, and who has read it:
an instruction, see below; and the number of the last product that has it as A, plus 1."""
MARK_SITE_BITS = 23
"""Of a mark: its instruction. `SHAPE_SIZE` of a product that adds to the register is in the bits above, 0 of others."""

# An mbarrier, 64 bits in shared memory --------------------------------------------------------------------------------
MBARRIER_BYTES = 8
COUNT_BITS = 20
"""Bits 0 to 19: arrivals that this phase still waits for; bits 20 to 39: those that each phase waits for."""
BYTES_AT = 40
"""Bits 40 to 60: bytes that this phase still waits for, plus `NO_BYTES`."""
NO_BYTES = 1 << 20
PHASE_AT = 61
VALID_AT = 62
"""Bits 62 and 63: 1 where it has been initialised. Neither zeros nor the NaN patterns of fresh memory are."""

# A tensor map, 128 bytes ----------------------------------------------------------------------------------------------
MAP_BYTES = 128
MAGIC = 0x70616D726F736E74
MAP_MAGIC, MAP_ADDRESS, MAP_RANK, MAP_ELEMENT, MAP_SWIZZLE = range(0, 40, 8)
"""Address of its first element; dimensions; bytes of an element; log2 of the swizzle's span in 16 bytes, 0 for none."""
MAP_EXTENTS = 40
"""Of the tensor, 4 bytes each, the innermost first."""
MAP_BOX = 60
"""Of a box, 4 bytes each."""
MAP_STRIDES = 80
"""In bytes, of all dimensions but the innermost, 8 bytes each."""
MAP_TYPE = 112
"""Of its elements: a number in `MAP_TYPES`, 8 bytes."""
MAP_TYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "uint8")
