"""The blocks of a cluster: the current block, and the barrier of all their warps (PTX ISA 9.7.13.3).

A cluster's blocks share the worker's memory, see `abi/cluster_memory.py`. The context describes the block of the
current warp; `enter_block` switches to another one.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import rank_of_place, warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, load32, load64, store32, store64
from harness.emulator.memory.bulk_rows import copy_at
from harness.emulator.memory.trace import NO_SITE, arrive_at_cluster_in_time, note, note_now
from harness.emulator.sanitizer.block_lifetime import end_before_copy, end_warp
from harness.emulator.sanitizer.cluster_barrier import (
    arrive_at_cluster_barrier,
    finish_cluster_barrier,
    leave_cluster_barrier,
)

IDLE, ARRIVED, COMPLETED = range(3)
"""State of a warp at the barrier: not involved; has arrived, while others have not; all have arrived, and it may
continue."""
ARRIVES_TWICE, DID_NOT_ARRIVE = range(2)
"""Kinds of misuse, for the message."""
MISUSE = at.FAULT["cluster barrier"]


def begin_cluster(ctx: int, cluster: int) -> None:
    """Set the coordinates of a cluster."""
    wide, high = load64(ctx + context.NCLUSTERID_X), load64(ctx + context.NCLUSTERID_Y)
    store64(ctx + context.CLUSTERID_X, cluster % wide)
    store64(ctx + context.CLUSTERID_Y, (cluster // wide) % high)
    store64(ctx + context.CLUSTERID_Z, cluster // (wide * high))
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        store32(load64(ctx + context.LIVE_WARPS) + 4 * rank, load64(ctx + context.WARP_COUNT))


def enter_block(ctx: int, rank: int) -> None:
    """Make the context describe the block with this rank in the current cluster."""
    wide, high = load64(ctx + context.CLUSTER_NCTAID_X), load64(ctx + context.CLUSTER_NCTAID_Y)
    inner_x, inner_y, inner_z = rank % wide, (rank // wide) % high, rank // (wide * high)
    x = load64(ctx + context.CLUSTERID_X) * wide + inner_x
    y = load64(ctx + context.CLUSTERID_Y) * high + inner_y
    z = load64(ctx + context.CLUSTERID_Z) * load64(ctx + context.CLUSTER_NCTAID_Z) + inner_z
    store64(ctx + context.CLUSTER_RANK, rank)
    store64(ctx + context.CLUSTER_CTAID_X, inner_x)
    store64(ctx + context.CLUSTER_CTAID_Y, inner_y)
    store64(ctx + context.CLUSTER_CTAID_Z, inner_z)
    store64(ctx + context.CTAID_X, x)
    store64(ctx + context.CTAID_Y, y)
    store64(ctx + context.CTAID_Z, z)
    store64(ctx + context.BLOCK, x + load64(ctx + context.NCTAID_X) * (y + load64(ctx + context.NCTAID_Y) * z))
    first = rank * load64(ctx + context.WARP_PITCH)
    store64(ctx + context.FIRST_WARP, first)
    store64(ctx + context.WARPS, load64(ctx + context.WARPS_ORIGIN) + first * load64(ctx + context.WARP_BYTES))
    store64(ctx + context.LOCALS, load64(ctx + context.LOCALS_ORIGIN) + first * 32 * load64(ctx + context.LOCAL_SIZE))
    store64(ctx + context.BARRIERS, load64(ctx + context.BARRIERS_ORIGIN) + 8 * at.BARRIER_SLOTS * rank)
    store64(ctx + context.SHARED_BASE, load64(ctx + context.SHARED_ORIGIN) + rank * load64(ctx + context.SHARED_PITCH))
    store64(ctx + context.SHARED_TAG, rank << at.RANK_SHIFT if load64(ctx + context.TAGGED) else 0)


def warp_at(ctx: int, rank: int, index: int) -> int:
    """Address of the state of a warp of any block of the cluster."""
    return int(
        load64(ctx + context.WARPS_ORIGIN)
        + (rank * load64(ctx + context.WARP_PITCH) + index) * load64(ctx + context.WARP_BYTES)
    )


def leave_block(ctx: int, warp: int) -> None:
    """Handle a warp that has returned for good: the cluster barrier no longer waits for it."""
    place = load64(ctx + context.LIVE_WARPS) + 4 * load64(ctx + context.CLUSTER_RANK)
    left = load32(place) - 1
    store32(place, left)
    if left == 0 and load64(ctx + context.LAND_LEFT_STORES):
        call_host(load64(ctx + context.LAND_LEFT_STORES), ctx)
    if load64(ctx + context.CLUSTER_SIZE) == 1 and load64(ctx + context.TAGGED) == 0:
        return
    if load64(ctx + context.SANITIZER) and load64(ctx + context.CLUSTER_SIZE) > 1:
        end_warp(load64(ctx + context.SANITIZER), warp_number(ctx), load32(warp + at.LEFT_AT), left == 0)
        if left == 0 and load64(ctx + context.ASYNC_PROXY):
            watch_copies_to_ended(ctx, warp)
    complete_barrier(ctx)


def watch_copies_to_ended(ctx: int, warp: int) -> None:
    """Report to the sanitizer what other blocks have sent to the ended block without a wait."""
    state, own = load64(ctx + context.ASYNC_PROXY), load64(ctx + context.CLUSTER_RANK)
    for number in range(load64(state + proxy.HEAD), load64(state + proxy.TAIL)):
        copy = copy_at(state, number)
        thread, place = load64(copy + proxy.THREAD), load64(copy + proxy.SHARED)
        if not load64(copy + proxy.IN_FLIGHT) or load64(copy + proxy.STORES) or rank_of_place(ctx, place) != own:
            continue
        if thread // (32 * load64(ctx + context.WARP_PITCH)) != own:
            end_before_copy(
                load64(ctx + context.SANITIZER), warp_number(ctx), load32(warp + at.LEFT_AT), load64(copy + proxy.SITE),
                thread, place, load64(copy + proxy.BYTES),
            )  # fmt: skip


def cluster_arrive(ctx: int, warp: int, site: int, mask: int, is_relaxed: int) -> int:
    """`barrier.cluster.arrive`: the warp arrives if any of its lanes is active. Returns 1 on a fault, else 0."""
    if mask == 0:
        return 0
    if load32(warp + at.CLUSTER_STATE) != IDLE:
        set_fault(ctx, MISUSE, site, 0, ARRIVES_TWICE, 0)
        return 1
    store32(warp + at.CLUSTER_STATE, ARRIVED)
    store32(warp + at.CLUSTER_SITE, site)
    arrive_at_cluster_in_time(ctx)
    if load64(ctx + context.SANITIZER):
        arrive_at_cluster_barrier(load64(ctx + context.SANITIZER), warp_number(ctx), is_relaxed)
    complete_barrier(ctx)
    return 0


def cluster_wait(ctx: int, warp: int, site: int, mask: int) -> int:
    """`barrier.cluster.wait`: request that the scheduler suspends the warp. Returns 1 on a fault, else 0."""
    store32(warp + at.CLUSTER_WAITS, 1 if mask else 0)
    if mask and load32(warp + at.CLUSTER_STATE) == IDLE:
        set_fault(ctx, MISUSE, site, 0, DID_NOT_ARRIVE, 0)
        return 1
    if mask:
        store32(warp + at.CLUSTER_SITE, site)
    return 0


def wait_for_cluster(ctx: int, warp: int) -> None:
    """Suspend a warp that has returned to the scheduler at `barrier.cluster.wait`."""
    if load32(warp + at.CLUSTER_WAITS) == 0:
        return
    if load32(warp + at.CLUSTER_STATE) == COMPLETED:
        go_on(ctx, warp, warp_number(ctx))
    else:
        store32(warp + at.STATUS, at.AT_CLUSTER)
        note_now(ctx, load32(warp + at.CLUSTER_SITE), event.WAITS_FOR_CLUSTER, 0)


def go_on(ctx: int, warp: int, number: int) -> None:
    """Let a warp continue after all have arrived."""
    store32(warp + at.CLUSTER_STATE, IDLE)
    store32(warp + at.STATUS, at.READY)
    if load64(ctx + context.SANITIZER):
        leave_cluster_barrier(load64(ctx + context.SANITIZER), number)


def complete_barrier(ctx: int) -> None:
    """Release the waiting warps once all warps that have not returned have arrived."""
    latest, arrived = 0, 0
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        for index in range(load64(ctx + context.WARP_COUNT)):
            warp = warp_at(ctx, rank, index)
            if load32(warp + at.STATUS) != at.EXITED:
                if load32(warp + at.CLUSTER_STATE) != ARRIVED:
                    return
                arrived += 1
                latest = max(latest, load64(warp + at.SAVED_STEPS) + load64(warp + at.CLOCK_LEAD))
    if arrived == 0:
        return
    if load64(ctx + context.EVENT_CLOCKS):
        latest = max(latest, load64(load64(ctx + context.EVENT_CLOCKS)))
    store64(ctx + context.CHANGES, load64(ctx + context.CHANGES) + 1)
    if load64(ctx + context.SANITIZER):
        finish_cluster_barrier(load64(ctx + context.SANITIZER))
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        for index in range(load64(ctx + context.WARP_COUNT)):
            warp = warp_at(ctx, rank, index)
            if load32(warp + at.STATUS) != at.EXITED:
                store32(warp + at.CLUSTER_STATE, COMPLETED)
                if load32(warp + at.STATUS) == at.AT_CLUSTER:
                    go_on(ctx, warp, rank * load64(ctx + context.WARP_PITCH) + index)
                    store64(warp + at.CLOCK_LEAD, latest - load64(warp + at.SAVED_STEPS))
                    number = rank * load64(ctx + context.WARP_PITCH) + index
                    note(ctx, warp, number, NO_SITE, event.LEAVES_CLUSTER_BARRIER, 0, latest)


def enter_blocked(ctx: int) -> None:
    """Make the context describe the first block that has not ended, when no warp can continue."""
    rank = 0
    while load32(load64(ctx + context.LIVE_WARPS) + 4 * rank) == 0:
        rank += 1
    enter_block(ctx, rank)
