"""The context: one array of 64-bit slots per worker, which Python, the runtime and generated code share.

Each name below is the slot's offset in bytes, as a constant that native code has built in. This is the only list of
the slots: whoever knows a slot by its name or number finds it in `SLOT`.
"""

from __future__ import annotations

(
    SHARED_BASE, SHARED_SIZE, LOCAL_BASE, LOCAL_SIZE, PARAMS, PARAMS_SIZE, COUNTERS, BUFFER_COUNT, BUFFERS,
    CTAID_X, CTAID_Y, CTAID_Z, NTID_X, NTID_Y, NTID_Z, NCTAID_X, NCTAID_Y, NCTAID_Z, WARP_INDEX, BLOCK,
    STEPS, STEP_LIMIT, TURN_END, WARP_INSTRUCTIONS, LANE_INSTRUCTIONS, STOP_AT,
    FAULT_KIND, FAULT_SITE, FAULT_LANE, FAULT_ADDRESS, FAULT_SIZE, FAULT_BLOCK, FAULT_WARP, FAULT_MASK,
    WARPS, WARP_COUNT, WARP_BYTES, THREADS, ENTRY, BARRIERS, LOCALS, ORDER, SEED, CLEAR_REGISTERS,
    VARIABLES, VARIABLE_COUNT, SHARED_COUNTERS, SANITIZER, PLACES, RANDOM,
    TRACE_NEXT, TRACE_END, TRACE_FULL, TRACE_KINDS, TRACE_FIRST_LINES,
    COPY_QUEUES, COPY_QUEUE_FULL, DROP_COPIES, COUNTER_COLUMNS,
    ASYNC_PROXY, DROP_ASYNC, WARPGROUP_ARRIVES, CHANGES,
) = range(0, 8 * 63, 8)  # fmt: skip

SLOT: dict[str, int] = {name: offset // 8 for name, offset in vars().items() if name.isupper()}
"""Name -> number of the slot."""
