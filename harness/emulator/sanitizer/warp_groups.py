"""Checks warp-level operations for undefined behaviour between lanes (PTX ISA 9.7.9.6, 9.7.13.3 ff.).

A lane waits for all lanes in its mask until they reach the same instruction with the same mask; a shuffle reads one of
those. A lane that is not in its own mask, or a mask with a lane on another path, is a fault even without the sanitizer.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import SANITIZER
from harness.emulator.abi.raw_memory import load32, load64
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.vector_clock import tick

UNDEFINED_SHUFFLE, MASKS_DIFFER, UNDEFINED_REGISTER = at.UNDEFINED_SHUFFLE, at.MASKS_DIFFER, at.UNDEFINED_REGISTER
SOURCES, MASKS = machine.ADDRESSES, machine.HOSTS
LANES = machine.LANES


def watch_members(ctx: int, warp_state: int, site: int, mask: int) -> int:
    """The lanes `mask` execute an operation with the member masks in HOSTS. Returns 0."""
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    tick(state)
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        members = load32(warp_state + MASKS + 4 * lane)
        for other in range(LANES):
            theirs = load32(warp_state + MASKS + 4 * other)
            if ((members & mask) >> other) & 1 and theirs != members:
                report(state, MASKS_DIFFER, site, first + lane, members, theirs, 0, 0, first + other)
                break
    return 0


def watch_sources(ctx: int, warp_state: int, site: int, mask: int) -> int:
    """The lanes `mask` read the lanes in ADDRESSES, with the member masks in HOSTS. Returns 0."""
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    tick(state)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            source = load32(warp_state + SOURCES + 4 * lane)
            members = load32(warp_state + MASKS + 4 * lane)
            if not ((members & mask) >> source) & 1:
                report(state, UNDEFINED_SHUFFLE, site, first + lane, members, source, 0, 0, 0)
    return 0


def watch_undefined(ctx: int, site: int, role: int, mask: int) -> int:
    """The lanes `mask` use an undefined register. Returns 0."""
    if mask == 0:
        return 0
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    tick(state)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            report(state, UNDEFINED_REGISTER, site, first + lane, role, 0, role, 0, 0)
    return 0
