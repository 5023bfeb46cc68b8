"""Records the sectors and the time of each warp request for the cache model; `launch/tracing.py` reads the records.

If events are requested as well (`abi/event_layout.py`), barriers, waits and copies are recorded between the requests,
and the clocks of warps that meet at an mbarrier are synchronized: a waiting warp resumes at the time of the last
arrival, and instructions executed during unsuccessful tests take no time.
"""

from __future__ import annotations

from harness.emulator.abi import cache_layout, context
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.raw_memory import call_host, load8, load64, store64

SITE_AT, VALUE_AT, CODE_AT = event.SITE_AT, event.VALUE_AT, event.CODE_AT
VALUE_MASK = (1 << event.VALUE_BITS) - 1
KIND_AT = cache_layout.MASK_BITS
LINE_AT = KIND_AT + cache_layout.KIND_BITS
TARGET_AT = 40
SECTOR_MASK = (1 << TARGET_AT) - 1
NO_SITE = -1


def is_traced(ctx: int) -> bool:
    """Whether requests are traced."""
    return bool(load64(ctx + context.TRACE_NEXT))


def is_recorded(ctx: int, column: int) -> bool:
    """Whether requests with this counter column are recorded: buffers, and for events also module variables."""
    if not is_traced(ctx):
        return False
    buffers = load64(ctx + context.BUFFER_COUNT)
    return bool(column < buffers or (load64(ctx + context.EVENT_CLOCKS) and column > buffers))


def moment_of(ctx: int, warp: int) -> int:
    """The moment of a warp's request, unique within the block.

    The high bits contain the instructions that the warp has executed or waited for at barriers, up to the end of the
    current basic block; the low bits contain the number of the request within that block, and the warp's number.
    """
    time: int = (load64(ctx + context.STEPS) + load64(warp + at.CLOCK_LEAD)) << at.REQUEST_BITS
    time = max(time, load64(warp + at.LAST_MOMENT) + 1)
    store64(warp + at.LAST_MOMENT, time)
    moment: int = (time << at.WARP_BITS) | warp_number(ctx)
    return moment


def append(ctx: int, moment: int, what: int) -> None:
    """Append an entry."""
    if load64(ctx + context.TRACE_NEXT) == load64(ctx + context.TRACE_END):
        call_host(load64(ctx + context.TRACE_FULL), ctx)
    place = load64(ctx + context.TRACE_NEXT)
    store64(place, moment)
    store64(place + 8, what)
    store64(ctx + context.TRACE_NEXT, place + 16)


def record(ctx: int, warp: int, site: int, buffer: int, distinct: int) -> int:
    """Append the lines of a request that accesses the `distinct` sectors in DATA_3. Returns 0.

    Above a sector's number, from bit `TARGET_AT` on, there may be its destination: the sector is read once for each
    destination.
    """
    time = moment_of(ctx, warp)
    kind = load8(load64(ctx + context.TRACE_KINDS) + site)
    first_line = load64(load64(ctx + context.TRACE_FIRST_LINES) + 8 * buffer)
    index = 0
    while index < distinct:
        line = (load64(warp + at.DATA_3 + 8 * index) & SECTOR_MASK) >> 2
        mask = 0
        while index < distinct:
            sector = load64(warp + at.DATA_3 + 8 * index) & SECTOR_MASK
            if sector >> 2 != line or (mask >> (sector & 3)) & 1:
                break
            mask |= 1 << (sector & 3)
            index += 1
        append(ctx, time, ((site + 1) << SITE_AT) | ((first_line + line) << LINE_AT) | (kind << KIND_AT) | mask)
    return 0


# Events ---------------------------------------------------------------------------------------------------------------


def running_warp(ctx: int) -> int:
    """Address of the current warp's state."""
    return int(load64(ctx + context.WARPS) + load64(ctx + context.WARP_INDEX) * load64(ctx + context.WARP_BYTES))


def now(ctx: int, warp: int) -> int:
    """The clock of the current warp, which is stopped while the warp tests an mbarrier without success."""
    since = load64(warp + at.WAITS_SINCE)
    return int(since - 1 if since else load64(ctx + context.STEPS) + load64(warp + at.CLOCK_LEAD))


def note(ctx: int, warp: int, number: int, site: int, code: int, value: int, time: int) -> None:
    """Append an event of the warp with this number, if events are recorded."""
    if load64(ctx + context.EVENT_CLOCKS):
        request = max(time << at.REQUEST_BITS, load64(warp + at.LAST_MOMENT) + 1)
        store64(warp + at.LAST_MOMENT, request)
        what = ((site + 1) << SITE_AT) | ((value & VALUE_MASK) << VALUE_AT) | (code << CODE_AT)
        append(ctx, (request << at.WARP_BITS) | number, what)


def note_now(ctx: int, site: int, code: int, value: int) -> None:
    """Append an event of the current warp at the current time, if events are recorded."""
    if load64(ctx + context.EVENT_CLOCKS):
        warp = running_warp(ctx)
        note(ctx, warp, warp_number(ctx), site, code, value, now(ctx, warp))


def note_step(ctx: int, index: int, time: int) -> None:
    """Record that the whole block advances, as seen by its warp `index`. Shared memory may be sampled now."""
    if load64(ctx + context.EVENT_CLOCKS):
        warp = load64(ctx + context.WARPS) + index * load64(ctx + context.WARP_BYTES)
        note(ctx, warp, load64(ctx + context.FIRST_WARP) + index, NO_SITE, event.STEP, 0, time)
        call_host(load64(ctx + context.EVENT_STEP), ctx)


def start_clocks(ctx: int) -> None:
    """Reset all clocks when a cluster begins."""
    if load64(ctx + context.EVENT_CLOCKS):
        for index in range(load64(ctx + context.EVENT_CLOCK_COUNT)):
            store64(load64(ctx + context.EVENT_CLOCKS) + event.CLOCK_BYTES * index, 0)


def barrier_clock(ctx: int, number: int) -> int:
    """Address of the clock of a barrier of the current block."""
    slot = 1 + at.BARRIER_SLOTS * load64(ctx + context.CLUSTER_RANK) + number
    return int(load64(ctx + context.EVENT_CLOCKS) + event.CLOCK_BYTES * slot)


def mbarrier_clock(ctx: int, place: int) -> int:
    """Address of the clock of the mbarrier at this place of shared memory."""
    slot = 1 + at.BARRIER_SLOTS * load64(ctx + context.CLUSTER_SIZE) + place // 8
    return int(load64(ctx + context.EVENT_CLOCKS) + event.CLOCK_BYTES * slot)


def set_forward(clock: int, time: int) -> None:
    """Set the clock at an address to the maximum of itself and `time`."""
    store64(clock, max(load64(clock), time))


def arrive_at_cluster_in_time(ctx: int) -> None:
    """Record that the current warp arrives at the cluster barrier. Its steps are saved only when its turn ends."""
    if load64(ctx + context.EVENT_CLOCKS):
        set_forward(load64(ctx + context.EVENT_CLOCKS), now(ctx, running_warp(ctx)))


def arrive_in_time(ctx: int, place: int) -> None:
    """Record that the current warp arrives at an mbarrier, or sends bytes there."""
    if load64(ctx + context.EVENT_CLOCKS):
        set_forward(mbarrier_clock(ctx, place), now(ctx, running_warp(ctx)))


def begin_look(ctx: int, warp: int, site: int, place: int) -> None:
    """Record that the current warp tests an mbarrier, for the first time or again."""
    if load64(ctx + context.EVENT_CLOCKS) and load64(warp + at.WAITS_SINCE) == 0:
        note(ctx, warp, warp_number(ctx), site, event.WAITS_AT_MBARRIER, place, now(ctx, warp))
        store64(warp + at.WAITS_SINCE, 1 + load64(ctx + context.STEPS) + load64(warp + at.CLOCK_LEAD))


def end_wait(ctx: int, warp: int, site: int, place: int) -> None:
    """Record that the phase is complete: the warp resumes at the time of the last arrival."""
    if load64(ctx + context.EVENT_CLOCKS):
        time = max(now(ctx, warp), load64(mbarrier_clock(ctx, place)))
        store64(warp + at.WAITS_SINCE, 0)
        store64(warp + at.CLOCK_LEAD, time - load64(ctx + context.STEPS))
        note(ctx, warp, warp_number(ctx), site, event.LEAVES_MBARRIER, place, time)
