"""Where the sanitizer keeps what: the slots of its state, and the words of its cells, in bytes.

Time is the number of requests and synchronisations so far in this launch. One worker runs all blocks, so a time tells
the block, too, and a time from before the block's beginning is another block's.
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

# A clock has three words for each warp: up to when it is known what its lanes did; up to when of some of its lanes; and
# which those are. Then the same of what lies before a proxy fence that is known. See `sanitizer/clock.py`.
CLOCK_WORDS = 6
RELEASED_WORDS = machine.LANES + 1

# A cell: who wrote this piece of memory last and who has read it since. Each entry is a time and an `info` word:
# lanes in bits 32 to 63, instruction in bits 11 to 31, warpgroup in bit 10, asynchronous proxy in bit 9, strong in bit
# 8, warp in bits 0 to 7: its number in its cluster.
REMOTE_BYTES = 40
"""Time, instruction, thread, address, size."""
SHARED_ADDRESS = machine.SHARED_WINDOW << machine.WINDOW_BITS
ENTRY_BYTES = 16
STRONG_WRITER = ENTRY_BYTES
"""Offset of the last strong write. An atomic must not hide the plain store before it: that is at offset 0."""
READERS = 2 * ENTRY_BYTES
"""Offset of the readers. Shared memory has one entry per warp."""
GLOBAL_READERS = 2
"""Global memory: two warps of the running block, so that at least one of them is not the one that writes next."""
EARLIER_READER = READERS + GLOBAL_READERS * ENTRY_BYTES
"""Offset of the last reader in another block."""
GLOBAL_SYNC = EARLIER_READER + ENTRY_BYTES
"""Offset of two times: of the last release here, and up to when the releasing threads had fenced before theirs."""
GLOBAL_CELL_BYTES = GLOBAL_SYNC + 16
WARP_MASK = 0xFF
STRONG_BIT = 1 << 8
PROXY_BIT = 1 << 9
"""A copy wrote it, and not a thread: the asynchronous proxy needs no fence to see that."""
WARPGROUP_BIT = 1 << 10
"""A product of the four warps from this one on read it: who knows that one of them is done knows it of all."""
SITE_AT, SITE_MASK = 11, 0x1FFFFF
PENDING = 1 << 62
"""Added to the time of an access that is not over: that of a copy in flight."""

ARRIVING, COMPLETE = range(2)
"""Numbers of the barrier of a cluster: who arrives there, and, when all have, who goes on. Those of blocks follow."""
CLUSTER_BARRIERS = 2

NOBODY = 0xFF
"""In a map of bytes: nobody wrote this one."""
GIVEN = 0x01
"""In a map of bytes: this one is an input's, and no kernel may write it."""

# What is done to memory, as generated code tells it.
LOAD, STORE, ATOMIC = 0, 1, 2
STRONG = 4
"""volatile, relaxed, acquire, release, or an atomic: two of them are no race (PTX ISA, memory consistency model)."""
RELEASES = 8
"""It needs no fence before it."""
ACQUIRES = 16
"""It reads, and is strong: what was released there is known from now on. A `red` reads nothing."""
OVERWRITES = 32
"""An exchange: what it leaves does not depend on what was there."""

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
"""kind, instruction, earlier instruction, count, time, thread, earlier time, earlier thread, address, size.

Where no memory is touched, address and size are: of an undefined shuffle, mask and lane that was asked for; of masks
that differ, both; of an undefined register, what it was used as, and nothing.
"""
ROLE_ADDRESS, ROLE_VALUE, ROLE_PREDICATE, ROLE_PARAMETER = range(4)
"""What an undefined register was used as."""
FINDING_LIMIT = 256
