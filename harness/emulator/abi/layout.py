"""Layout of the memory that Python, the runtime and generated code share.

Addresses that kernels see are virtual: bits 36 and up identify a window, so a stray access never hits another buffer by
accident, and the same launch has the same addresses on every machine.
"""

from __future__ import annotations

LANES = 32
FULL_MASK = 0xFFFFFFFF

# Windows of the generic address space ---------------------------------------------------------------------------------
WINDOW_BITS = 36
OFFSET_MASK = (1 << WINDOW_BITS) - 1
"""Bits of an address within its window."""
SHARED_WINDOW = 1
SHARED_ADDRESS = SHARED_WINDOW << WINDOW_BITS
LOCAL_WINDOW = 2
PARAM_WINDOW = 3
FUNCTION_WINDOW = 4
TENSOR_WINDOW = 5
"""For findings about tensor memory; no kernel has such an address."""
FIRST_VARIABLE_WINDOW = 16
FIRST_BUFFER_WINDOW = 1024
BUFFER_START = 1 << (WINDOW_BITS - 1)
"""A buffer begins in the middle of its window, so that negative offsets are attributed to it."""


def buffer_address(index: int) -> int:
    """Virtual address of the buffer with this index."""
    return ((FIRST_BUFFER_WINDOW + index) << WINDOW_BITS) + BUFFER_START


def buffer_index(address: int) -> int:
    """Return the index of the buffer to whose range an address belongs; negative if it is not that of a buffer."""
    return (address >> WINDOW_BITS) - FIRST_BUFFER_WINDOW


def variable_address(index: int) -> int:
    """Virtual address of the module variable (`.global` or `.const`) with this index."""
    return ((FIRST_VARIABLE_WINDOW + index) << WINDOW_BITS) + BUFFER_START


def function_address(index: int) -> int:
    """Virtual address of the function with this index in its module, as data; there is nothing to read."""
    return (FUNCTION_WINDOW << WINDOW_BITS) + 16 * (index + 1)


HEAP_HEAD = 16
"""Bytes before each allocation in the heap; see `runtime/system_calls.py`."""
HEAP_BYTES = 8 << 20
"""Size of the heap, that of CUDA (`cudaLimitMallocHeapSize`)."""
RANK_SHIFT = 24
"""From this bit on, an address in the window of shared memory contains the rank of its block in the cluster, as on a
GPU. This applies to kernels that use clusters; see `codegen/kernel_facts.py`."""


def coordinates(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    """Convert a linear index of a block or thread to its x, y, z."""
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


# State spaces, as generated code passes them to the runtime
# -------------------------------------------------------------
SPACES = {"generic": 0, "global": 1, "shared": 2, "local": 3, "const": 4, "param": 5, "written": 6}
"""State spaces by code. `written` is a generic or global address of an access that stores."""

# Counters -----------------------------------------------------------------------------------------------------------
# A memory instruction has an entry per column: the buffers, local memory, the module's variables that are counted.
COUNTERS_PER_ENTRY = 4  # requests, requested bytes, sectors, fewest possible sectors
SHARED_COUNTERS_PER_SITE = 4  # requests, requested bytes, wavefronts, fewest possible wavefronts
"""For an instruction of Blackwell's tensor cores instead: requests, bytes read from tensor memory, bytes written to it,
bytes of operands read from shared memory."""
BLOCK_COUNTERS_PER_BLOCK = 2  # of a basic block: warps and lanes that entered it
PATH_WARP_SHIFT = 32
"""In a step of a warp's path, the warp's number is above this bit, and the basic block's number below."""
VARIABLE_BYTES = 24
"""Size of a variable's row in the table: host address, size, and column of its counters or one of the next two."""
NOT_COUNTED = -1
CONSTANT = -2
"""The variable is `.const`: reads are not counted, and a store is a fault."""
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
"""The mbarrier at which the warp's last test failed, in this and the next two fields."""
WAIT_PLACE = 176
WAIT_PARITY = 180
GROUPS_LEFT = 184
"""Number of groups of products that may stay in flight, for a warp that waits with its warpgroup."""
TID_X, TID_Y, TID_Z = 192, 320, 448
SAVED_STEPS = 576
CLOCK_LEAD = 584
"""By how much the warp's clock is ahead of its steps, because it waited for others at barriers."""
CLUSTER_STATE = 600
"""The warp's state at the cluster barrier, see `runtime/clusters.py`. The next two fields contain the instruction at
which it arrived or waits, and whether it waits."""
CLUSTER_SITE = 604
CLUSTER_WAITS = 608
LEFT_AT = 612
"""1 + the instruction at which lanes of the warp last left the kernel; only in kernels that use clusters."""
LAST_MOMENT = 592
"""Moment of the warp's latest request, see `memory/trace.py`."""
WAITS_SINCE = 616
"""1 + the time at which the warp's tests of an mbarrier began to fail, 8 bytes; 0 if it is not waiting. Only if events
are recorded."""
LOOKED_AT = 624
"""The warp's steps at its last test of an mbarrier, 8 bytes."""
REGISTER_COUNT = 632
"""Registers per thread that the warp has by its last `setmaxnreg`, and that instruction. Only in kernels with one."""
REGISTER_SITE = 636
ADDRESSES = 640
HOSTS = 896
DATA = 1152
DATA_2 = 1664
DATA_3 = 2176
RECEIVERS = DATA_3 + 256
"""Masks of the destination blocks of the lanes' multicasts, 4 bytes each."""
ASSERTION_MESSAGE, ASSERTION_FILE, ASSERTION_NAME, ASSERTION_LINE = ADDRESSES, HOSTS, DATA, DATA_2
"""Where a failed assertion leaves the addresses of its texts, 8 bytes for each lane, and its line, 4 bytes."""
REGISTERS = 2688

EXITED_PC = 0x7FFFFFFF
REQUEST_BITS = 12
WARP_BITS = 8
"""Number of low bits of a request's moment, see `memory/trace.py`."""
WARPGROUP_WARPS = 4
WAIT_LOOP_INSTRUCTIONS = 1 << 8
"""A warp whose test of an mbarrier failed is considered to wait for it until it has run this many more instructions
without another test."""
FUTILE_ROUNDS = 1 << 12
"""After this many rounds in which every warp waits at an mbarrier, the cluster is deadlocked."""
TURN_INSTRUCTIONS = 1 << 16
"""Maximum instructions that a warp runs before others have a turn, so that a warp that spins on another one makes
progress."""

# Results of running a cluster -----------------------------------------------------------------------------------------
ENDED, STOPPED, SPINS, PAUSES, FOLLOWED = range(5)
"""Results of running a cluster: all warps have ended; a warp faulted; suspended because its warps spin on something
that no warp of it does; suspended because it has run for long; all warps have ended, and another cluster starts in its
place. The third and the fourth are for kernels whose blocks may wait for each other."""
PATIENCE_STEPS = 1 << 24
"""Instructions of a cluster's warps after which it is suspended in any case."""

# Status that a warp's code returns
# -------------------------------------------------------------------------------------
EXITED, AT_BARRIER, YIELDED, FAULTED = 0, 1, 2, 3
AT_WARPGROUP = 5
"""The warp waits until the other three warps of its warpgroup have reached the same wait."""
AT_CLUSTER = 6
"""The warp waits until all warps of its cluster have arrived at the cluster barrier."""
READY = 4
"""Status of a warp that can run; the other statuses are those that a warp's code returns."""

# Kinds of fault, as numbers for generated code ------------------------------------------------------------------------
FAULTS = (
    "none", "out of bounds", "misaligned", "barrier deadlock", "divergent barrier", "step limit", "trap",
    "divergent warp operation", "copy size", "copies in flight", "assertion", "lane outside of its mask", "no mbarrier",
    "mbarrier count", "mbarrier bytes", "no tensor map", "bulk copies in flight", "matrix descriptor",
    "products in flight", "cluster rank", "cluster barrier", "ended block", "own block", "mbarrier elsewhere",
    "reduction type", "tensor coordinate", "read-only memory", "tensor map field",
    "no function", "invalid free", "heap overrun", "bad text", "no texture", "surface coordinate",
    "stack overflow", "register deadlock", "tensor memory allocation", "tensor memory address",
    "tensor operations in flight", "instruction descriptor", "tensor descriptor", "no peer block",
    "lanes disagree", "request after refusal", "no response",
)  # fmt: skip
FAULT = {name: number for number, name in enumerate(FAULTS)}

# Votes of `barrier.red` -----------------------------------------------------------------------------------------------
VOTES = {"popc": 1, "and": 2, "or": 3}
