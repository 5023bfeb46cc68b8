"""Vector clocks by warp, and by lane within a warp, which define a happens-before order that holds in every schedule.

An access has the time at which it ran. A thread knows another's accesses up to some time; accesses that it does not
know are unordered with its own, even if they ran before. Knowledge comes from barriers, from `__syncwarp`, and from
strong accesses (atomics, volatile, release and acquire) to one address; shuffles and votes give none (PTX ISA,
9.7.9.6).

In shared memory, a lane releases its own actions and those that it knows of, and what some lanes acquire, the other
lanes of their warp know after a `__syncwarp`. Fences matter there only to accesses with an explicit order and after a
`cas`. Simplifications may miss races but report no false ones: lanes that have acquired different things since the last
`__syncwarp` know all of it. Global memory is in `global_sync.py`, other clusters are in `grid_clock.py`.

An asynchronous copy has the time `PENDING` until its thread waits for it, see `copies_in_flight.py`.

The asynchronous proxy (bulk copies that store, products of warpgroups) sees what a thread wrote only after a
`fence.proxy.async`, by the writer or by a thread that knows of the write. Actions before such a fence have separate
times, which are released together with the others.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import fill_ones, load64, store64
from harness.emulator.sanitizer.clock_words import (
    BLOCK_START,
    FEW_LANES,
    FLOOR,
    FULL_MASK,
    TIME,
    WARPS,
    clock_bytes,
    clock_of,
    fenced_part,
    few_clock_of,
    few_lanes,
    is_own,
    lanes_known,
    latest,
    lowest,
    merge,
    merge_parts,
    raise_to,
    tell,
    tick,
)
from harness.emulator.sanitizer.fences import fence, fenced, forget_fences, note_pending
from harness.emulator.sanitizer.grid_clock import forget_views, knows_cluster

(
    SHARED_SYNC, PHASE_SYNC, RELEASED, LANE_CLOCKS, LANE_SYNC, BARRIER_CLOCKS, CLUSTERS, COUNTS, LOCAL_MAP,
    LOCAL_BYTES, CLUSTER_FENCED,
) = (
    at.SLOT[name]
    for name in (
        "SHARED_SYNC", "PHASE_SYNC", "RELEASED", "LANE_CLOCKS", "LANE_SYNC", "BARRIER_CLOCKS", "CLUSTERS", "COUNTS",
        "LOCAL_MAP", "LOCAL_BYTES", "CLUSTER_FENCED",
    )
)  # fmt: skip
RELEASED_BYTES = 8 * at.RELEASED_WORDS
PENDING, WARP_MASK = at.PENDING, at.WARP_MASK
CLUSTER_COUNT, CLUSTER_SHIFT = at.CLUSTER_COUNT, at.CLUSTER_SHIFT
PENDING_BLOCK, BLOCK_SCOPE, SCOPES = at.PENDING_BLOCK, at.BLOCK_SCOPE, at.SCOPES
ACQUIRES, AWAITS_FENCE, NEEDS_FENCE = at.ACQUIRES, at.AWAITS_FENCE, at.NEEDS_FENCE
PROXY_BIT, WARPGROUP_BIT, WARPGROUP_WARPS = at.PROXY_BIT, at.WARPGROUP_BIT, machine.WARPGROUP_WARPS


def met_until(state: int, warp: int) -> int:
    """The time up to which all lanes of a warp know each other's actions."""
    return int(load64(clock_of(state, warp) + 8 * warp))


def lane_clock(state: int, warp: int, lane: int, other: int) -> int:
    """Address of what `lane` knows about `other`."""
    return int(load64(state + LANE_CLOCKS) + 8 * (1024 * warp + 32 * lane + other))


def unordered(state: int, warp: int, lanes: int, when: int, info: int) -> int:
    """A lane among `lanes` that does not know the access `info` at `when`, plus 32 x the accessing lane; else -1."""
    if when >= PENDING:
        # The end of a copy in flight is unknown; those of other clusters are ignored.
        if not is_own(state, when):
            return -1
    elif not is_own(state, when):
        if knows_cluster(state, warp, when):
            return -1
    elif when <= load64(state + FLOOR):
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
    """Begin a cluster: its times are later than those of earlier ones that used this state."""
    counts = load64(state + COUNTS)
    number = load64(counts + CLUSTER_COUNT)
    store64(load64(state + CLUSTERS) + 8 * number, cluster)
    store64(counts + CLUSTER_COUNT, number + 1)
    start = (number + 1) << CLUSTER_SHIFT
    store64(state + TIME, start)
    store64(state + BLOCK_START, start)
    store64(state + FLOOR, start)
    fill_ones(load64(state + LOCAL_MAP), load64(state + LOCAL_BYTES))
    # Other clocks contain times from before this block, which have no effect.
    forget_fences(state)
    forget_views(state)
    for warp in range(load64(state + WARPS)):
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
    fence(state, warp, BLOCK_SCOPE)
    clock, warps = barrier_clock(state, barrier), load64(state + WARPS)
    merge(clock, clock_of(state, warp), warps)
    for scope in range(SCOPES):
        raise_to(clock + clock_bytes(warps) + 8 * scope, load64(fenced(state, warp, BLOCK_SCOPE + scope)))


def barrier_clock(state: int, barrier: int) -> int:
    """Clock of what the arrived warps know; the times of their fences follow it."""
    return int(load64(state + BARRIER_CLOCKS) + barrier_bytes(state) * barrier)


def barrier_bytes(state: int) -> int:
    """Bytes of the state of one barrier."""
    return int(clock_bytes(load64(state + WARPS)) + 8 * SCOPES)


def leave_barrier(state: int, warp: int, barrier: int) -> None:
    """The warp acquires what all arrived warps knew."""
    clock, warps = barrier_clock(state, barrier), load64(state + WARPS)
    merge(clock_of(state, warp), clock, warps)
    # What one thread fenced before the barrier, another may release after it.
    for scope in range(SCOPES):
        raise_to(fenced(state, warp, BLOCK_SCOPE + scope), load64(clock + clock_bytes(warps) + 8 * scope))


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


def synchronise_shared(state: int, warp: int, lanes: int, index: int, releases: bool, access: int) -> None:
    """A strong access of some lanes to a cell of shared memory."""
    clock = shared_clock(state, load64(state + SHARED_SYNC), index)
    if access & AWAITS_FENCE:
        note_pending(state, warp, PENDING_BLOCK, clock)
    elif access & ACQUIRES:
        acquire(state, warp, lanes, clock)
    if not releases:
        return
    if not access & NEEDS_FENCE:
        release(state, warp, lowest(lanes), clock)
    elif load64(fenced(state, warp, BLOCK_SCOPE)):
        release_until(state, warp, clock, load64(fenced(state, warp, BLOCK_SCOPE)))


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


def release_until(state: int, warp: int, clock: int, until: int) -> None:
    """Release what a warp knows and, of its own actions, only those up to the time `until`."""
    warps = load64(state + WARPS)
    everyone = clock + 8 * warp
    some, lanes = everyone + 8 * warps, everyone + 16 * warps
    known, latest_of_some, who = load64(everyone), load64(some), load64(lanes)
    merge(clock, clock_of(state, warp), warps)
    if few_lanes(state, warp):
        merge(clock, few_clock_of(state, warp), warps)
    store64(everyone, max(known, until))
    store64(some, latest_of_some)
    store64(lanes, who)


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
    if info & PROXY_BIT or when >= PENDING:
        return True
    if when <= load64(state + BLOCK_START):
        return True
    warps, other = load64(state + WARPS), info & WARP_MASK
    fenced = lanes_known(fenced_part(clock_of(state, warp), warps), warps, other, when)
    if few_lanes(state, warp):
        fenced |= lanes_known(fenced_part(few_clock_of(state, warp), warps), warps, other, when)
    return (info >> 32) & FULL_MASK & ~fenced == 0
