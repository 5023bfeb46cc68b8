"""Lists the runtime functions that generated code calls, and the one that calls generated code.

They are written in a subset of Python that `codegen/functions/python_subset.py` compiles to LLVM IR. All addresses are
plain integers.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi.context import ABSENT_LANES, FAULT_MASK
from harness.emulator.abi.fault_record import note_first, set_fault
from harness.emulator.abi.raw_memory import store64
from harness.emulator.memory.banks import count_shared
from harness.emulator.memory.copies import gather, load_rows, permute, scatter, shared_load, shared_store, store_rows
from harness.emulator.memory.translation import translate_lanes
from harness.emulator.runtime.clusters import cluster_arrive, cluster_wait
from harness.emulator.runtime.schedule import lowest_lane, run_blocks
from harness.emulator.sanitizer.tensor_map_fences import watch_map_fence, watch_modified_map
from harness.emulator.sanitizer.watch import (
    watch_array,
    watch_cluster_fence,
    watch_fence,
    watch_grid_wait,
    watch_lanes,
    watch_members,
    watch_memory,
    watch_proxy_fence,
    watch_shared,
    watch_sources,
    watch_undefined,
)


def fault(ctx: int, warp: int, kind: int, site: int, mask: int, detail: int) -> int:
    """Record a fault detected by generated code, for the lowest lane in `mask`; `detail` is for the message."""
    set_fault(ctx, kind, site, lowest_lane(mask), detail, 0)
    store64(ctx + FAULT_MASK, mask & 0xFFFFFFFF)
    return 1


def note_absent(ctx: int, site: int, lanes: int) -> int:
    """Record that `site` reads or names these absent lanes; the first site in text order is stored. Returns 0."""
    if lanes:
        note_first(ctx + ABSENT_LANES, site)
    return 0


def _by_name(*functions: Callable[..., int]) -> dict[str, Callable[..., int]]:
    return {function.__name__: function for function in functions}


CORE = _by_name(
    fault, translate_lanes, gather, scatter, shared_load, shared_store, load_rows, store_rows, count_shared, permute,
    run_blocks, cluster_arrive, cluster_wait, note_absent,
)  # fmt: skip
"""Functions by name; arguments and results are 64-bit integers."""

SANITIZER = _by_name(
    watch_shared, watch_memory, watch_lanes, watch_fence, watch_cluster_fence, watch_proxy_fence, watch_members,
    watch_sources, watch_undefined, watch_array, watch_modified_map, watch_map_fence, watch_grid_wait,
)  # fmt: skip
"""Functions by name, for kernels that are compiled for the sanitizer."""
