"""The context of a worker as the runtime sees it: where its slots are, in bytes, and how a fault is recorded."""

from __future__ import annotations

from numba import njit

from harness.emulator.machine import layout as at
from harness.emulator.memory.raw import load64, store64

# Module constants, which Numba folds.
(
    SHARED_BASE, SHARED_SIZE, LOCAL_BASE, LOCAL_SIZE, PARAMS, PARAMS_SIZE, COUNTERS, BUFFER_COUNT, BUFFERS,
    CTAID_X, CTAID_Y, CTAID_Z, NTID_X, NTID_Y, NTID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, WARP_INDEX, BLOCK,
    STEPS, STEP_LIMIT, TURN_END, WARP_INSTRUCTIONS, LANE_INSTRUCTIONS, STOP_AT,
    FAULT_KIND, FAULT_SITE, FAULT_LANE, FAULT_ADDRESS, FAULT_SIZE, FAULT_BLOCK, FAULT_WARP, FAULT_MASK,
    WARPS, WARP_COUNT, WARP_BYTES, THREADS, ENTRY, BARRIERS, LOCALS, ORDER, SEED, CLEAR_REGISTERS,
    VARIABLES, VARIABLE_COUNT, SHARED_COUNTERS, SANITIZER, PLACES, RANDOM,
    TRACE_NEXT, TRACE_END, TRACE_FULL, TRACE_KINDS, TRACE_FIRST_LINES,
    COPY_QUEUES, COPY_QUEUE_FULL, DROP_COPIES,
) = (8 * slot for slot in range(at.CONTEXT_SLOTS))  # fmt: skip


@njit(inline="always")  # type: ignore[untyped-decorator]
def set_fault(ctx: int, kind: int, site: int, lane: int, address: int, size: int) -> None:
    """Record the first fault of this worker; the caller returns."""
    store64(ctx + FAULT_KIND, kind)
    store64(ctx + FAULT_SITE, site)
    store64(ctx + FAULT_LANE, lane)
    store64(ctx + FAULT_ADDRESS, address)
    store64(ctx + FAULT_SIZE, size)
    store64(ctx + FAULT_BLOCK, load64(ctx + BLOCK))
    store64(ctx + FAULT_WARP, load64(ctx + WARP_INDEX))
