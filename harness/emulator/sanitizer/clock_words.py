"""The words of a vector clock: recording what is known of a warp, merging clocks, and looking up what they know."""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64

CLOCK_WORDS = at.CLOCK_WORDS
FULL_MASK = machine.FULL_MASK
TIME, BLOCK_START, FLOOR, WARPS, CLOCKS, FEW_CLOCKS, FEW_LANES = (
    at.SLOT[name] for name in ("TIME", "BLOCK_START", "FLOOR", "WARPS", "CLOCKS", "FEW_CLOCKS", "FEW_LANES")
)
PENDING, CLUSTER_SHIFT = at.PENDING, at.CLUSTER_SHIFT


# A clock: up to which time each warp's actions are known, and which of them are before a proxy fence. Usually knowledge
# of a warp applies to all of its lanes. But a lane that arrives at an mbarrier, or sets a flag, releases only its own
# actions and what it acquired from others. So a clock has a second time for each warp, with the lanes to which it
# applies. If several lanes were released at different times, the latest is used for all of them, which may miss races
# but does not report false ones.
def clock_bytes(warps: int) -> int:
    """Bytes of one clock."""
    return 8 * CLOCK_WORDS * warps


def clear_clock(clock: int, warps: int) -> None:
    """Forget what the clock knows."""
    for place in range(clock, clock + clock_bytes(warps), 8):
        store64(place, 0)


def raise_to(place: int, time: int) -> None:
    """Set the word at `place` to the maximum of itself and `time`."""
    if load64(place) < time:
        store64(place, time)


def fenced_part(clock: int, warps: int) -> int:
    """The part of a clock for actions before a proxy fence; the first part is for all known actions."""
    return clock + clock_bytes(warps) // 2


def latest(part: int, warps: int, other: int) -> int:
    """Latest time up to which actions of any lane of `other` are known."""
    return int(max(load64(part + 8 * other), load64(part + 8 * (warps + other))))


def lanes_known(part: int, warps: int, other: int, when: int) -> int:
    """Mask of the lanes of `other` whose actions at the time `when` are known."""
    if when <= load64(part + 8 * other):
        return FULL_MASK
    if when <= load64(part + 8 * (warps + other)):
        return int(load64(part + 8 * (2 * warps + other)))
    return 0


def tell(part: int, warps: int, other: int, time: int, lanes: int) -> None:
    """Record that the actions of these lanes of `other` up to `time` are known."""
    everyone, some, mask = part + 8 * other, part + 8 * (warps + other), part + 8 * (2 * warps + other)
    if time <= load64(everyone):
        return
    older, few = load64(some), load64(mask)
    newer, speaking = time, lanes
    if older > newer:
        newer, speaking = older, few
        older, few = time, lanes
    if older <= load64(everyone):
        few = 0
    if older == newer:
        speaking |= few
    if speaking == FULL_MASK:
        store64(everyone, newer)
        return
    if speaking | few == FULL_MASK:
        store64(everyone, older)
        few = 0
    store64(some, newer)
    store64(mask, speaking | few)


def merge_parts(part: int, source: int, warps: int) -> None:
    """Merge one part of the clock `source` into another clock's."""
    for other in range(warps):
        raise_to(part + 8 * other, load64(source + 8 * other))
        time = load64(source + 8 * (warps + other))
        if time:
            tell(part, warps, other, time, load64(source + 8 * (2 * warps + other)))


def merge(clock: int, source: int, warps: int) -> None:
    """Merge the clock `source` into `clock`."""
    merge_parts(clock, source, warps)
    merge_parts(fenced_part(clock, warps), fenced_part(source, warps), warps)


def tick(state: int) -> int:
    """Advance and return the current time."""
    time = load64(state + TIME) + 1
    store64(state + TIME, time)
    return int(time)


def is_own(state: int, when: int) -> bool:
    """Whether a time, possibly of an access that is pending, belongs to the current cluster."""
    return bool((when & (PENDING - 1)) >> CLUSTER_SHIFT == load64(state + BLOCK_START) >> CLUSTER_SHIFT)


def clock_of(state: int, warp: int) -> int:
    """Clock of what all lanes of a warp know."""
    return int(load64(state + CLOCKS) + clock_bytes(load64(state + WARPS)) * warp)


def few_clock_of(state: int, warp: int) -> int:
    """Clock of what only the `few_lanes` of a warp know."""
    return int(load64(state + FEW_CLOCKS) + clock_bytes(load64(state + WARPS)) * warp)


def few_lanes(state: int, warp: int) -> int:
    """Mask of the lanes that have acquired something since the last `__syncwarp` that the others have not."""
    return int(load64(load64(state + FEW_LANES) + 8 * warp))


def knows_warp(state: int, warp: int, other: int, when: int) -> bool:
    """Whether a warp, or some of its lanes, know an action that `other` did as a whole at `when`."""
    if warp == other or when <= load64(state + FLOOR):
        return True
    warps = load64(state + WARPS)
    known = latest(clock_of(state, warp), warps, other)
    if few_lanes(state, warp):
        known = max(known, latest(few_clock_of(state, warp), warps, other))
    return bool(known >= when)


def lowest(lanes: int) -> int:
    """Index of the lowest set lane; at least one has to be set."""
    lane = 0
    while not (lanes >> lane) & 1:
        lane += 1
    return lane
