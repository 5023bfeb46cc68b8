"""The cluster barrier in the sanitizer: an arriving warp releases, and a warp that passes the barrier acquires.

A `.relaxed` arrival releases what its warp did before its last fence of at least cluster scope.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer import vector_clock as clocks
from harness.emulator.sanitizer.block_lifetime import meet_cluster
from harness.emulator.sanitizer.fences import fence

WARPS, CLUSTER_FENCED = at.SLOT["WARPS"], at.SLOT["CLUSTER_FENCED"]
ARRIVING, COMPLETE = at.ARRIVING, at.COMPLETE


def arrive_at_cluster_barrier(state: int, warp: int, is_relaxed: int) -> None:
    """Release the warp's knowledge to the waiting warps."""
    if not is_relaxed:
        clock_words.tick(state)
        fence(state, warp, at.CLUSTER_SCOPE)
        clocks.arrive_at_barrier(state, warp, ARRIVING)
        return
    fenced = load64(load64(state + CLUSTER_FENCED) + 8 * warp)
    if fenced:
        clocks.release_until(state, warp, clocks.barrier_clock(state, ARRIVING), fenced)


def fence_cluster(state: int, warp: int) -> None:
    """A fence of at least cluster scope."""
    clock_words.raise_to(load64(state + CLUSTER_FENCED) + 8 * warp, clock_words.tick(state))


def finish_cluster_barrier(state: int) -> None:
    """All warps have arrived; later arrivals belong to the next use."""
    arrived, complete = clocks.barrier_clock(state, ARRIVING), clocks.barrier_clock(state, COMPLETE)
    for offset in range(0, clocks.barrier_bytes(state), 8):
        store64(complete + offset, load64(arrived + offset))
    clocks.reset_barrier(state, ARRIVING, False)


def leave_cluster_barrier(state: int, warp: int) -> None:
    """The warp acquires what all arriving warps knew."""
    clocks.leave_barrier(state, warp, COMPLETE)
    meet_cluster(state, warp)
