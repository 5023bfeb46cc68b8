"""Records a fault, or what is noted without one, in a worker's context."""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi.raw_memory import load64, store64


def set_fault(ctx: int, kind: int, site: int, lane: int, address: int, size: int) -> None:
    """Record this worker's first fault. The caller has to return."""
    store64(ctx + context.FAULT_KIND, kind)
    store64(ctx + context.FAULT_SITE, site)
    store64(ctx + context.FAULT_LANE, lane)
    store64(ctx + context.FAULT_ADDRESS, address)
    store64(ctx + context.FAULT_SIZE, size)
    store64(ctx + context.FAULT_BLOCK, load64(ctx + context.BLOCK))
    store64(ctx + context.FAULT_WARP, load64(ctx + context.WARP_INDEX))


def note_first(slot: int, site: int) -> None:
    """Keep the first instruction in text order, plus 1, in a slot of the context."""
    known = load64(slot)
    if known == 0 or site + 1 < known:
        store64(slot, site + 1)
