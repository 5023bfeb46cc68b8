"""The functions that generated code calls, and the one that calls generated code.

They are written in the subset of Python that Numba compiles for the CPU. `native/runtime_build.py` takes the
LLVM IR that Numba makes of them, so that neither Numba's dispatch nor the interpreter is on the path. All addresses are
plain integers.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi.context import FAULT_MASK
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import store64
from harness.emulator.memory.banks import count_shared
from harness.emulator.memory.copies import gather, permute, scatter, shared_load, shared_store
from harness.emulator.memory.matrix_rows import load_rows, store_rows
from harness.emulator.memory.translation import translate
from harness.emulator.runtime.schedule import lowest_lane, run_blocks
from harness.emulator.sanitizer.watch import watch_fence, watch_lanes, watch_memory, watch_shared


def fault(ctx: int, warp: int, kind: int, site: int, mask: int) -> int:
    """Record a fault that generated code found itself; the lane is the lowest in `mask`."""
    set_fault(ctx, kind, site, lowest_lane(mask), 0, 0)
    store64(ctx + FAULT_MASK, mask & 0xFFFFFFFF)
    return 1


EXPORTS: dict[str, tuple[Callable[..., int], int]] = {
    "fault": (fault, 5),
    "translate": (translate, 6),
    "gather": (gather, 4),
    "scatter": (scatter, 4),
    "shared_load": (shared_load, 6),
    "shared_store": (shared_store, 6),
    "load_rows": (load_rows, 5),
    "store_rows": (store_rows, 5),
    "count_shared": (count_shared, 7),
    "permute": (permute, 1),
    "watch_shared": (watch_shared, 7),
    "watch_memory": (watch_memory, 8),
    "watch_lanes": (watch_lanes, 3),
    "watch_fence": (watch_fence, 1),
    "run_blocks": (run_blocks, 3),
}
"""Name -> function and how many arguments; arguments and results are 64-bit integers."""
