"""Fences of a scope, and what a warp has read but acquires only by the next one.

A fence of one thread counts for its warp, and after a barrier for the warps that it has met there: any of them may then
release what was fenced, or acquire what another read. A barrier of the block is a fence of block scope.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock_words import (
    TIME,
    WARPS,
    clear_clock,
    clock_bytes,
    clock_of,
    knows_warp,
    merge,
    raise_to,
)
from harness.emulator.sanitizer.grid_clock import acquire_pending_views, add_pending

FENCES, PENDING, PENDING_CLOCKS = at.SLOT["FENCES"], at.SLOT["PENDING"], at.SLOT["PENDING_CLOCKS"]
PENDING_BLOCK, PENDING_CLUSTER, PENDING_GRID = at.PENDING_BLOCK, at.PENDING_CLUSTER, at.PENDING_GRID
PENDING_BYTES, SCOPES = at.PENDING_BYTES, at.SCOPES
BLOCK_SCOPE, CLUSTER_SCOPE, GPU_SCOPE = at.BLOCK_SCOPE, at.CLUSTER_SCOPE, at.GPU_SCOPE


def fenced(state: int, warp: int, scope: int) -> int:
    """Address of the time of a warp's last fence of at least this scope."""
    return int(load64(state + FENCES) + 8 * (SCOPES * warp + scope - BLOCK_SCOPE))


def pending_word(state: int, warp: int) -> int:
    """Address of a warp's flags; the time since when follows."""
    return int(load64(state + PENDING) + PENDING_BYTES * warp)


def pending_clock(state: int, warp: int, flag: int) -> int:
    """What a warp has read and not acquired: of its block, or of its cluster."""
    number = 2 * warp + (1 if flag == PENDING_CLUSTER else 0)
    return int(load64(state + PENDING_CLOCKS) + clock_bytes(load64(state + WARPS)) * number)


def flag_pending(state: int, warp: int, flag: int) -> bool:
    """A warp has read something that it acquires by its next fence. Returns whether it had read such a thing before."""
    word = pending_word(state, warp)
    flags = load64(word)
    if flags == 0:
        store64(word + 8, load64(state + TIME))
    store64(word, flags | flag)
    return bool(flags & flag)


def note_pending(state: int, warp: int, flag: int, clock: int) -> None:
    """A warp has read what was released to its block or its cluster with this clock."""
    warps, own = load64(state + WARPS), pending_clock(state, warp, flag)
    if not flag_pending(state, warp, flag):
        clear_clock(own, warps)
    merge(own, clock, warps)


def note_pending_grid(state: int, warp: int, released: int, passed: int) -> None:
    """A warp has read what was released with these grid clocks."""
    flag_pending(state, warp, PENDING_GRID)
    add_pending(state, warp, released, passed)


def fence(state: int, warp: int, scope: int) -> None:
    """What the warp did is fenced, and it acquires what it, or a warp that it has met since, has read."""
    time, warps = load64(state + TIME), load64(state + WARPS)
    for narrower in range(BLOCK_SCOPE, scope + 1):
        raise_to(fenced(state, warp, narrower), time)
    for other in range(warps):
        word = pending_word(state, other)
        flags = load64(word)
        if flags and knows_warp(state, warp, other, load64(word + 8)):
            if flags & PENDING_BLOCK:
                merge(clock_of(state, warp), pending_clock(state, other, PENDING_BLOCK), warps)
            if flags & PENDING_CLUSTER and scope >= CLUSTER_SCOPE:
                merge(clock_of(state, warp), pending_clock(state, other, PENDING_CLUSTER), warps)
            if flags & PENDING_GRID and scope == GPU_SCOPE:
                acquire_pending_views(state, warp)


def forget_fences(state: int) -> None:
    """A cluster begins."""
    warps = load64(state + WARPS)
    for place in range(load64(state + FENCES), fenced(state, warps, BLOCK_SCOPE), 8):
        store64(place, 0)
    for warp in range(warps):
        store64(pending_word(state, warp), 0)
