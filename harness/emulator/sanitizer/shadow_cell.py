"""Shadow cells: the last write to a piece of memory and the reads since, and the check of an access against them.

A race is two accesses by different threads to one cell, at least one of them a write, of which neither is known to
happen before the other. Two accesses do not race if both are strong, with scopes that include both threads and elements
of one size, or if they store the same value: the result does not depend on their order.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load8, load64, store64
from harness.emulator.sanitizer.clock_words import is_own
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.vector_clock import met_until, not_released_since, unordered

FLOOR, LANE_CLOCKS, LANE_SYNC = (at.SLOT[n] for n in ("FLOOR", "LANE_CLOCKS", "LANE_SYNC"))
RAW, WAR, WAW = at.RAW, at.WAR, at.WAW
STRENGTH_AT, STRENGTH_MASK, WARPGROUP_BIT = at.STRENGTH_AT, at.STRENGTH_MASK, at.WARPGROUP_BIT
BLOCK_WARPS, SITE_BYTES = at.SLOT["BLOCK_WARPS"], at.SLOT["SITE_BYTES"]
BLOCK_SCOPE, CLUSTER_SCOPE, GPU_SCOPE = at.BLOCK_SCOPE, at.CLUSTER_SCOPE, at.GPU_SCOPE
READERS, EARLIER_READER, OVERLAPPED_READER = at.READERS, at.EARLIER_READER, at.OVERLAPPED_READER
ENTRY_BYTES, LAUNCH_START = at.ENTRY_BYTES, at.SLOT["LAUNCH_START"]
GLOBAL_READERS = at.GLOBAL_READERS
PENDING = at.PENDING
WARP_MASK, SITE_AT, SITE_MASK = at.WARP_MASK, at.SITE_AT, at.SITE_MASK
DATA = machine.DATA


def info_word(lanes: int, site: int, strength: int, warp: int) -> int:
    """The word next to a time, which identifies the access."""
    return (lanes << 32) | (site << SITE_AT) | (strength << STRENGTH_AT) | warp


def strength_of(info: int) -> int:
    """The scope of a strong access; 0 if it is not strong."""
    return (info >> STRENGTH_AT) & STRENGTH_MASK


def includes_both(state: int, scope: int, warp: int, when: int, info: int) -> bool:
    """Whether a scope includes both a thread of `warp` and the one that accessed at `when`."""
    if scope == GPU_SCOPE:
        return True
    if not is_own(state, when):
        return False
    width = load64(state + BLOCK_WARPS)
    return scope == CLUSTER_SCOPE or (scope == BLOCK_SCOPE and warp // width == (info & WARP_MASK) // width)


def is_of_earlier_launch(state: int, when: int) -> bool:
    """Whether a time, possibly of an access that was pending, belongs to a launch that the current one may overlap."""
    return bool(when & (PENDING - 1) < load64(state + LAUNCH_START))


def overlap_completely(state: int, site: int, other: int) -> bool:
    """Whether two instructions access elements of one size, and so the same bytes if they have any in common."""
    own, others = load8(load64(state + SITE_BYTES) + site), load8(load64(state + SITE_BYTES) + other)
    return bool(own == others or own == 0 or others == 0)


def check(
    state: int, kind: int, warp: int, lanes: int, site: int, strength: int, address: int, size: int, entry: int
) -> bool:
    """Whether the access in `entry` races with the current one by `lanes` of `warp`; if so, it is reported.

    Strong accesses of two launches are assumed to have elements of one size.
    """
    when = load64(entry)
    info = load64(entry + 8)
    if when == 0:
        return False
    scope, before = min(strength, strength_of(info)), (info >> SITE_AT) & SITE_MASK
    if is_of_earlier_launch(state, when):
        when &= PENDING - 1  # what was in flight has landed by the end of the launch
        if scope == GPU_SCOPE:
            return False
        before = -1 - before
    elif scope and includes_both(state, scope, warp, when, info) and overlap_completely(state, site, before):
        return False
    pair = unordered(state, warp, lanes, when, info)
    if pair < 0:
        return False
    thread, other = 32 * warp + (pair & 31), 32 * (info & WARP_MASK) + (pair >> 5)
    report(state, kind, site, thread, address, size, before, when, other)
    return True


def still_unknown(state: int, warp: int, lane: int, when: int, lanes: int) -> int:
    """Those of `lanes`, which read at `when`, whose reads are not known to `lane`, which reads now."""
    left = lanes
    for other in range(32):
        clock = load64(state + LANE_CLOCKS) + 8 * (1024 * warp + 32 * lane + other)
        if (lanes >> other) & 1 and when <= load64(clock):
            left &= ~(1 << other)
    return left


def readers_of(info: int) -> int:
    """Mask of the reading lanes."""
    return 0 if info & WARPGROUP_BIT else (info >> 32) & machine.FULL_MASK


def note_reader(state: int, entry: int, warp: int, lanes: int, site: int, strength: int, time: int) -> None:
    """Record readers of this warp; earlier reads that happened before theirs are dropped.

    Earlier reads that are kept get the current time. So releases since then are ignored: they could not have released
    the later read. The same holds for a product: knowledge of this warp implies knowledge of it.
    """
    seen = load64(entry)
    if seen >= PENDING:
        # A copy or product of this warp is still reading; the later one's entry is kept.
        if time < seen:
            return
        lanes |= readers_of(load64(entry + 8))
    elif seen > load64(state + FLOOR) and seen > met_until(state, warp):
        info = load64(entry + 8)
        if strength_of(info) == strength:
            before = not_released_since(state, warp, readers_of(info), seen)
            if load64(load64(state + LANE_SYNC) + 8 * warp) >= seen:
                for lane in range(32):
                    if (lanes >> lane) & 1:
                        before = still_unknown(state, warp, lane, seen, before)
            lanes |= before
        elif strength > strength_of(info):
            return
    store64(entry, time)
    store64(entry + 8, info_word(lanes, site, strength, warp))


def global_reader(state: int, cell: int, warp: int) -> int:
    """The entry for a reader of this warp; 0 if both entries are used by others of its cluster.

    A reader of another cluster makes room, and becomes the cell's earlier reader. The earlier reader that it replaces
    is kept if it belongs to an earlier launch.
    """
    free = 0
    for index in range(GLOBAL_READERS):
        entry = cell + READERS + ENTRY_BYTES * index
        when = load64(entry)
        if not is_own(state, when):
            free = entry
        elif load64(entry + 8) & WARP_MASK == warp:
            return entry
        elif when <= load64(state + FLOOR):
            free = entry
    if free and load64(free) and not is_own(state, load64(free)):
        earlier, kept = load64(cell + EARLIER_READER), load64(cell + OVERLAPPED_READER)
        if earlier and is_of_earlier_launch(state, earlier) and (kept == 0 or earlier < kept):
            store64(cell + OVERLAPPED_READER, earlier)
            store64(cell + OVERLAPPED_READER + 8, load64(cell + EARLIER_READER + 8))
        store64(cell + EARLIER_READER, load64(free) & (PENDING - 1))
        store64(cell + EARLIER_READER + 8, load64(free + 8))
        store64(free, 0)
    return free


def same_value(warp_state: int, host: int, element: int, lane: int, other: int, item: int, together: bool) -> bool:
    """Whether `lane` stores the value that is already there or that `other` stores in the same instruction."""
    row = warp_state + DATA + 32 * element * item
    for byte in range(element):
        mine = load8(row + element * lane + byte)
        theirs = load8(row + element * other + byte) if together else load8(host + byte)
        if mine != theirs:
            return False
    return True


def check_written(
    state: int, warp_state: int, warp: int, lane: int, site: int, strength: int, time: int, address: int, size: int,
    entry: int, host: int, element: int, item: int,
) -> None:  # fmt: skip
    """Report a store's race with the write in `entry`, unless both store one value. `host` is the destination."""
    when, info = load64(entry), load64(entry + 8)
    if when == 0:
        return
    other = 0
    while not (info >> (32 + other)) & 1:
        other += 1
    if when >= PENDING or not same_value(warp_state, host, element, lane, other, item, when == time):
        check(state, WAW, warp, 1 << lane, site, strength, address, size, entry)
