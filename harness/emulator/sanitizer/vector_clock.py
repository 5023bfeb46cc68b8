"""Vector clocks by warp, and by lane within a warp, which define a happens-before order that holds in every schedule.

An access has the time at which it ran. A thread knows another's accesses up to some time; accesses that it does not
know are unordered with its own, even if they ran before. Knowledge comes from barriers, from `__syncwarp`, and from
strong accesses (atomics, volatile, release and acquire) to one address; shuffles and votes give none (PTX ISA,
9.7.9.6).

In shared memory, a lane releases its own actions and those that it knows of, and what some lanes acquire, the other
lanes of their warp know after a `__syncwarp`. Simplifications may miss races but report no false ones: lanes that have
acquired different things since the last `__syncwarp` know all of it; through global memory a warp releases and acquires
as a whole, and knowledge of other blocks is a prefix of time instead of a vector. Only actions before a GPU-wide fence
are released to other blocks; within a block no fence is required.

An asynchronous copy has the time `PENDING` until its thread waits for it, see `copies_in_flight.py`.

The asynchronous proxy (bulk copies that store, products of warpgroups) sees what a thread wrote only after a
`fence.proxy.async`, by the writer or by a thread that knows of the write. Actions before such a fence have separate
times, which are released together with the others.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import fill_ones, load64, store64
from harness.emulator.sanitizer.clock import (
    clock_bytes,
    fenced_part,
    lanes_known,
    latest,
    merge,
    merge_parts,
    raise_to,
    tell,
)

(
    TIME, BLOCK_START, FLOOR, WARPS, SHARED_SYNC, PHASE_SYNC, CLOCKS, FEW_CLOCKS, FEW_LANES, RELEASED, LANE_CLOCKS,
    LANE_SYNC, OWN_PREFIX, OTHER_PREFIX, FENCED, BARRIER_CLOCKS, BLOCK_LOG, BLOCK_COUNT, LOCAL_MAP, LOCAL_BYTES,
    CLUSTER_FENCED,
) = (
    at.SLOT[name]
    for name in (
        "TIME", "BLOCK_START", "FLOOR", "WARPS", "SHARED_SYNC", "PHASE_SYNC", "CLOCKS", "FEW_CLOCKS", "FEW_LANES",
        "RELEASED", "LANE_CLOCKS", "LANE_SYNC", "OWN_PREFIX", "OTHER_PREFIX", "FENCED", "BARRIER_CLOCKS", "BLOCK_LOG",
        "BLOCK_COUNT", "LOCAL_MAP", "LOCAL_BYTES", "CLUSTER_FENCED",
    )
)  # fmt: skip
RELEASED_BYTES = 8 * at.RELEASED_WORDS
FULL_MASK = machine.FULL_MASK
GLOBAL_SYNC = at.GLOBAL_SYNC
PENDING, WARP_MASK = at.PENDING, at.WARP_MASK
PROXY_BIT, WARPGROUP_BIT, WARPGROUP_WARPS = at.PROXY_BIT, at.WARPGROUP_BIT, machine.WARPGROUP_WARPS


def tick(state: int) -> int:
    """Advance and return the current time."""
    time = load64(state + TIME) + 1
    store64(state + TIME, time)
    return int(time)


def clock_of(state: int, warp: int) -> int:
    """Clock of what all lanes of a warp know."""
    return int(load64(state + CLOCKS) + clock_bytes(load64(state + WARPS)) * warp)


def few_clock_of(state: int, warp: int) -> int:
    """Clock of what only the `few_lanes` of a warp know."""
    return int(load64(state + FEW_CLOCKS) + clock_bytes(load64(state + WARPS)) * warp)


def few_lanes(state: int, warp: int) -> int:
    """Mask of the lanes that have acquired something since the last `__syncwarp` that the others have not."""
    return int(load64(load64(state + FEW_LANES) + 8 * warp))


def met_until(state: int, warp: int) -> int:
    """The time up to which all lanes of a warp know each other's actions."""
    return int(load64(clock_of(state, warp) + 8 * warp))


def lane_clock(state: int, warp: int, lane: int, other: int) -> int:
    """Address of what `lane` knows about `other`."""
    return int(load64(state + LANE_CLOCKS) + 8 * (1024 * warp + 32 * lane + other))


def unordered(state: int, warp: int, lanes: int, when: int, info: int) -> int:
    """A lane among `lanes` that does not know the access `info` at `when`, plus 32 x the accessing lane; else -1."""
    if when >= PENDING:
        # The end of a copy in flight is unknown; copies that an earlier block did not wait for are discarded.
        if when - PENDING <= load64(state + BLOCK_START):
            return -1
    elif when <= load64(state + BLOCK_START):
        if when <= load64(load64(state + OTHER_PREFIX) + 8 * warp):
            return -1
    elif when <= load64(state + FLOOR) or when <= load64(load64(state + OWN_PREFIX) + 8 * warp):
        return -1
    else:
        other = info & WARP_MASK
        authors = (info >> 32) & FULL_MASK
        if info & WARPGROUP_BIT:
            if knows_warpgroup(state, warp, lanes, other, when):
                return -1
        else:
            authors &= ~known_to(state, warp, lanes, other, when)
            if authors and other == warp:
                return unordered_lanes(state, warp, lanes, when, authors)
            if authors == 0:
                return -1
        return lowest(lanes) + 32 * lowest(authors)
    return lowest(lanes) + 32 * lowest((info >> 32) & FULL_MASK)


def lowest(lanes: int) -> int:
    """Index of the lowest set lane; at least one has to be set."""
    lane = 0
    while not (lanes >> lane) & 1:
        lane += 1
    return lane


def known_to(state: int, warp: int, lanes: int, other: int, when: int) -> int:
    """The lanes of `other` whose actions at `when` are known to all of `lanes`."""
    warps = load64(state + WARPS)
    known = lanes_known(clock_of(state, warp), warps, other, when)
    if known != FULL_MASK and lanes & ~few_lanes(state, warp) == 0:
        known |= lanes_known(few_clock_of(state, warp), warps, other, when)
    return int(known)


def unordered_lanes(state: int, warp: int, lanes: int, when: int, authors: int) -> int:
    """A lane among `lanes` that does not know an action of another in `authors`, plus 32 x that one; else -1."""
    for lane in range(32):
        if not (lanes >> lane) & 1:
            continue
        for author in range(32):
            if author == lane or not (authors >> author) & 1:
                continue
            if when > load64(lane_clock(state, warp, lane, author)):
                return lane + 32 * author
    return -1


def knows_warpgroup(state: int, warp: int, lanes: int, first: int, when: int) -> bool:
    """Whether lanes belong to the warpgroup that begins with `first`, or know what one of its warps did at `when`."""
    if warp & ~(WARPGROUP_WARPS - 1) == first:
        return True
    warps, known = load64(state + WARPS), 0
    for member in range(first, first + WARPGROUP_WARPS):
        known = max(known, latest(clock_of(state, warp), warps, member))
        if lanes & ~few_lanes(state, warp) == 0:
            known = max(known, latest(few_clock_of(state, warp), warps, member))
    return bool(known >= when)


def begin_cluster(state: int, cluster: int) -> None:
    """Begin a cluster: earlier accesses belong to other clusters' blocks."""
    time = tick(state)
    store64(state + BLOCK_START, time)
    store64(state + FLOOR, time)
    entry = load64(state + BLOCK_LOG) + 16 * load64(state + BLOCK_COUNT)
    store64(entry, time)
    store64(entry + 8, cluster)
    store64(state + BLOCK_COUNT, load64(state + BLOCK_COUNT) + 1)
    fill_ones(load64(state + LOCAL_MAP), load64(state + LOCAL_BYTES))
    # Other clocks contain times from before this block, which have no effect.
    for warp in range(load64(state + WARPS)):
        store64(load64(state + OTHER_PREFIX) + 8 * warp, 0)
        store64(load64(state + FENCED) + 8 * warp, 0)
        store64(load64(state + FEW_LANES) + 8 * warp, 0)
        store64(load64(state + CLUSTER_FENCED) + 8 * warp, 0)


def tell_all_lanes(state: int, warp: int) -> None:
    """Share what some lanes of a warp know with all of its lanes."""
    if few_lanes(state, warp):
        merge(clock_of(state, warp), few_clock_of(state, warp), load64(state + WARPS))
        store64(load64(state + FEW_LANES) + 8 * warp, 0)


def arrive_at_barrier(state: int, warp: int, barrier: int) -> None:
    """Release the warp's knowledge to those who wait at the barrier."""
    time = tick(state)
    tell_all_lanes(state, warp)
    store64(clock_of(state, warp) + 8 * warp, time)
    clock, warps = barrier_clock(state, barrier), load64(state + WARPS)
    merge(clock, clock_of(state, warp), warps)
    rest = clock + clock_bytes(warps)
    raise_to(rest, load64(load64(state + OWN_PREFIX) + 8 * warp))
    raise_to(rest + 8, load64(load64(state + OTHER_PREFIX) + 8 * warp))
    raise_to(rest + 16, load64(load64(state + FENCED) + 8 * warp))


def barrier_clock(state: int, barrier: int) -> int:
    """Clock of what the arrived warps know; three more words follow it."""
    return int(load64(state + BARRIER_CLOCKS) + barrier_bytes(state) * barrier)


def barrier_bytes(state: int) -> int:
    """Bytes of the state of one barrier."""
    return int(clock_bytes(load64(state + WARPS)) + 24)


def leave_barrier(state: int, warp: int, barrier: int) -> None:
    """The warp acquires what all arrived warps knew."""
    clock, warps = barrier_clock(state, barrier), load64(state + WARPS)
    merge(clock_of(state, warp), clock, warps)
    rest = clock + clock_bytes(warps)
    raise_to(load64(state + OWN_PREFIX) + 8 * warp, load64(rest))
    raise_to(load64(state + OTHER_PREFIX) + 8 * warp, load64(rest + 8))
    # What one thread fenced before the barrier, another may release after it.
    raise_to(load64(state + FENCED) + 8 * warp, load64(rest + 16))


def reset_barrier(state: int, barrier: int, everyone: bool) -> None:
    """Reset the barrier for its next use. If `everyone` arrived, all warps know everything."""
    clock = barrier_clock(state, barrier)
    for place in range(clock, clock + barrier_bytes(state), 8):
        store64(place, 0)
    if everyone:
        store64(state + FLOOR, load64(state + TIME))


def meet_lanes(state: int, warp: int, group: int, started: int) -> None:
    """`bar.warp.sync` of the lanes in `group`: each acquires what any of them knew."""
    time = tick(state)
    if group == started:
        tell_all_lanes(state, warp)
        store64(clock_of(state, warp) + 8 * warp, time)
        return
    if few_lanes(state, warp) & group:
        store64(load64(state + FEW_LANES) + 8 * warp, few_lanes(state, warp) | group)
    store64(load64(state + LANE_SYNC) + 8 * warp, time)
    for other in range(32):
        known = time if (group >> other) & 1 else 0
        for lane in range(32):
            if (group >> lane) & 1:
                known = max(known, load64(lane_clock(state, warp, lane, other)))
        for lane in range(32):
            if (group >> lane) & 1:
                store64(lane_clock(state, warp, lane, other), known)


def synchronise_shared(state: int, warp: int, lanes: int, index: int, releases: bool, acquires: bool) -> None:
    """A strong access of some lanes to a cell of shared memory."""
    clock = shared_clock(state, load64(state + SHARED_SYNC), index)
    if acquires:
        acquire(state, warp, lanes, clock)
    if releases:
        release(state, warp, lowest(lanes), clock)


def shared_clock(state: int, table: int, index: int) -> int:
    """The clock released at a cell of shared memory, in the table `SHARED_SYNC` or `PHASE_SYNC`."""
    return table + clock_bytes(load64(state + WARPS)) * index


def acquire(state: int, warp: int, lanes: int, clock: int) -> None:
    """These lanes of a warp acquire the clock."""
    few = few_lanes(state, warp) | lanes
    merge(few_clock_of(state, warp), clock, load64(state + WARPS))
    store64(load64(state + FEW_LANES) + 8 * warp, few)
    if few == FULL_MASK:
        tell_all_lanes(state, warp)


def speaks_for(state: int, warp: int, lane: int) -> int:
    """A lane, and those with which it has met in a partial `__syncwarp` since the last full one."""
    lanes, met = 1 << lane, met_until(state, warp)
    if load64(load64(state + LANE_SYNC) + 8 * warp) > met:
        for author in range(32):
            if load64(lane_clock(state, warp, lane, author)) > met:
                lanes |= 1 << author
    return int(lanes)


def release(state: int, warp: int, lane: int, clock: int) -> None:
    """Release a lane's knowledge and its own actions to the clock."""
    warps, time = load64(state + WARPS), load64(state + TIME)
    merge(clock, clock_of(state, warp), warps)
    if (few_lanes(state, warp) >> lane) & 1:
        merge(clock, few_clock_of(state, warp), warps)
    tell(clock, warps, warp, time, speaks_for(state, warp, lane))
    released = load64(state + RELEASED) + RELEASED_BYTES * warp
    store64(released + 8 * lane, time)
    store64(released + RELEASED_BYTES - 8, time)


def not_released_since(state: int, warp: int, lanes: int, when: int) -> int:
    """Those of `lanes` that have not released anything since `when`."""
    released = load64(state + RELEASED) + RELEASED_BYTES * warp
    if load64(released + RELEASED_BYTES - 8) >= when:
        for lane in range(32):
            if load64(released + 8 * lane) >= when:
                lanes &= ~(1 << lane)
    return lanes


def finish_phase(state: int, index: int) -> None:
    """Complete an mbarrier's phase: what was released to it can be acquired."""
    merge(
        shared_clock(state, load64(state + SHARED_SYNC), index),
        shared_clock(state, load64(state + PHASE_SYNC), index),
        load64(state + WARPS),
    )


def fence_proxy(state: int, warp: int, mask: int) -> None:
    """`fence.proxy.async`: what these lanes did, and know of others, becomes visible to the asynchronous proxy."""
    warps, time, clock = load64(state + WARPS), tick(state), clock_of(state, warp)
    fenced = fenced_part(clock, warps)
    merge_parts(fenced, clock, warps)
    if few_lanes(state, warp) & mask:
        merge_parts(fenced, few_clock_of(state, warp), warps)
    for other in range(warps):
        raise_to(fenced + 8 * other, load64(state + FLOOR))
    lanes = mask
    for lane in range(32):
        if (mask >> lane) & 1 and mask != FULL_MASK:
            lanes |= speaks_for(state, warp, lane)
    tell(fenced, warps, warp, time, lanes)


def is_fenced(state: int, warp: int, when: int, info: int) -> bool:
    """Whether an access known to the warp is before a proxy fence, or was not made by a thread."""
    if info & PROXY_BIT or when >= PENDING or when <= load64(load64(state + OWN_PREFIX) + 8 * warp):
        return True
    if when <= load64(state + BLOCK_START):
        return True
    warps, other = load64(state + WARPS), info & WARP_MASK
    fenced = lanes_known(fenced_part(clock_of(state, warp), warps), warps, other, when)
    if few_lanes(state, warp):
        fenced |= lanes_known(fenced_part(few_clock_of(state, warp), warps), warps, other, when)
    return (info >> 32) & FULL_MASK & ~fenced == 0


def synchronise_global(state: int, warp: int, cell: int, releases: bool, acquires: bool, fenced: bool) -> None:
    """A strong access to a cell of global memory; `fenced` if it includes a fence."""
    own, others = cell + GLOBAL_SYNC, cell + GLOBAL_SYNC + 8
    if acquires:
        raise_to(load64(state + OWN_PREFIX) + 8 * warp, load64(own))
        raise_to(load64(state + OTHER_PREFIX) + 8 * warp, load64(others))
    if releases:
        time = load64(state + TIME)
        raise_to(own, time)
        raise_to(others, time if fenced else load64(load64(state + FENCED) + 8 * warp))
