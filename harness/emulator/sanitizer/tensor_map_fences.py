"""Tensor maps in global memory that the kernel has modified, and that no thread has fenced since.

Copies read their maps through a proxy of its own, which sees a modification only after
`fence.proxy.tensormap::generic.acquire` of the map. A fence of any thread counts.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import SANITIZER
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer.finding_table import report

MODIFIED_MAPS, TIME = at.SLOT["MODIFIED_MAPS"], at.SLOT["TIME"]
MISSING_MAP_FENCE = at.MISSING_MAP_FENCE
MOST, STRIDE = at.MOST_MODIFIED_MAPS, at.MODIFIED_MAP_BYTES


def entry_of(state: int, address: int) -> int:
    """The entry with this address; 0 if there is none."""
    for index in range(MOST):
        entry = load64(state + MODIFIED_MAPS) + STRIDE * index
        if load64(entry) == address:
            return entry
    return 0


def watch_modified_map(ctx: int, warp: int, site: int, mask: int) -> int:
    """Maps whose addresses are in ADDRESSES were modified. If there are too many, one is forgotten. Returns 0."""
    state = load64(ctx + SANITIZER)
    clock_words.tick(state)
    for lane in range(machine.LANES):
        if not (mask >> lane) & 1:
            continue
        address = load64(warp + machine.ADDRESSES + 8 * lane)
        entry = entry_of(state, address) or entry_of(state, 0) or load64(state + MODIFIED_MAPS)
        store64(entry, address)
        store64(entry + 8, site)
        store64(entry + 16, load64(state + TIME))
        store64(entry + 24, machine.LANES * warp_number(ctx) + lane)
    return 0


def watch_map_fence(ctx: int, warp: int, mask: int) -> int:
    """The maps whose addresses are in ADDRESSES were fenced. Returns 0."""
    state = load64(ctx + SANITIZER)
    for lane in range(machine.LANES):
        if (mask >> lane) & 1:
            entry = entry_of(state, load64(warp + machine.ADDRESSES + 8 * lane))
            if entry:
                store64(entry, 0)
    return 0


def check_map(ctx: int, site: int, lane: int, address: int) -> None:
    """A copy uses the map at an address: report it if it was modified and not fenced."""
    state = load64(ctx + SANITIZER)
    if state == 0:
        return
    entry = entry_of(state, address)
    if entry:
        thread = machine.LANES * warp_number(ctx) + lane
        before, when, other = load64(entry + 8), load64(entry + 16), load64(entry + 24)
        report(state, MISSING_MAP_FENCE, site, thread, address, proxy.MAP_BYTES, before, when, other)
