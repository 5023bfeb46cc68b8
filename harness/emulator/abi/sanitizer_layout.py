"""Memory layout of the sanitizer: the slots of its state, and the words of its shadow cells, in bytes.

Each worker has a state, for the cluster that it runs (usually one block). All states refer to the launch's tables.

A time is the number of a cluster, in the order in which they begin, above bit `CLUSTER_SHIFT`, and below it the number
of requests and synchronizations of this cluster so far. So a time identifies the cluster, and only times of one cluster
can be compared. A launch that may overlap the previous one continues its numbers, so times identify the launch, too.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine

SLOTS = (
    "TIME",
    "BLOCK_START",  # time at which the current cluster began
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
    "FENCES",  # [warp][scope]: time of its last fence of at least that scope, or of a warp with which it has met
    "PENDING",  # [warp]: flags of what it has read but not yet acquired, and since when; see `PENDING_BLOCK`
    "PENDING_CLOCKS",  # [warp]: what that is, of the block and of the cluster
    "GRID_WORDS",  # words of a grid clock, see `sanitizer/grid_clock.py`
    "GRID_CLOCKS",  # [warp][view]: clocks of other clusters' actions
    "VIEWS",  # [warp][view]: when it acquired that clock
    "VIEW_COUNT",  # number of views of the current cluster's warps
    "RECORDS",  # what was released at cells of global memory, see `sanitizer/global_sync.py`
    "OWN_RECORDS",  # the same, to threads of the current cluster
    "RECORD_LIMIT",
    "BARRIER_CLOCKS",  # [barrier]: clock and fences of the arrived warps
    "CLUSTER_FENCED",  # [warp]: time of its last fence of at least cluster scope
    "CLUSTER_BLOCKS",
    "BLOCK_WARPS",  # difference of warp numbers between consecutive blocks
    "SHARED_PITCH",  # stride of the blocks' shared memory
    "REMOTE",  # [block][warp]: its last access to that other block's shared memory, see `REMOTE_BYTES`
    "KNOWN_AT_END",  # [block]: what its returned warps knew
    "MET",  # [block]: time of its last cluster barrier
    "FINDINGS",
    "CLUSTERS",  # clusters in the order in which they began
    "COUNTS",  # of the launch, see below
    "SITE_BYTES",  # a byte per instruction: size of the elements that it accesses, 0 if it is not to be compared
    "MODIFIED_MAPS",  # tensor maps that were modified and not fenced, see `MODIFIED_MAP_BYTES`
    "SHARED_ARRAYS",  # per variable in shared memory: where it begins, and ends
    "LAUNCH_START",  # earlier times belong to launches that this one may overlap
    "ENDED_LAUNCHES",  # a grid clock of these launches, as far as they have ended after a griddepcontrol.wait
)
SLOT = {name: 8 * number for number, name in enumerate(SLOTS)}
CLUSTER_COUNT, RECORD_COUNT, FINDING_COUNT, LOST, GRID_WAITS = range(0, 40, 8)
"""Counts of a launch: clusters that have begun, those of launches that it may overlap included; records; findings, and
findings that did not fit; executions of griddepcontrol.wait."""
COUNTS = 5
CLUSTER_SHIFT, MOST_CLUSTERS = 36, 1 << 25
"""A cluster has fewer requests and synchronizations than 1 << the first. A launch, with those that it may overlap, has
up to as many clusters as the second."""

# A clock has three words for each warp: the time up to which the actions of all its lanes are known; the time up to
# which those of some lanes are known; and the mask of these lanes. The same three words follow for what lies before a
# known proxy fence. See `sanitizer/clock_words.py`.
CLOCK_WORDS = 6
RELEASED_WORDS = machine.LANES + 1

# A shadow cell: the last writer of this piece of memory and its readers since. Each entry is a time and an `info` word:
# lanes in bits 32 to 63, instruction in bits 12 to 31, warpgroup in bit 11, asynchronous proxy in bit 10, strength in
# bits 8 and 9, and the warp's number in its cluster in bits 0 to 7.
REMOTE_BYTES = 40
"""Fields: time, instruction, thread, address, size."""
ENTRY_BYTES = 16
STRONG_WRITER = ENTRY_BYTES
"""Offset of the last strong write of GPU scope. The last other store, at offset 0, is stored separately, so that an
atomic does not hide it."""
READERS = 2 * ENTRY_BYTES
"""Offset of the readers. Shared memory has one entry per warp."""


def shadow_cell_bytes(warps: int) -> int:
    """Bytes of a cell of shared memory, or of tensor memory, for so many warps."""
    return READERS + ENTRY_BYTES * warps


GLOBAL_READERS = 2
"""Number of reader entries for global memory: two warps of the current block, so that at least one of them differs from
the next writer."""
EARLIER_READER = READERS + GLOBAL_READERS * ENTRY_BYTES
"""Offset of the last reader in another block."""
OVERLAPPED_READER = EARLIER_READER + ENTRY_BYTES
"""Offset of a reader in a launch that this one may overlap: of several such launches, the first one that read the cell,
because what orders its reads orders those of later launches."""
GLOBAL_ENTRIES = GLOBAL_READERS + 2
"""Number of all reader entries for global memory."""
GLOBAL_SYNC = OVERLAPPED_READER + ENTRY_BYTES
"""Offset of the number of the record of what was released here; 0 if nothing was."""
GLOBAL_CELL_BYTES = GLOBAL_SYNC + 8
WARP_MASK = 0xFF
STRENGTH_AT, STRENGTH_MASK = 8, 3
PROXY_BIT = 1 << 10
"""Set if a copy wrote the cell instead of a thread: the asynchronous proxy sees it without a fence."""
WARPGROUP_BIT = 1 << 11
"""Set if a product read the cell, for the four warps from this one on: knowing of one warp's completion implies knowing
of all."""
SITE_AT, SITE_MASK = 12, 0xFFFFF
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
WRITTEN = 0x00
"""In a map of bytes: kernels may read and write it."""

# Kinds of access, as passed by generated code.
LOAD, STORE, ATOMIC = 0, 1, 2
BLOCK_SCOPE, CLUSTER_SCOPE, GPU_SCOPE = 1, 2, 3
"""Scopes of strong accesses (atomic, volatile, relaxed, acquire, release) and of fences; with one GPU, the system's is
that of the GPU. As the strength of an access: 0 if it is not strong."""
SCOPES = 3
STRENGTH_IN_ACCESS = 2
"""Position of the strength in an access; two bits."""
STRONG = STRENGTH_MASK << STRENGTH_IN_ACCESS
"""Mask of the strength. Two strong accesses do not race if both scopes include both threads (PTX ISA, morally
strong)."""
RELEASES = 16
"""The access releases without a preceding fence."""
ACQUIRES = 32
"""The access reads and is strong, so it acquires what was released there. A `red` does not read."""
OVERWRITES = 64
"""An exchange: the value it stores does not depend on the previous one."""
AWAITS_FENCE = 128
"""What the access reads is acquired by the next fence."""
NEEDS_FENCE = 256
"""The access releases only what lies before a fence, in shared memory, too."""

MODIFIED_MAP_BYTES = 32
"""Fields of a modified tensor map: address, or 0; instruction, time and thread of its last modification."""
MOST_MODIFIED_MAPS = 64
PENDING_BLOCK, PENDING_CLUSTER, PENDING_GRID = 1, 2, 4
"""Flags of `PENDING`."""
PENDING_BYTES = 16
WARP_VIEWS = 4
"""Grid clocks of a warp: the pending one, and those that it has acquired, by time."""
GENERATION, RELEASED_IN_GRID, RECORD_HEADER = range(0, 24, 8)
"""In a record: number of stores that have replaced what was released; whether anything was released to the grid since.
Two grid clocks follow: what clusters released of themselves, and what they released of others."""
RELEASED_SINCE, OWN_GENERATION, RELEASED_IN_CLUSTER, RELEASING_BLOCK, OWN_RECORD_HEADER = range(0, 40, 8)
"""In a cluster's own record: the beginning of the cluster; the record's generation at the time; whether anything was
released to the cluster; the releasing block's number in it. The clocks for the block and the cluster follow."""
RECORD_LIMIT = 1 << 14
MOST_RECORD_BYTES = 1 << 26
MOST_GRID_WORDS = 4096
"""Clusters of a launch for which each has its own word in a grid clock."""

KINDS = (
    "", "uninitialised read", "RAW race", "WAR race", "WAW race", "input written", "undefined shuffle", "masks differ",
    "missing proxy fence", "accumulator read early", "register written early", "missing wgmma fence",
    "block not started", "early exit", "store not awaited", "undefined register",
    "outside its array", "missing tensor map fence",
)  # fmt: skip
(
    UNINITIALISED, RAW, WAR, WAW, INPUT_WRITTEN, UNDEFINED_SHUFFLE, MASKS_DIFFER, MISSING_PROXY_FENCE,
    EARLY_ACCUMULATOR, EARLY_REGISTER, MISSING_WGMMA_FENCE, NOT_STARTED, EARLY_EXIT,
    NOT_AWAITED, UNDEFINED_REGISTER, OUTSIDE_ITS_ARRAY, MISSING_MAP_FENCE,
) = range(1, 18)  # fmt: skip
FINDING_WORDS = 10
"""Fields of a finding: kind, instruction, earlier instruction, count, time, thread, earlier time, earlier thread,
address, size. If no memory is accessed, address and size contain: for an undefined shuffle, mask and source lane; for
mask mismatches, both masks; for an undefined register, its role and 0."""
ROLE_ADDRESS, ROLE_VALUE, ROLE_PREDICATE, ROLE_PARAMETER = range(4)
"""How an undefined register was used."""
FINDING_LIMIT = 256
