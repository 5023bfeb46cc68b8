"""Tracks the lifetime of a block's shared memory for accesses from other blocks of its cluster.

A thread that accesses another block's shared memory has to know that the block has started, by a cluster barrier or any
other synchronization with it. And the block has to know of each such access before its last warp returns; only then is
the block's end ordered after the access in every schedule.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer.finding_table import report

BLOCK_START, WARPS, CLUSTER_BLOCKS, BLOCK_WARPS, SHARED_PITCH, REMOTE, KNOWN_AT_END, MET = (
    at.SLOT[name]
    for name in (
        "BLOCK_START", "WARPS", "CLUSTER_BLOCKS", "BLOCK_WARPS", "SHARED_PITCH", "REMOTE", "KNOWN_AT_END", "MET",
    )
)  # fmt: skip
NOT_STARTED, EARLY_EXIT, REMOTE_BYTES = at.NOT_STARTED, at.EARLY_EXIT, at.REMOTE_BYTES


def note_remote(state: int, warp: int, lane: int, site: int, place: int, size: int) -> None:
    """A thread accesses shared memory, possibly another block's."""
    if load64(state + CLUSTER_BLOCKS) == 1:
        return
    owner, own = place // load64(state + SHARED_PITCH), warp // load64(state + BLOCK_WARPS)
    if owner == own:
        return
    if not knows_start(state, warp, lane, owner):
        report(state, NOT_STARTED, site, 32 * warp + lane, machine.SHARED_ADDRESS + place, size, 0, 0, 0)
    entry = remote_entry(state, owner, warp)
    store64(entry, clock_words.tick(state))
    store64(entry + 8, site)
    store64(entry + 16, 32 * warp + lane)
    store64(entry + 24, machine.SHARED_ADDRESS + place)
    store64(entry + 32, size)


def remote_entry(state: int, owner: int, warp: int) -> int:
    """The last access of a warp to a block's shared memory."""
    return int(load64(state + REMOTE) + REMOTE_BYTES * (owner * load64(state + WARPS) + warp))


def knows_start(state: int, warp: int, lane: int, owner: int) -> bool:
    """Whether a lane has synchronized with the block `owner`, or its own block has passed the cluster barrier."""
    start, pitch = load64(state + BLOCK_START), load64(state + BLOCK_WARPS)
    if load64(load64(state + MET) + 8 * (warp // pitch)) > start:
        return True
    warps, known = load64(state + WARPS), 0
    for other in range(owner * pitch, (owner + 1) * pitch):
        known = max(known, clock_words.latest(clock_words.clock_of(state, warp), warps, other))
        if (clock_words.few_lanes(state, warp) >> lane) & 1:
            known = max(known, clock_words.latest(clock_words.few_clock_of(state, warp), warps, other))
    return bool(known > start)


def meet_cluster(state: int, warp: int) -> None:
    """The warp has passed the cluster barrier, so all blocks have started."""
    store64(load64(state + MET) + 8 * (warp // load64(state + BLOCK_WARPS)), clock_words.tick(state))


def end_warp(state: int, warp: int, left_at: int, is_last: int) -> None:
    """A warp, possibly the last of its block, returns for good at the instruction `left_at`."""
    warps, block = load64(state + WARPS), warp // load64(state + BLOCK_WARPS)
    known = load64(state + KNOWN_AT_END) + clock_words.clock_bytes(warps) * block
    clock_words.merge(known, clock_words.clock_of(state, warp), warps)
    if clock_words.few_lanes(state, warp):
        clock_words.merge(known, clock_words.few_clock_of(state, warp), warps)
    if not is_last:
        return
    for other in range(warps):
        entry = remote_entry(state, block, other)
        when, thread = load64(entry), load64(entry + 16)
        if (
            when > load64(state + BLOCK_START)
            and (clock_words.lanes_known(known, warps, other, when) >> (thread & 31)) & 1 == 0
        ):
            report(
                state, EARLY_EXIT, load64(entry + 8), thread, load64(entry + 24), load64(entry + 32),
                left_at, clock_words.tick(state), 32 * warp,
            )  # fmt: skip


def end_before_copy(state: int, warp: int, left_at: int, site: int, thread: int, place: int, size: int) -> None:
    """Report that a warp's block has ended while data sent by another block's `thread` is in flight to it."""
    report(
        state,
        EARLY_EXIT,
        site,
        thread,
        machine.SHARED_ADDRESS + place,
        size,
        left_at,
        clock_words.tick(state),
        32 * warp,
    )
