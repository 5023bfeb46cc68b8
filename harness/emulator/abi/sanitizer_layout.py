"""Memory layout of the sanitizer: the slots of its state, and the words of its shadow cells, in bytes.

Time is the number of requests and synchronizations so far in this launch. One worker runs all blocks, so a time
identifies the block, and a time from before the current block began belongs to another block.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine

SLOTS = (
    "TIME",
    "BLOCK_START",  # time at which the running block began
    "FLOOR",  # all threads of the block know what the block did up to here: its last barrier of all warps
    "WARPS",
    "SHARED_CELLS",
    "SHARED_SHIFT",  # log2 of the bytes of a cell
    "SHARED_SYNC",  # per cell: the clock that was released here, by atomics or other strong accesses
    "PHASE_SYNC",  # the same of an mbarrier's phase that is not over
    "GLOBAL_SHIFT",
    "BUFFERS",  # per buffer: its cells, its map of written bytes
    "VARIABLES",  # the same per variable of the module; the map is 0, they are all initialised
    "LOCAL_MAP",  # written bytes of local memory, laid out as that is
    "LOCAL_BYTES",
    "CLOCKS",  # [warp]: what all its lanes know
    "FEW_CLOCKS",  # [warp]: what some of its lanes have heard besides, until they tell the others by __syncwarp
    "FEW_LANES",  # [warp]: these lanes
    "RELEASED",  # [warp][lane], and behind them the latest of all lanes: when it last released what it knew
    "LANE_CLOCKS",  # [warp][lane][other lane]: the same inside a warp, for __syncwarp on part of it
    "LANE_SYNC",  # [warp]: time of its last such partial __syncwarp
    "OWN_PREFIX",  # [warp]: what anyone in the block did up to this time is known, through global memory
    "OTHER_PREFIX",  # [warp]: what other blocks did up to this time is known
    "FENCED",  # [warp]: time of its last fence for the whole GPU
    "BARRIER_CLOCKS",  # [barrier]: clock, OWN_PREFIX, OTHER_PREFIX, FENCED: of those that have arrived
    "CLUSTER_FENCED",  # [warp]: time of its last fence for at least its cluster
    "CLUSTER_BLOCKS",
    "BLOCK_WARPS",  # how far apart the numbers of the warps of two blocks are
    "SHARED_PITCH",  # how far apart two blocks' shared memory is
    "REMOTE",  # [block][warp]: its last access to that other block's shared memory, see `REMOTE_BYTES`
    "KNOWN_AT_END",  # [block]: what those of its warps knew that have returned
    "MET",  # [block]: when it has last met the others at the cluster's barrier
    "FINDINGS",
    "FINDING_COUNT",
    "LOST",  # findings for which there was no room
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
SHARED_ADDRESS = machine.SHARED_WINDOW << machine.WINDOW_BITS
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

NOBODY = 0xFF
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
