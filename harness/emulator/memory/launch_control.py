"""Requests to cancel a cluster that has not started (PTX ISA 9.7.13.17, `clusterlaunchcontrol.try_cancel`).

`launch/launch_control.py` has divided these clusters into queues. The cluster that runs in a place takes the next one
from the queue of this place, at the issue of its request; it shares that queue with no other worker. The response is in
flight like a bulk copy: it is written when a warp waits for the mbarrier that counts its 16 bytes.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import launch_control_layout as control
from harness.emulator.abi import layout as at
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.memory.bulk_copies import barrier_of, begin_copy, checked_place, queue_copy
from harness.emulator.sanitizer.clock_words import tick

AFTER_REFUSAL, ENDED_BLOCK = at.FAULT["request after refusal"], at.FAULT["ended block"]
BARRIERS = at.HOSTS
"""Where generated code stores each lane's mbarrier, 8 bytes; the address of the response is in ADDRESSES."""


def try_cancel(ctx: int, warp: int, site: int, mask: int, is_multicast: int) -> int:
    """Each active lane requests a cluster; the response goes to its block or to all of them. Returns 1 on a fault."""
    own = load64(ctx + context.CLUSTER_RANK)
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        if (load64(ctx + context.REFUSED) >> own) & 1:
            set_fault(ctx, AFTER_REFUSAL, site, lane, 0, 0)
            return 1
        copy = begin_copy(ctx, site, lane)
        if copy == 0:
            return 1
        address = load64(warp + at.ADDRESSES + 8 * lane)
        place = checked_place(ctx, site, lane, address, control.RESPONSE_BYTES, control.RESPONSE_BYTES, 1)
        if place < 0:
            return 1
        barrier = barrier_of(ctx, site, lane, load64(warp + BARRIERS + 8 * lane), place, 0)
        if barrier < 0:
            return 1
        store64(copy + proxy.SOURCE, proxy.FROM_LAUNCH)
        store64(copy + proxy.STORES, 0)
        store64(copy + proxy.RANK, 0)
        store64(copy + proxy.REDUCTION, 0)
        store64(copy + proxy.BYTES, control.RESPONSE_BYTES)
        write_response(ctx, copy + proxy.COORDINATES, take_cluster(ctx))
        if load64(ctx + context.SANITIZER):
            store64(copy + proxy.ISSUED, tick(load64(ctx + context.SANITIZER)))
        if not is_multicast:
            if queue_copy(ctx, copy, lane, place, barrier):
                return 1
            continue
        for rank in range(load64(ctx + context.CLUSTER_SIZE)):
            if load32(load64(ctx + context.LIVE_WARPS) + 4 * rank) == 0:
                set_fault(ctx, ENDED_BLOCK, site, lane, at.SHARED_ADDRESS | (rank << at.RANK_SHIFT), 0)
                return 1
            away = load64(ctx + context.SHARED_PITCH) * (rank - own)
            if queue_copy(ctx, copy, lane, place + away, barrier + away):
                return 1
    return 0


def take_cluster(ctx: int) -> int:
    """Cancel the next cluster of the queue. Returns its number, or -1 if the request is refused."""
    number = load64(ctx + context.NEXT_CLUSTER)
    if number < 0 or load64(load64(ctx + context.LAUNCH_QUEUE) + control.ROW_BYTES * number + control.REFUSES):
        return -1
    leave_queue(ctx, number)
    return number


def leave_queue(ctx: int, number: int) -> None:
    """A cluster is cancelled, or starts: the next one is behind it, if the launch has queues."""
    queue = load64(ctx + context.LAUNCH_QUEUE)
    store64(ctx + context.NEXT_CLUSTER, load64(queue + control.ROW_BYTES * number + control.NEXT) if queue else -1)


def write_response(ctx: int, response: int, number: int) -> None:
    """Write the response about the cluster with this number; a refusal if it is negative."""
    if number < 0:
        store64(response, -1)
        store64(response + 8, control.MAGIC)
        return
    chosen = load64(ctx + context.CHOSEN)
    cluster = load64(chosen + 8 * number) if chosen else number
    wide, high = load64(ctx + context.NCLUSTERID_X), load64(ctx + context.NCLUSTERID_Y)
    x = cluster % wide * load64(ctx + context.CLUSTER_NCTAID_X)
    y = cluster // wide % high * load64(ctx + context.CLUSTER_NCTAID_Y)
    z = cluster // (wide * high) * load64(ctx + context.CLUSTER_NCTAID_Z)
    store64(response, x | (y << control.Y_AT) | (z << control.Z_AT))
    store64(response + 8, control.MAGIC | 1)
