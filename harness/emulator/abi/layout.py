"""Where things lie in the memory that Python, the runtime and generated code share.

Addresses that kernels see are virtual: bits 36 and up name a window, so a stray access never lands in another buffer
by accident, and the same launch gives the same addresses on every machine.
"""

from __future__ import annotations

LANES = 32
FULL_MASK = 0xFFFFFFFF

# Windows of the generic address space ---------------------------------------------------------------------------------
WINDOW_BITS = 36
SHARED_WINDOW = 1
LOCAL_WINDOW = 2
PARAM_WINDOW = 3
FIRST_VARIABLE_WINDOW = 16
FIRST_BUFFER_WINDOW = 1024
BUFFER_START = 1 << (WINDOW_BITS - 1)
"""A buffer begins in the middle of its window, so that a negative offset is still known to be its own."""


def buffer_address(index: int) -> int:
    """Virtual address of buffer number `index`."""
    return ((FIRST_BUFFER_WINDOW + index) << WINDOW_BITS) + BUFFER_START


def variable_address(index: int) -> int:
    """Virtual address of the module's variable number `index` (`.global` and `.const`)."""
    return ((FIRST_VARIABLE_WINDOW + index) << WINDOW_BITS) + BUFFER_START


RANK_SHIFT = 24
"""From this bit on, an address within the window of shared memory has the rank of the block in its cluster that it is
in, as on a GPU; in kernels that know of clusters, see `codegen/cluster_facts.py`."""


def coordinates(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    """Number of a block or thread -> its x, y, z."""
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


# State spaces, as generated code names them to the runtime ------------------------------------------------------------
SPACES = {"generic": 0, "global": 1, "shared": 2, "local": 3, "const": 4, "param": 5, "written": 6}
"""`written`: a generic address, or one in global memory, of an access that stores there."""

# Counters -----------------------------------------------------------------------------------------------------------
# A memory instruction has an entry per column: the buffers, local memory, the module's variables that are counted.
COUNTERS_PER_ENTRY = 4  # requests, requested bytes, sectors, fewest possible sectors
SHARED_COUNTERS_PER_SITE = 4  # requests, requested bytes, wavefronts, fewest possible wavefronts
BLOCK_COUNTERS_PER_BLOCK = 2  # of a basic block: warps and lanes that entered it
PATH_WARP_SHIFT = 32
"""Of a step on a warp's path: the number of the warp is above this bit, that of the basic block below."""
VARIABLE_BYTES = 24
"""A variable's row in the table: host address, size, column of its counters or one of the next two."""
NOT_COUNTED = -1
CONSTANT = -2
"""The variable is `.const`: nobody counts what is read there, and a store is a fault."""
BARRIER_SLOTS = 16

# The state of one warp, in bytes --------------------------------------------------------------------------------------
PCS = 0
ALIVE = 128
STATUS = 132
BARRIER_ID = 136
BARRIER_THREADS = 140
STARTED = 144
BARRIER_SITE = 148
VOTE_BITS = 152
VOTE_RESULT = 156
VOTE_KIND = 160
BARRIER_ARRIVES = 164
WAIT_SITE = 172
"""Which mbarrier the warp looked at in vain last, with the next two."""
WAIT_PLACE = 176
WAIT_PARITY = 180
GROUPS_LEFT = 184
"""How many groups of products may stay under way, for a warp that waits with its warpgroup."""
TID_X, TID_Y, TID_Z = 192, 320, 448
SAVED_STEPS = 576
CLOCK_LEAD = 584
"""How far the clock of a warp is ahead of its steps, because it waited for others at barriers."""
CLUSTER_STATE = 600
"""What the warp has to do with the barrier of its cluster, see `runtime/clusters.py`; the next two say where it arrived
or waits, and whether it waits."""
CLUSTER_SITE = 604
CLUSTER_WAITS = 608
LEFT_AT = 612
"""The instruction, plus 1, at which lanes of the warp left the kernel last; in kernels that know of clusters."""
LAST_MOMENT = 592
"""Of the warp's latest request, see `memory/trace.py`."""
WAITS_SINCE = 616
"""When, plus 1, the warp began to look at an mbarrier in vain, 8 bytes; 0 where it does not. Where events are recorded.
"""
LOOKED_AT = 624
"""The warp's steps at that look, 8 bytes."""
ADDRESSES = 640
HOSTS = 896
DATA = 1152
DATA_2 = 1664
DATA_3 = 2176
REGISTERS = 2688

EXITED_PC = 0x7FFFFFFF
REQUEST_BITS = 12
WARP_BITS = 8
"""Low bits of a request's moment, see `memory/trace.py`."""
WARPGROUP_WARPS = 4
WAIT_LOOP_INSTRUCTIONS = 1 << 8
"""A warp that has looked at an mbarrier in vain waits for it until it has run so many more without another look."""
FUTILE_ROUNDS = 1 << 12
"""After so many rounds in which every warp waits at an mbarrier, no warp can go on."""
TURN_INSTRUCTIONS = 1 << 16
"""How long a warp may run before others have a turn, so that one that waits for another in a loop gets its answer."""

# What running a cluster comes to --------------------------------------------------------------------------------------
ENDED, STOPPED, SPINS, PAUSES = range(4)
"""Its warps have ended; one met a fault; it is suspended, because its warps wait in loops for what no warp of it does,
or because it has run for long. In kernels whose blocks may wait for each other."""
PATIENCE_STEPS = 1 << 24
"""Instructions of a cluster's warps after which others have a turn, whatever it does."""

# What a warp's code returns -------------------------------------------------------------------------------------------
EXITED, AT_BARRIER, YIELDED, FAULTED = 0, 1, 2, 3
AT_WARPGROUP = 5
"""It waits until the other three warps of its warpgroup have got to the same wait."""
AT_CLUSTER = 6
"""It waits until all warps of its cluster have arrived at the cluster's barrier."""
READY = 4
"""Status of a warp that can run; the others are as returned."""

# Kinds of fault, as numbers for generated code ------------------------------------------------------------------------
FAULTS = (
    "none",
    "out of bounds",
    "misaligned",
    "barrier deadlock",
    "divergent barrier",
    "step limit",
    "trap",
    "divergent warp operation",
    "copy size",
    "copies in flight",
    "printing",
    "lane outside of its mask",
    "no mbarrier",
    "mbarrier count",
    "mbarrier bytes",
    "no tensor map",
    "bulk copies in flight",
    "matrix descriptor",
    "products in flight",
    "cluster rank",
    "cluster barrier",
    "ended block",
    "own block",
    "mbarrier elsewhere",
    "reduction type",
    "tensor coordinate",
    "read-only memory",
)
FAULT = {name: number for number, name in enumerate(FAULTS)}

# Votes of `barrier.red` -----------------------------------------------------------------------------------------------
VOTES = {"popc": 1, "and": 2, "or": 3}
