"""Which accesses happened before which, whatever the schedule: vector clocks, by warp, and by lane within a warp.

An access carries the time at which it ran. A thread knows another's accesses up to some time; what it does not know is
not ordered with what it does, even if it ran before. Knowledge comes from barriers, from `__syncwarp`, and from strong
accesses (atomics, volatile, release and acquire) to one address; shuffles and votes give none (PTX ISA, 9.7.9.6).

Kept simple where the error is on the side of silence: a warp that acquires tells all its lanes, a release speaks for
the whole warp, and what comes from other blocks through global memory is a prefix of time, not a vector. Only what lies
before a fence for the whole GPU is released to other blocks; within a block no fence is asked for.

An asynchronous copy carries the end of time until its thread waits for it, see `copies_in_flight.py`.

The asynchronous proxy (bulk copies that store, products of warpgroups) sees what a thread wrote only behind a
`fence.proxy.async`, of the writer's or of whoever has come to know of the write. What lies before such a fence has a
vector of clocks of its own, which goes where the other goes.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import fill_ones, load64, store64

(
    TIME, BLOCK_START, FLOOR, WARPS, SHARED_SYNC, PHASE_SYNC, CLOCKS, LANE_CLOCKS, LANE_SYNC, PROXY_CLOCKS, OWN_PREFIX,
    OTHER_PREFIX, FENCED, BARRIER_CLOCKS, BLOCK_LOG, BLOCK_COUNT, LOCAL_MAP, LOCAL_BYTES,
) = (
    at.SLOT[name]
    for name in (
        "TIME", "BLOCK_START", "FLOOR", "WARPS", "SHARED_SYNC", "PHASE_SYNC", "CLOCKS", "LANE_CLOCKS", "LANE_SYNC",
        "PROXY_CLOCKS", "OWN_PREFIX", "OTHER_PREFIX", "FENCED", "BARRIER_CLOCKS", "BLOCK_LOG", "BLOCK_COUNT",
        "LOCAL_MAP", "LOCAL_BYTES",
    )
)  # fmt: skip
GLOBAL_SYNC = at.GLOBAL_SYNC
PENDING = at.PENDING
PROXY_BIT, WARPGROUP_BIT, WARPGROUP_WARPS = at.PROXY_BIT, at.WARPGROUP_BIT, machine.WARPGROUP_WARPS


def tick(state: int) -> int:
    """The time of what happens now."""
    time = load64(state + TIME) + 1
    store64(state + TIME, time)
    return int(time)


def raise_to(place: int, time: int) -> None:
    """The word at `place` becomes the maximum of itself and `time`."""
    if load64(place) < time:
        store64(place, time)


def raise_all(places: int, times: int, count: int) -> None:
    """The same for `count` words, one by one."""
    for word in range(count):
        raise_to(places + 8 * word, load64(times + 8 * word))


def lane_clock(state: int, warp: int, lane: int, other: int) -> int:
    """Address of what `lane` knows about `other`."""
    return int(load64(state + LANE_CLOCKS) + 8 * (1024 * warp + 32 * lane + other))


def unordered(state: int, warp: int, lanes: int, when: int, info: int) -> int:
    """A lane among `lanes` that does not know the access `info` at `when`, plus 32 x the lane that made it; or -1."""
    if when >= PENDING:
        # Nobody knows the end of a copy in flight; what an earlier block did not wait for is no more.
        if when - PENDING <= load64(state + BLOCK_START):
            return -1
    elif when <= load64(state + BLOCK_START):
        if when <= load64(load64(state + OTHER_PREFIX) + 8 * warp):
            return -1
    elif when <= load64(state + FLOOR) or when <= load64(load64(state + OWN_PREFIX) + 8 * warp):
        return -1
    else:
        other = info & 31
        if when <= load64(load64(state + CLOCKS) + 8 * (warp * load64(state + WARPS) + other)):
            return -1
        if info & WARPGROUP_BIT:
            if knows_warpgroup(state, warp, other, when):
                return -1
        elif other == warp:
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


def knows_warpgroup(state: int, warp: int, first: int, when: int) -> bool:
    """Whether a warp is of the warpgroup that begins with `first`, or knows what one of its warps did at `when`."""
    known = load64(state + CLOCKS) + 8 * warp * load64(state + WARPS)
    latest = when if warp & ~(WARPGROUP_WARPS - 1) == first else 0
    for member in range(first, first + WARPGROUP_WARPS):
        latest = max(latest, load64(known + 8 * member))
    return bool(latest >= when)


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
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (2 * warps + 3)
    raise_all(clock, known, warps)
    raise_all(clock + 8 * warps, load64(state + PROXY_CLOCKS) + 8 * warp * warps, warps)
    rest = clock + 16 * warps
    raise_to(rest, load64(load64(state + OWN_PREFIX) + 8 * warp))
    raise_to(rest + 8, load64(load64(state + OTHER_PREFIX) + 8 * warp))
    raise_to(rest + 16, load64(load64(state + FENCED) + 8 * warp))


def leave_barrier(state: int, warp: int, barrier: int) -> None:
    """The warp acquires what all who arrived had known."""
    warps = load64(state + WARPS)
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (2 * warps + 3)
    raise_all(load64(state + CLOCKS) + 8 * warp * warps, clock, warps)
    raise_all(load64(state + PROXY_CLOCKS) + 8 * warp * warps, clock + 8 * warps, warps)
    rest = clock + 16 * warps
    raise_to(load64(state + OWN_PREFIX) + 8 * warp, load64(rest))
    raise_to(load64(state + OTHER_PREFIX) + 8 * warp, load64(rest + 8))
    # What one thread fenced before the barrier, another may release behind it.
    raise_to(load64(state + FENCED) + 8 * warp, load64(rest + 16))


def reset_barrier(state: int, barrier: int, everyone: bool) -> None:
    """The barrier is ready for its next use. Where `everyone` was there, all know all."""
    warps = load64(state + WARPS)
    clock = load64(state + BARRIER_CLOCKS) + 8 * barrier * (2 * warps + 3)
    for word in range(2 * warps + 3):
        store64(clock + 8 * word, 0)
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
    clock = shared_clock(state, load64(state + SHARED_SYNC), index)
    if acquires:
        acquire(state, warp, clock)
    if releases:
        release(state, warp, clock)


def shared_clock(state: int, table: int, index: int) -> int:
    """What was released at a cell of shared memory: `SHARED_SYNC`, or `PHASE_SYNC`."""
    return table + 16 * index * load64(state + WARPS)


def acquire(state: int, warp: int, clock: int) -> None:
    """The warp knows what was released there."""
    warps = load64(state + WARPS)
    raise_all(load64(state + CLOCKS) + 8 * warp * warps, clock, warps)
    raise_all(load64(state + PROXY_CLOCKS) + 8 * warp * warps, clock + 8 * warps, warps)


def release(state: int, warp: int, clock: int) -> None:
    """What the warp knows, and what it did, is released there."""
    warps = load64(state + WARPS)
    raise_all(clock, load64(state + CLOCKS) + 8 * warp * warps, warps)
    raise_to(clock + 8 * warp, load64(state + TIME))
    raise_all(clock + 8 * warps, load64(state + PROXY_CLOCKS) + 8 * warp * warps, warps)


def finish_phase(state: int, index: int) -> None:
    """An mbarrier's phase is over: what was released to it is there for those who find it so."""
    raise_all(
        shared_clock(state, load64(state + SHARED_SYNC), index),
        shared_clock(state, load64(state + PHASE_SYNC), index),
        2 * load64(state + WARPS),
    )


def fence_proxy(state: int, warp: int) -> None:
    """`fence.proxy.async`: the asynchronous proxy sees what the warp did, and knows of others."""
    warps = load64(state + WARPS)
    fenced = load64(state + PROXY_CLOCKS) + 8 * warp * warps
    raise_all(fenced, load64(state + CLOCKS) + 8 * warp * warps, warps)
    raise_to(fenced + 8 * warp, tick(state))
    for other in range(warps):
        raise_to(fenced + 8 * other, load64(state + FLOOR))


def is_fenced(state: int, warp: int, when: int, info: int) -> bool:
    """Whether an access that the warp knows of lies before a proxy fence, or was none of a thread's."""
    if info & PROXY_BIT or when >= PENDING or when <= load64(load64(state + OWN_PREFIX) + 8 * warp):
        return True
    fenced = load64(state + PROXY_CLOCKS) + 8 * warp * load64(state + WARPS)
    return when <= load64(state + BLOCK_START) or when <= load64(fenced + 8 * (info & 31))


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
