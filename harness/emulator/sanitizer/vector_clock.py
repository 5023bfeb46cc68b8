"""Which accesses happened before which, whatever the schedule: vector clocks, by warp, and by lane within a warp.

An access carries the time at which it ran. A thread knows another's accesses up to some time; what it does not know is
not ordered with what it does, even if it ran before. Knowledge comes from barriers, from `__syncwarp`, and from strong
accesses (atomics, volatile, release and acquire) to one address; shuffles and votes give none (PTX ISA, 9.7.9.6).

Kept simple where the error is on the side of silence: a warp that acquires tells all its lanes, a release speaks for
the whole warp, and what comes from other blocks through global memory is a prefix of time, not a vector. Only what lies
before a fence for the whole GPU is released to other blocks; within a block no fence is asked for.

An asynchronous copy carries the end of time until its thread waits for it, see `copies_in_flight.py`. That serves for
cp.async, which its own thread waits for; what others may wait for (TMA, by an mbarrier) would be one more warp here.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import fill_ones, load64, store64

(
    TIME, BLOCK_START, FLOOR, WARPS, SHARED_SYNC, CLOCKS, LANE_CLOCKS, LANE_SYNC, OWN_PREFIX, OTHER_PREFIX, FENCED,
    BARRIER_CLOCKS, BLOCK_LOG, BLOCK_COUNT, LOCAL_MAP, LOCAL_BYTES,
) = (
    at.SLOT[name]
    for name in (
        "TIME", "BLOCK_START", "FLOOR", "WARPS", "SHARED_SYNC", "CLOCKS", "LANE_CLOCKS", "LANE_SYNC", "OWN_PREFIX",
        "OTHER_PREFIX", "FENCED", "BARRIER_CLOCKS", "BLOCK_LOG", "BLOCK_COUNT", "LOCAL_MAP", "LOCAL_BYTES",
    )
)  # fmt: skip
GLOBAL_SYNC = at.GLOBAL_SYNC
PENDING = at.PENDING


def tick(state: int) -> int:
    """The time of what happens now."""
    time = load64(state + TIME) + 1
    store64(state + TIME, time)
    return int(time)


def raise_to(place: int, time: int) -> None:
    """The word at `place` becomes the maximum of itself and `time`."""
    if load64(place) < time:
        store64(place, time)


def lane_clock(state: int, warp: int, lane: int, other: int) -> int:
    """Address of what `lane` knows about `other`."""
    return int(load64(state + LANE_CLOCKS) + 8 * (1024 * warp + 32 * lane + other))


def unordered(state: int, warp: int, lanes: int, when: int, info: int) -> int:
    """A lane among `lanes` that does not know the access `info` at `when`, plus 32 x the lane that made it; or -1."""
    if when >= PENDING:
        pass  # nobody knows the end of a copy in flight
    elif when <= load64(state + BLOCK_START):
        if when <= load64(load64(state + OTHER_PREFIX) + 8 * warp):
            return -1
    elif when <= load64(state + FLOOR) or when <= load64(load64(state + OWN_PREFIX) + 8 * warp):
        return -1
    else:
        other = info & 31
        if when <= load64(load64(state + CLOCKS) + 8 * (warp * load64(state + WARPS) + other)):
            return -1
        if other == warp:
            for lane in range(32):
                if not (lanes >> lane) & 1:
                    continue
                for author in range(32):
                    if author == lane or not (info >> (32 + author)) & 1:
                        continue
                    if when > load64(lane_clock(state, warp, lane, author)):
                        return lane + 32 * author
            return -1
    lane = 0
    while not (lanes >> lane) & 1:
        lane += 1
    author = 0
    while not (info >> (32 + author)) & 1:
        author += 1
    return lane + 32 * author


def begin_block(state: int, block: int) -> None:
    """All that went before is another block's."""
    time = tick(state)
    store64(state + BLOCK_START, time)
    store64(state + FLOOR, time)
    entry = load64(state + BLOCK_LOG) + 16 * load64(state + BLOCK_COUNT)
    store64(entry, time)
    store64(entry + 8, block)
    store64(state + BLOCK_COUNT, load64(state + BLOCK_COUNT) + 1)
    fill_ones(load64(state + LOCAL_MAP), load64(state + LOCAL_BYTES))
    # Other clocks hold times from before this block, which are as good as none.
    for warp in range(load64(state + WARPS)):
        store64(load64(state + OTHER_PREFIX) + 8 * warp, 0)
        store64(load64(state + FENCED) + 8 * warp, 0)


def arrive_at_barrier(state: int, warp: int, barrier: int) -> None:
    """The warp releases what it knows to those who wait there."""
    time = tick(state)
    warps = load64(state + WARPS)
    known = load64(state + CLOCKS) + 8 * warp * warps
    store64(known + 8 * warp, time)
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (warps + 3)
    for other in range(warps):
        raise_to(clock + 8 * other, load64(known + 8 * other))
    raise_to(clock + 8 * warps, load64(load64(state + OWN_PREFIX) + 8 * warp))
    raise_to(clock + 8 * warps + 8, load64(load64(state + OTHER_PREFIX) + 8 * warp))
    raise_to(clock + 8 * warps + 16, load64(load64(state + FENCED) + 8 * warp))


def leave_barrier(state: int, warp: int, barrier: int) -> None:
    """The warp acquires what all who arrived had known."""
    warps = load64(state + WARPS)
    known = load64(state + CLOCKS) + 8 * warp * warps
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (warps + 3)
    for other in range(warps):
        raise_to(known + 8 * other, load64(clock + 8 * other))
    raise_to(load64(state + OWN_PREFIX) + 8 * warp, load64(clock + 8 * warps))
    raise_to(load64(state + OTHER_PREFIX) + 8 * warp, load64(clock + 8 * warps + 8))
    # What one thread fenced before the barrier, another may release behind it.
    raise_to(load64(state + FENCED) + 8 * warp, load64(clock + 8 * warps + 16))


def reset_barrier(state: int, barrier: int, everyone: bool) -> None:
    """The barrier is ready for its next use. Where `everyone` was there, all know all."""
    warps = load64(state + WARPS)
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (warps + 3)
    for other in range(warps + 3):
        store64(clock + 8 * other, 0)
    if everyone:
        store64(state + FLOOR, load64(state + TIME))


def meet_lanes(state: int, warp: int, group: int, started: int) -> None:
    """`bar.warp.sync` of the lanes in `group`: each knows what any of them knew."""
    time = tick(state)
    if group == started:
        store64(load64(state + CLOCKS) + 8 * (warp * load64(state + WARPS) + warp), time)
        return
    store64(load64(state + LANE_SYNC) + 8 * warp, time)
    for other in range(32):
        known = time if (group >> other) & 1 else 0
        for lane in range(32):
            if (group >> lane) & 1:
                known = max(known, load64(lane_clock(state, warp, lane, other)))
        for lane in range(32):
            if (group >> lane) & 1:
                store64(lane_clock(state, warp, lane, other), known)


def synchronise_shared(state: int, warp: int, index: int, releases: bool, acquires: bool) -> None:
    """A strong access to a cell of shared memory."""
    warps = load64(state + WARPS)
    known = load64(state + CLOCKS) + 8 * warp * warps
    clock = load64(state + SHARED_SYNC) + 8 * index * warps
    for other in range(warps):
        if acquires:
            raise_to(known + 8 * other, load64(clock + 8 * other))
        if releases:
            raise_to(clock + 8 * other, load64(state + TIME) if other == warp else load64(known + 8 * other))


def synchronise_global(state: int, warp: int, cell: int, releases: bool, acquires: bool, fenced: bool) -> None:
    """A strong access to a cell of global memory; `fenced` where it is its own fence."""
    own, others = cell + GLOBAL_SYNC, cell + GLOBAL_SYNC + 8
    if acquires:
        raise_to(load64(state + OWN_PREFIX) + 8 * warp, load64(own))
        raise_to(load64(state + OTHER_PREFIX) + 8 * warp, load64(others))
    if releases:
        time = load64(state + TIME)
        raise_to(own, time)
        raise_to(others, time if fenced else load64(load64(state + FENCED) + 8 * warp))
