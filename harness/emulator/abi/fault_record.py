"""Records a fault in a worker's context."""

from __future__ import annotations

from harness.emulator.abi.context import (
    BLOCK,
    FAULT_ADDRESS,
    FAULT_BLOCK,
    FAULT_KIND,
    FAULT_LANE,
    FAULT_SITE,
    FAULT_SIZE,
    FAULT_WARP,
    WARP_INDEX,
)
from harness.emulator.abi.raw_memory import load64, store64


def set_fault(ctx: int, kind: int, site: int, lane: int, address: int, size: int) -> None:
    """Record this worker's first fault. The caller has to return."""
    store64(ctx + FAULT_KIND, kind)
    store64(ctx + FAULT_SITE, site)
    store64(ctx + FAULT_LANE, lane)
    store64(ctx + FAULT_ADDRESS, address)
    store64(ctx + FAULT_SIZE, size)
    store64(ctx + FAULT_BLOCK, load64(ctx + BLOCK))
    store64(ctx + FAULT_WARP, load64(ctx + WARP_INDEX))
