"""Memory layout of the sanitizer: the slots of its state, and the words of its shadow cells, in bytes.

Time is the number of requests and synchronizations so far in this launch. One worker runs all blocks, so a time
identifies the block, and a time from before the current block began belongs to another block.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine

SLOTS = (
    "TIME",
    "BLOCK_START",  # time at which the current block began
    "FLOOR",  # time up to which all threads of the block know its actions: its last full barrier
    "WARPS",
    "SHARED_CELLS",
    "SHARED_SHIFT",  # log2 of the bytes of a cell
    "SHARED_SYNC",  # per cell: the clock released here, by atomics or other strong accesses
    "PHASE_SYNC",  # per cell: the clock released by the current phase of an mbarrier
    "GLOBAL_SHIFT",
    "BUFFERS",  # per buffer: its cells, its map of written bytes
    "VARIABLES",  # per variable of the module: its cells, and 0 for the map, since all are initialized
    "LOCAL_MAP",  # map of written bytes of local memory, in its layout
    "LOCAL_BYTES",
    "CLOCKS",  # [warp]: what all its lanes know
    "FEW_CLOCKS",  # [warp]: what only some of its lanes know, until the next __syncwarp
    "FEW_LANES",  # [warp]: mask of these lanes
    "RELEASED",  # [warp][lane], followed by the latest of all lanes: time of its last release
    "LANE_CLOCKS",  # [warp][lane][other lane]: knowledge within a warp, for a partial __syncwarp
    "LANE_SYNC",  # [warp]: time of its last such partial __syncwarp
    "OWN_PREFIX",  # [warp]: time up to which all actions in the block are known, through global memory
    "OTHER_PREFIX",  # [warp]: time up to which other blocks' actions are known
    "FENCED",  # [warp]: time of its last GPU-wide fence
    "BARRIER_CLOCKS",  # [barrier]: clock, OWN_PREFIX, OTHER_PREFIX, FENCED of the arrived warps
    "CLUSTER_FENCED",  # [warp]: time of its last fence of at least cluster scope
    "CLUSTER_BLOCKS",
    "BLOCK_WARPS",  # difference of warp numbers between consecutive blocks
    "SHARED_PITCH",  # stride of the blocks' shared memory
    "REMOTE",  # [block][warp]: its last access to that other block's shared memory, see `REMOTE_BYTES`
    "KNOWN_AT_END",  # [block]: what its returned warps knew
    "MET",  # [block]: time of its last cluster barrier
    "FINDINGS",
    "FINDING_COUNT",
    "LOST",  # number of findings that did not fit
    "BLOCK_LOG",  # (time, block) at each block's beginning
    "BLOCK_COUNT",
    "SHARED_ARRAYS",  # per variable in shared memory: where it begins, and ends
)
SLOT = {name: 8 * number for number, name in enumerate(SLOTS)}

# A clock has three words for each warp: the time up to which the actions of all its lanes are known; the time up to
# which those of some lanes are known; and the mask of these lanes. The same three words follow for what lies before a
# known proxy fence. See `sanitizer/clock.py`.
CLOCK_WORDS = 6
RELEASED_WORDS = machine.LANES + 1

# A shadow cell: the last writer of this piece of memory and its readers since. Each entry is a time and an `info` word:
# lanes in bits 32 to 63, instruction in bits 11 to 31, warpgroup in bit 10, asynchronous proxy in bit 9, strong in bit
# 8, and the warp's number in its cluster in bits 0 to 7.
REMOTE_BYTES = 40
"""Fields: time, instruction, thread, address, size."""
ENTRY_BYTES = 16
STRONG_WRITER = ENTRY_BYTES
"""Offset of the last strong write. The plain store at offset 0 is stored separately, so that an atomic does not hide
it."""
READERS = 2 * ENTRY_BYTES
"""Offset of the readers. Shared memory has one entry per warp."""
GLOBAL_READERS = 2
"""Number of reader entries for global memory: two warps of the current block, so that at least one of them differs from
the next writer."""
EARLIER_READER = READERS + GLOBAL_READERS * ENTRY_BYTES
"""Offset of the last reader in another block."""
GLOBAL_SYNC = EARLIER_READER + ENTRY_BYTES
"""Offset of two times: that of the last release here, and the time of the last fence of the releasing threads before
it."""
GLOBAL_CELL_BYTES = GLOBAL_SYNC + 16
WARP_MASK = 0xFF
STRONG_BIT = 1 << 8
PROXY_BIT = 1 << 9
"""Set if a copy wrote the cell instead of a thread: the asynchronous proxy sees it without a fence."""
WARPGROUP_BIT = 1 << 10
"""Set if a product read the cell, for the four warps from this one on: knowing of one warp's completion implies knowing
of all."""
SITE_AT, SITE_MASK = 11, 0x1FFFFF
PENDING = 1 << 62
"""Added to the time of an access that has not completed, such as a copy in flight."""

ARRIVING, COMPLETE = range(2)
"""IDs of the cluster barrier: for arriving warps, and for those that resume when all have arrived. IDs of block
barriers follow."""
CLUSTER_BARRIERS = 2

NEVER_WRITTEN = 0xFF
"""In a map of bytes: not yet written."""
GIVEN = 0x01
"""In a map of bytes: belongs to an input, which kernels may not write."""

# Kinds of access, as passed by generated code.
LOAD, STORE, ATOMIC = 0, 1, 2
STRONG = 4
"""volatile, relaxed, acquire, release, or atomic: two strong accesses do not race (PTX ISA, memory consistency
model)."""
RELEASES = 8
"""The access releases without a preceding fence."""
ACQUIRES = 16
"""The access reads and is strong, so it acquires what was released there. A `red` does not read."""
OVERWRITES = 32
"""An exchange: the value it stores does not depend on the previous one."""

KINDS = (
    "", "uninitialised read", "RAW race", "WAR race", "WAW race", "input written", "undefined shuffle", "masks differ",
    "missing proxy fence", "accumulator read early", "register written early", "missing wgmma fence",
    "block not started", "early exit", "store not awaited", "undefined register",
    "outside its array",
)  # fmt: skip
(
    UNINITIALISED, RAW, WAR, WAW, INPUT_WRITTEN, UNDEFINED_SHUFFLE, MASKS_DIFFER, MISSING_PROXY_FENCE,
    EARLY_ACCUMULATOR, EARLY_REGISTER, MISSING_WGMMA_FENCE, NOT_STARTED, EARLY_EXIT,
    NOT_AWAITED, UNDEFINED_REGISTER, OUTSIDE_ITS_ARRAY,
) = range(1, 17)  # fmt: skip
FINDING_WORDS = 10
"""Fields of a finding: kind, instruction, earlier instruction, count, time, thread, earlier time, earlier thread,
address, size. If no memory is accessed, address and size contain: for an undefined shuffle, mask and source lane; for
mask mismatches, both masks; for an undefined register, its role and 0."""
ROLE_ADDRESS, ROLE_VALUE, ROLE_PREDICATE, ROLE_PARAMETER = range(4)
"""How an undefined register was used."""
FINDING_LIMIT = 256
