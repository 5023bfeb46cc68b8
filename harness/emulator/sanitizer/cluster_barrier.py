"""The cluster barrier in the sanitizer: an arriving warp releases, and a warp that passes the barrier acquires.

A `.relaxed` arrival releases what its warp did before its last fence of at least cluster scope.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.block_lifetime import meet_cluster
from harness.emulator.sanitizer.clock import merge, raise_to
from harness.emulator.sanitizer.vector_clock import (
    arrive_at_barrier,
    barrier_bytes,
    barrier_clock,
    clock_of,
    few_clock_of,
    few_lanes,
    leave_barrier,
    reset_barrier,
    tick,
)

WARPS, CLUSTER_FENCED = at.SLOT["WARPS"], at.SLOT["CLUSTER_FENCED"]
ARRIVING, COMPLETE = at.ARRIVING, at.COMPLETE


def arrive_at_cluster_barrier(state: int, warp: int, is_relaxed: int) -> None:
    """Release the warp's knowledge to the waiting warps."""
    if not is_relaxed:
        arrive_at_barrier(state, warp, ARRIVING)
        return
    fenced = load64(load64(state + CLUSTER_FENCED) + 8 * warp)
    if fenced:
        clock, warps = barrier_clock(state, ARRIVING), load64(state + WARPS)
        everyone = clock + 8 * warp
        some, lanes = everyone + 8 * warps, everyone + 16 * warps
        known, latest_of_some, who = load64(everyone), load64(some), load64(lanes)
        merge(clock, clock_of(state, warp), warps)
        if few_lanes(state, warp):
            merge(clock, few_clock_of(state, warp), warps)
        # Of the warp's own actions, only those before the fence.
        store64(everyone, max(known, fenced))
        store64(some, latest_of_some)
        store64(lanes, who)


def fence_cluster(state: int, warp: int) -> None:
    """A fence of at least cluster scope."""
    raise_to(load64(state + CLUSTER_FENCED) + 8 * warp, tick(state))


def finish_cluster_barrier(state: int) -> None:
    """All warps have arrived; later arrivals belong to the next use."""
    arrived, complete = barrier_clock(state, ARRIVING), barrier_clock(state, COMPLETE)
    for offset in range(0, barrier_bytes(state), 8):
        store64(complete + offset, load64(arrived + offset))
    reset_barrier(state, ARRIVING, False)


def leave_cluster_barrier(state: int, warp: int) -> None:
    """The warp acquires what all arriving warps knew."""
    leave_barrier(state, warp, COMPLETE)
    meet_cluster(state, warp)
