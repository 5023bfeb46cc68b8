"""What each warp request touches and when, recorded for the cache model. See `launch/tracing.py` for the other end.

Where events are wanted, too (`abi/event_layout.py`), barriers, waits and copies stand between the requests, and the
clocks of warps that meet at an mbarrier are set: who waits goes on when the last one has arrived, and what it executed
while it looked in vain took no time.
"""

from __future__ import annotations

from harness.emulator.abi import cache_layout
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import (
    BUFFER_COUNT,
    CLUSTER_RANK,
    CLUSTER_SIZE,
    EVENT_CLOCK_COUNT,
    EVENT_CLOCKS,
    EVENT_STEP,
    FIRST_WARP,
    STEPS,
    TRACE_END,
    TRACE_FIRST_LINES,
    TRACE_FULL,
    TRACE_KINDS,
    TRACE_NEXT,
    WARP_BYTES,
    WARP_INDEX,
    WARPS,
)
from harness.emulator.abi.raw_memory import call_host, load8, load64, store64

SITE_AT, VALUE_AT, CODE_AT = event.SITE_AT, event.VALUE_AT, event.CODE_AT
VALUE_MASK = (1 << event.VALUE_BITS) - 1
KIND_AT = cache_layout.MASK_BITS
LINE_AT = KIND_AT + cache_layout.KIND_BITS
TARGET_AT = 40
SECTOR_MASK = (1 << TARGET_AT) - 1
NO_SITE = -1


def is_traced(ctx: int) -> bool:
    """Whether anybody wants to know."""
    return bool(load64(ctx + TRACE_NEXT))


def is_recorded(ctx: int, column: int) -> bool:
    """Whether requests to what has this column of the counters are: buffers, and for events variables of the module."""
    if not is_traced(ctx):
        return False
    buffers = load64(ctx + BUFFER_COUNT)
    return bool(column < buffers or (load64(ctx + EVENT_CLOCKS) and column > buffers))


def moment_of(ctx: int, warp: int) -> int:
    """When a warp's request happens, such that no two requests of a block happen at once.

    In the high bits the instructions that the warp has executed or waited for at barriers, up to the end of the basic
    block that it is in; below, the number of the request within that block, and the number of the warp.
    """
    time: int = (load64(ctx + STEPS) + load64(warp + at.CLOCK_LEAD)) << at.REQUEST_BITS
    time = max(time, load64(warp + at.LAST_MOMENT) + 1)
    store64(warp + at.LAST_MOMENT, time)
    moment: int = (time << at.WARP_BITS) | warp_number(ctx)
    return moment


def append(ctx: int, moment: int, what: int) -> None:
    """One entry more."""
    if load64(ctx + TRACE_NEXT) == load64(ctx + TRACE_END):
        call_host(load64(ctx + TRACE_FULL), ctx)
    place = load64(ctx + TRACE_NEXT)
    store64(place, moment)
    store64(place + 8, what)
    store64(ctx + TRACE_NEXT, place + 16)


def record(ctx: int, warp: int, site: int, buffer: int, distinct: int) -> int:
    """Append the lines of a request that touches the `distinct` sectors in DATA_3. Always 0.

    Above a sector's number, from bit `TARGET_AT` on, there may be where it goes: it is read once for each such place.
    """
    time = moment_of(ctx, warp)
    kind = load8(load64(ctx + TRACE_KINDS) + site)
    first_line = load64(load64(ctx + TRACE_FIRST_LINES) + 8 * buffer)
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
    """Where the state of the warp that runs is."""
    return int(load64(ctx + WARPS) + load64(ctx + WARP_INDEX) * load64(ctx + WARP_BYTES))


def now(ctx: int, warp: int) -> int:
    """The clock of the warp that runs; it stands still while the warp looks at an mbarrier in vain."""
    since = load64(warp + at.WAITS_SINCE)
    return int(since - 1 if since else load64(ctx + STEPS) + load64(warp + at.CLOCK_LEAD))


def note(ctx: int, warp: int, number: int, site: int, code: int, value: int, time: int) -> None:
    """Append what happened to the warp of this number, where events are wanted."""
    if load64(ctx + EVENT_CLOCKS):
        request = max(time << at.REQUEST_BITS, load64(warp + at.LAST_MOMENT) + 1)
        store64(warp + at.LAST_MOMENT, request)
        what = ((site + 1) << SITE_AT) | ((value & VALUE_MASK) << VALUE_AT) | (code << CODE_AT)
        append(ctx, (request << at.WARP_BITS) | number, what)


def note_now(ctx: int, site: int, code: int, value: int) -> None:
    """The same of the warp that runs."""
    if load64(ctx + EVENT_CLOCKS):
        warp = running_warp(ctx)
        note(ctx, warp, warp_number(ctx), site, code, value, now(ctx, warp))


def note_step(ctx: int, index: int, time: int) -> None:
    """All of the running block gets on, as its warp `index` sees. Shared memory may be looked at."""
    if load64(ctx + EVENT_CLOCKS):
        warp = load64(ctx + WARPS) + index * load64(ctx + WARP_BYTES)
        note(ctx, warp, load64(ctx + FIRST_WARP) + index, NO_SITE, event.STEP, 0, time)
        call_host(load64(ctx + EVENT_STEP), ctx)


def start_clocks(ctx: int) -> None:
    """A cluster begins: nobody has arrived anywhere."""
    if load64(ctx + EVENT_CLOCKS):
        for index in range(load64(ctx + EVENT_CLOCK_COUNT)):
            store64(load64(ctx + EVENT_CLOCKS) + event.CLOCK_BYTES * index, 0)


def barrier_clock(ctx: int, number: int) -> int:
    """Where the clock of a barrier of the running block is."""
    slot = 1 + at.BARRIER_SLOTS * load64(ctx + CLUSTER_RANK) + number
    return int(load64(ctx + EVENT_CLOCKS) + event.CLOCK_BYTES * slot)


def mbarrier_clock(ctx: int, place: int) -> int:
    """Where the clock of the mbarrier at this place of shared memory is."""
    slot = 1 + at.BARRIER_SLOTS * load64(ctx + CLUSTER_SIZE) + place // 8
    return int(load64(ctx + EVENT_CLOCKS) + event.CLOCK_BYTES * slot)


def set_forward(clock: int, time: int) -> None:
    """The clock at an address shows this time, if it shows no later one."""
    store64(clock, max(load64(clock), time))


def arrive_at_cluster_in_time(ctx: int) -> None:
    """The warp that runs arrives at the barrier of its cluster. Its steps are saved only when its turn is over."""
    if load64(ctx + EVENT_CLOCKS):
        set_forward(load64(ctx + EVENT_CLOCKS), now(ctx, running_warp(ctx)))


def arrive_in_time(ctx: int, place: int) -> None:
    """The warp that runs arrives at an mbarrier, or sends bytes there."""
    if load64(ctx + EVENT_CLOCKS):
        set_forward(mbarrier_clock(ctx, place), now(ctx, running_warp(ctx)))


def begin_look(ctx: int, warp: int, site: int, place: int) -> None:
    """The warp that runs looks at an mbarrier, for the first time or once more."""
    if load64(ctx + EVENT_CLOCKS) and load64(warp + at.WAITS_SINCE) == 0:
        note(ctx, warp, warp_number(ctx), site, event.WAITS_AT_MBARRIER, place, now(ctx, warp))
        store64(warp + at.WAITS_SINCE, 1 + load64(ctx + STEPS) + load64(warp + at.CLOCK_LEAD))


def end_wait(ctx: int, warp: int, site: int, place: int) -> None:
    """The phase is over: the warp goes on when the last one had arrived."""
    if load64(ctx + EVENT_CLOCKS):
        time = max(now(ctx, warp), load64(mbarrier_clock(ctx, place)))
        store64(warp + at.WAITS_SINCE, 0)
        store64(warp + at.CLOCK_LEAD, time - load64(ctx + STEPS))
        note(ctx, warp, warp_number(ctx), site, event.LEAVES_MBARRIER, place, time)
