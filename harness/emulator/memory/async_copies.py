"""Asynchronous copies from global to shared memory: cp.async (PTX ISA 9.7.9.25.3).

A copy may complete at any time between its issue and the wait that covers it. Here it completes as late as possible,
and its destination contains NaN patterns until then: a thread that reads too early, because it forgot to wait or
because it still needed the old data, computes with NaN. The source is also read when the copy completes, so that
overwriting it in between is visible. A copy without a wait never completes, since its completion could not be observed.

Groups belong to threads. Each copy of a lane has the number of the group in which it will be committed, and each lane
counts its committed groups, so lanes may issue, commit and wait in any combination. Copies to the same place complete
in order of issue.

Other ways to complete a copy (an mbarrier, a bulk group) would be further rules for which requests to `land`.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.abi import context
from harness.emulator.abi import copy_layout as queue_at
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import own_place, warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, fill_ones, load8, load32, load64, store8, store32, store64
from harness.emulator.memory.copies import shared_fault
from harness.emulator.memory.trace import NO_SITE, note_now
from harness.emulator.memory.translation import translate_lanes
from harness.emulator.sanitizer.clock_words import tick
from harness.emulator.sanitizer.copies_in_flight import settle, watch_copy

REQUESTS, CAPACITY, HEAD, TAIL = queue_at.REQUESTS, queue_at.CAPACITY, queue_at.HEAD, queue_at.TAIL
COMMITTED, QUEUE_BYTES = queue_at.COMMITTED, queue_at.QUEUE_BYTES
IN_FLIGHT, SIZE, GROUP = queue_at.IN_FLIGHT, queue_at.SIZE, queue_at.GROUP
DESTINATION, SOURCE, SOURCE_BYTES = queue_at.DESTINATION, queue_at.SOURCE, queue_at.SOURCE_BYTES
REQUEST_BYTES = queue_at.REQUEST_BYTES
GLOBAL = at.SPACES["global"]
COPY_SIZE = at.FAULT["copy size"]
COPIES_IN_FLIGHT = at.FAULT["copies in flight"]
OFFSETS = at.DATA
"""Where generated code stores each lane's offset in shared memory, 4 bytes; source addresses are in ADDRESSES."""
SIZES = at.DATA_2
"""Where generated code stores the number of bytes of the source that each lane reads, 4 bytes."""


def queue_of(ctx: int) -> int:
    """The queue of the current warp."""
    return int(load64(ctx + context.COPY_QUEUES) + QUEUE_BYTES * warp_number(ctx))


def request_of(queue: int, number: int) -> int:
    """Address of a request in a queue."""
    return int(load64(queue + REQUESTS) + REQUEST_BYTES * (number & (load64(queue + CAPACITY) - 1)))


def issue_copy(ctx: int, warp: int, site: int, mask: int, size: int, past_l1: int) -> int:
    """Check, count and queue a copy of `size` bytes to each active lane's place. Returns 1 on a fault, else 0.

    Lanes that read no bytes do not access their source. `past_l1` is 1 for cp.async.cg, whose sectors also depend on
    the destination, and 0 for cp.async.ca.
    """
    if mask == 0:
        return 0
    limit = load64(ctx + context.SHARED_SIZE) - size
    reading = 0
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        offset = load32(warp + OFFSETS + 4 * lane)
        if offset > limit or offset & (size - 1):
            shared_fault(ctx, site, lane, offset, limit, size)
            return 1
        wanted = load32(warp + SIZES + 4 * lane)
        if wanted > size:
            set_fault(ctx, COPY_SIZE, site, lane, wanted, size)
            return 1
        if wanted > 0:
            reading |= 1 << lane
    targets = warp + OFFSETS if past_l1 else 0
    if reading and translate_lanes(ctx, warp, site, GLOBAL, reading, size, warp + SIZES, targets):
        return 1
    queue = queue_of(ctx)
    number = load64(queue + TAIL)
    if number - load64(queue + HEAD) == load64(queue + CAPACITY):
        call_host(load64(ctx + context.COPY_QUEUE_FULL), ctx)
        if number - load64(queue + HEAD) == load64(queue + CAPACITY):
            set_fault(ctx, COPIES_IN_FLIGHT, site, 0, 0, load64(queue + CAPACITY))
            return 1
    store64(queue + TAIL, number + 1)
    note_now(ctx, site, event.ISSUES_COPY, number)
    request = request_of(queue, number)
    store64(request + IN_FLIGHT, mask)
    store64(request + SIZE, size)
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp + OFFSETS + 4 * lane)
            store32(request + GROUP + 4 * lane, load64(queue + COMMITTED + 8 * lane))
            store32(request + DESTINATION + 4 * lane, own_place(ctx, offset))
            store32(request + SOURCE_BYTES + 4 * lane, load32(warp + SIZES + 4 * lane))
            store64(request + SOURCE + 8 * lane, load64(warp + at.HOSTS + 8 * lane))
            fill_ones(load64(ctx + context.SHARED_BASE) + offset, size)
    if load64(ctx + context.SANITIZER):
        watch_copy(ctx, warp, site, request)
    return 0


def commit_copies(ctx: int, mask: int) -> int:
    """Commit the active lanes' copies since their last commit as a group. Returns 0."""
    queue = queue_of(ctx)
    for lane in range(32):
        if (mask >> lane) & 1:
            store64(queue + COMMITTED + 8 * lane, load64(queue + COMMITTED + 8 * lane) + 1)
    return 0


def land(ctx: int, request: int, lanes: int, time: int) -> None:
    """Complete the copies of these lanes; `time` is the sanitizer's."""
    size = load64(request + SIZE)
    for lane in range(32):
        if not (lanes >> lane) & 1:
            continue
        destination = load64(ctx + context.SHARED_ORIGIN) + load32(request + DESTINATION + 4 * lane)
        source = load64(request + SOURCE + 8 * lane)
        wanted = load32(request + SOURCE_BYTES + 4 * lane)
        if wanted == size:
            for place in range(0, size, 4):
                store32(destination + place, load32(source + place))
        else:
            for place in range(size):
                store8(destination + place, load8(source + place) if place < wanted else 0)
    store64(request + IN_FLIGHT, load64(request + IN_FLIGHT) & ~lanes)
    if load64(ctx + context.SANITIZER):
        settle(load64(ctx + context.SANITIZER), request, lanes, time)


def wait_for_copies(ctx: int, mask: int, pending: int) -> int:
    """Complete the active lanes' copies, except for the `pending` latest groups of each. Returns 0."""
    queue = queue_of(ctx)
    note_now(ctx, NO_SITE, event.WAITS_FOR_COPIES, pending)
    time = tick(load64(ctx + context.SANITIZER)) if load64(ctx + context.SANITIZER) else 0
    head = load64(queue + HEAD)
    tail = load64(queue + TAIL)
    left = mask
    for number in range(head, tail):
        # A lane's groups complete in order: behind the first copy that stays in flight, all of its copies do.
        if left == 0:
            break
        request = request_of(queue, number)
        landing = 0
        for lane in range(32):
            if (load64(request + IN_FLIGHT) & left) >> lane & 1:
                if load32(request + GROUP + 4 * lane) + pending < load64(queue + COMMITTED + 8 * lane):
                    landing |= 1 << lane
                else:
                    left &= ~(1 << lane)
        if landing:
            land(ctx, request, landing, time)
            note_now(ctx, NO_SITE, event.COPY_LANDS, number)
    while head < tail and load64(request_of(queue, head) + IN_FLIGHT) == 0:
        head += 1
    store64(queue + HEAD, head)
    return 0


def drop_copies(ctx: int) -> int:
    """Discard copies in flight when a cluster begins. Returns 0."""
    state = load64(ctx + context.SANITIZER)
    time = tick(state) if state else 0
    for warp in range(load64(ctx + context.CLUSTER_WARPS)):
        queue = load64(ctx + context.COPY_QUEUES) + QUEUE_BYTES * warp
        if state:
            for number in range(load64(queue + HEAD), load64(queue + TAIL)):
                request = request_of(queue, number)
                settle(state, request, load64(request + IN_FLIGHT), time)
        store64(queue + HEAD, 0)
        store64(queue + TAIL, 0)
        for lane in range(32):
            store64(queue + COMMITTED + 8 * lane, 0)
    return 0


EXPORTS: dict[str, Callable[..., int]] = {
    function.__name__: function for function in (issue_copy, commit_copies, wait_for_copies, drop_copies)
}
"""Functions by name, for kernels with such copies."""
