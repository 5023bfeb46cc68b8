"""What each warp request touches and when, recorded for the cache model. See `launch/tracing.py` for the other end."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import (
    STEPS,
    TRACE_END,
    TRACE_FIRST_LINES,
    TRACE_FULL,
    TRACE_KINDS,
    TRACE_NEXT,
)
from harness.emulator.abi.raw_memory import call_host, load8, load64, store64


def is_traced(ctx: int) -> bool:
    """Whether anybody wants to know."""
    return bool(load64(ctx + TRACE_NEXT))


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


def record(ctx: int, warp: int, site: int, buffer: int, distinct: int) -> int:
    """Append the lines of a request that touches the `distinct` sectors in DATA_3. Always 0."""
    time = moment_of(ctx, warp)
    kind = load8(load64(ctx + TRACE_KINDS) + site)
    first_line = load64(load64(ctx + TRACE_FIRST_LINES) + 8 * buffer)
    index = 0
    while index < distinct:
        line = load64(warp + at.DATA_3 + 8 * index) >> 2
        mask = 0
        while index < distinct and load64(warp + at.DATA_3 + 8 * index) >> 2 == line:
            mask |= 1 << (load64(warp + at.DATA_3 + 8 * index) & 3)
            index += 1
        if load64(ctx + TRACE_NEXT) == load64(ctx + TRACE_END):
            call_host(load64(ctx + TRACE_FULL), ctx)
        place = load64(ctx + TRACE_NEXT)
        store64(place, time)
        store64(place + 8, ((first_line + line) << 6) | (kind << 4) | mask)
        store64(ctx + TRACE_NEXT, place + 16)
    return 0
