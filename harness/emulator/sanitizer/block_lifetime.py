"""How long a block's shared memory is there for the other blocks of its cluster: from its start to its end.

Who reaches for another block's shared memory has to know that the block runs: by a barrier of the cluster, or anything
else that came from there. And the block has to know of each such access before its last warp returns; only then is its
end behind it, whatever the schedule.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock import clock_bytes, lanes_known, latest, merge
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.vector_clock import clock_of, few_clock_of, few_lanes, tick

BLOCK_START, WARPS, CLUSTER_BLOCKS, BLOCK_WARPS, SHARED_PITCH, REMOTE, KNOWN_AT_END, MET = (
    at.SLOT[name]
    for name in (
        "BLOCK_START", "WARPS", "CLUSTER_BLOCKS", "BLOCK_WARPS", "SHARED_PITCH", "REMOTE", "KNOWN_AT_END", "MET",
    )
)  # fmt: skip
NOT_STARTED, EARLY_EXIT, REMOTE_BYTES = at.NOT_STARTED, at.EARLY_EXIT, at.REMOTE_BYTES
SHARED_ADDRESS = at.SHARED_ADDRESS


def note_remote(state: int, warp: int, lane: int, site: int, place: int, size: int) -> None:
    """A thread reaches for shared memory, perhaps another block's."""
    if load64(state + CLUSTER_BLOCKS) == 1:
        return
    owner, own = place // load64(state + SHARED_PITCH), warp // load64(state + BLOCK_WARPS)
    if owner == own:
        return
    if not knows_start(state, warp, lane, owner):
        report(state, NOT_STARTED, site, 32 * warp + lane, SHARED_ADDRESS + place, size, 0, 0, 0)
    entry = remote_entry(state, owner, warp)
    store64(entry, tick(state))
    store64(entry + 8, site)
    store64(entry + 16, 32 * warp + lane)
    store64(entry + 24, SHARED_ADDRESS + place)
    store64(entry + 32, size)


def remote_entry(state: int, owner: int, warp: int) -> int:
    """The last access of a warp to a block's shared memory."""
    return int(load64(state + REMOTE) + REMOTE_BYTES * (owner * load64(state + WARPS) + warp))


def knows_start(state: int, warp: int, lane: int, owner: int) -> bool:
    """Whether a lane has heard of the block `owner`, or its own block has met all at the cluster's barrier."""
    start, pitch = load64(state + BLOCK_START), load64(state + BLOCK_WARPS)
    if load64(load64(state + MET) + 8 * (warp // pitch)) > start:
        return True
    warps, told = load64(state + WARPS), 0
    for other in range(owner * pitch, (owner + 1) * pitch):
        told = max(told, latest(clock_of(state, warp), warps, other))
        if (few_lanes(state, warp) >> lane) & 1:
            told = max(told, latest(few_clock_of(state, warp), warps, other))
    return bool(told > start)


def meet_cluster(state: int, warp: int) -> None:
    """The warp has found the cluster's barrier complete: all blocks have started."""
    store64(load64(state + MET) + 8 * (warp // load64(state + BLOCK_WARPS)), tick(state))


def end_warp(state: int, warp: int, left_at: int, is_last: int) -> None:
    """A warp returns for good, the last of its block or not. `left_at`: the instruction."""
    warps, block = load64(state + WARPS), warp // load64(state + BLOCK_WARPS)
    known = load64(state + KNOWN_AT_END) + clock_bytes(warps) * block
    merge(known, clock_of(state, warp), warps)
    if few_lanes(state, warp):
        merge(known, few_clock_of(state, warp), warps)
    if not is_last:
        return
    for other in range(warps):
        entry = remote_entry(state, block, other)
        when, thread = load64(entry), load64(entry + 16)
        if when > load64(state + BLOCK_START) and (lanes_known(known, warps, other, when) >> (thread & 31)) & 1 == 0:
            report(
                state, EARLY_EXIT, load64(entry + 8), thread, load64(entry + 24), load64(entry + 32),
                left_at, tick(state), 32 * warp,
            )  # fmt: skip


def end_before_copy(state: int, warp: int, left_at: int, site: int, thread: int, place: int, size: int) -> None:
    """The block of a warp has ended, and something is under way to it that another block's `thread` has sent."""
    report(state, EARLY_EXIT, site, thread, SHARED_ADDRESS + place, size, left_at, tick(state), 32 * warp)
