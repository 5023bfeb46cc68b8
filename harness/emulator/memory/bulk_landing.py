"""Completes bulk copies: moves their bytes and counts them at mbarriers. See `bulk_copies.py`."""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import rank_of_place, warp_number
from harness.emulator.abi.context import (
    ASYNC_PROXY,
    CHANGES,
    EVENT_CLOCKS,
    REFUSED,
    SANITIZER,
    SHARED_ORIGIN,
    WARP_INDEX,
)
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, fill_ones, load8, load32, load64, store8, store64
from harness.emulator.memory import bulk_rows as rows
from harness.emulator.memory.trace import NO_SITE, mbarrier_clock, note, note_step, now, running_warp
from harness.emulator.sanitizer.async_proxy import finish_mbarrier_phase, settle_bulk, settle_source

HEAD, TAIL = proxy.HEAD, proxy.TAIL
IN_FLIGHT, STORES, RANK, SHARED, BYTES = proxy.IN_FLIGHT, proxy.STORES, proxy.RANK, proxy.SHARED, proxy.BYTES
MAP, BARRIER, THREAD, SITE, SOURCE = proxy.MAP, proxy.BARRIER, proxy.THREAD, proxy.SITE, proxy.SOURCE
ADDRESS, ISSUED, REDUCTION, COORDINATES = proxy.ADDRESS, proxy.ISSUED, proxy.REDUCTION, proxy.COORDINATES
FROM_GLOBAL, FROM_SHARED = proxy.FROM_GLOBAL, proxy.FROM_SHARED
BAD_BYTES = at.FAULT["mbarrier bytes"]


def forget_landed(state: int) -> None:
    """Remove completed copies from the front of the ring."""
    head = load64(state + HEAD)
    while head < load64(state + TAIL) and load64(rows.copy_at(state, head) + IN_FLIGHT) == 0:
        head += 1
    store64(state + HEAD, head)


def land_loads(ctx: int, barrier: int) -> int:
    """Complete and count the loads that this phase of an mbarrier counts. Returns 1 on a fault, else 0."""
    state = load64(ctx + ASYNC_PROXY)
    landed = 0
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        copy = rows.copy_at(state, number)
        if load64(copy + IN_FLIGHT) and not load64(copy + STORES) and load64(copy + BARRIER) == barrier:
            land(ctx, copy)
            landed += 1
            note_landing(ctx, number, barrier)
            place = load64(ctx + SHARED_ORIGIN) + barrier
            phase = load64(place) >> proxy.PHASE_AT
            if take_bytes(ctx, place, rows.transferred_bytes(copy)):
                size = rows.transferred_bytes(copy)
                set_fault(ctx, BAD_BYTES, load64(copy + SITE), load64(copy + THREAD) & 31, size, 0)
                return 1
            if load64(place) >> proxy.PHASE_AT != phase:
                if load64(ctx + SANITIZER):
                    finish_mbarrier_phase(load64(ctx + SANITIZER), barrier)
                break
    if landed:
        forget_landed(state)
        if load64(ctx + EVENT_CLOCKS):
            note_step(ctx, load64(ctx + WARP_INDEX), landing_time(ctx, barrier))
        store64(ctx + CHANGES, load64(ctx + CHANGES) + 1)
    return 0


def landing_time(ctx: int, barrier: int) -> int:
    """Time at which copies complete for the current warp, which tests this mbarrier, if events are recorded."""
    return int(max(now(ctx, running_warp(ctx)), load64(mbarrier_clock(ctx, barrier))))


def note_landing(ctx: int, number: int, barrier: int) -> None:
    """Record that the copy with this number has completed."""
    if load64(ctx + EVENT_CLOCKS):
        time = landing_time(ctx, barrier)
        note(ctx, running_warp(ctx), warp_number(ctx), NO_SITE, event.BULK_COPY_LANDS, number, time)


def take_bytes(ctx: int, place: int, size: int) -> int:
    """`complete_tx` of `size` bytes on the mbarrier at a host address. Returns 1 if the count overflows, else 0."""
    word = load64(place)
    left = ((word >> proxy.BYTES_AT) & (2 * proxy.NO_BYTES - 1)) - size
    if left < 0:
        return 1
    word = (word & ~((2 * proxy.NO_BYTES - 1) << proxy.BYTES_AT)) | (left << proxy.BYTES_AT)
    if left == proxy.NO_BYTES and word & ((1 << proxy.COUNT_BITS) - 1) == 0:
        word ^= 1 << proxy.PHASE_AT
        word |= (word >> proxy.COUNT_BITS) & ((1 << proxy.COUNT_BITS) - 1)
    store64(place, word)
    return 0


def land(ctx: int, copy: int) -> None:
    """Complete a copy."""
    if load64(copy + SOURCE) == FROM_GLOBAL:
        move_rows(ctx, copy)
    else:
        move_within_cluster(ctx, copy)
    if load64(copy + SOURCE) == proxy.FROM_LAUNCH and not load64(copy + COORDINATES + 8) & 1:
        refused = 1 << rank_of_place(ctx, load64(copy + SHARED))
        store64(ctx + REFUSED, load64(ctx + REFUSED) | refused)
    store64(copy + IN_FLIGHT, 0)
    if load64(ctx + SANITIZER):
        thread, size, stores = load64(copy + THREAD), load64(copy + BYTES), load64(copy + STORES)
        state, issued = load64(ctx + SANITIZER), load64(copy + ISSUED)
        if load64(copy + SOURCE) == FROM_SHARED:
            settle_source(state, thread >> 5, issued, load64(copy + ADDRESS), size)
        place, barrier = load64(copy + SHARED), load64(copy + BARRIER)
        for part in range(rows.parts_of(copy)):
            settle_bulk(
                state, thread, issued, rows.part_place(copy, place, part), rows.part_bytes(copy), stores, barrier
            )


def move_rows(ctx: int, copy: int) -> None:
    """Move the rows between shared and global memory."""
    bits = load64(load64(copy + MAP) + proxy.MAP_SWIZZLE) if load64(copy + RANK) else 0
    first, last, width, pitch = (
        rows.first_inside(copy),
        rows.last_inside(copy),
        rows.row_bytes(copy),
        rows.row_pitch(copy),
    )
    fills, element = 0, 1
    if load64(copy + RANK) and not load64(copy + STORES):
        fills, element = load32(load64(copy + MAP) + proxy.MAP_FILL), rows.inner_bytes(copy, 1)
    packed = load32(load64(copy + MAP) + proxy.MAP_OUTER) if rows.outer_bytes(copy, width) != width else 0
    shared, stores, function = load64(ctx + SHARED_ORIGIN), load64(copy + STORES), load64(copy + REDUCTION)
    for row in range(rows.rows_of(copy)):
        address = rows.row_address(copy, row)
        start, end, outer = first, last, 0
        if address == rows.OUTSIDE or first >= last:
            start, end = 0, 0
        else:
            begin = rows.outer_bytes(copy, start)
            outer = rows.host_of(ctx, address + begin, rows.outer_bytes(copy, end) - begin) - begin
        for piece in range(0, width, rows.PIECE):
            inner = shared + rows.swizzled(load64(copy + SHARED) + row * pitch + piece, bits)
            low, high = max(0, start - piece), min(rows.PIECE, end - piece)
            if function:
                combine_piece(
                    load64(load64(ctx + ASYNC_PROXY) + proxy.SCRATCH), function, inner, outer + piece, low, high
                )
            elif packed and low == 0 and high == rows.PIECE:
                move_packed(inner, outer + rows.outer_bytes(copy, piece), packed, stores)
            else:
                move_piece(inner, outer + piece, low, high, stores)
                if fills and (low > 0 or high < rows.PIECE):
                    fill_piece(inner, low, high, element)


def move_within_cluster(ctx: int, copy: int) -> None:
    """Move bytes from another block's shared memory, or a value that is known since the copy's issue."""
    function, size = load64(copy + REDUCTION), load64(copy + BYTES)
    target, source = load64(ctx + SHARED_ORIGIN) + load64(copy + SHARED), copy + COORDINATES
    if load64(copy + SOURCE) == FROM_SHARED:
        source = load64(ctx + SHARED_ORIGIN) + load64(copy + ADDRESS)
    for piece in range(0, size, rows.PIECE):
        end = min(rows.PIECE, size - piece)
        if function:
            scratch = load64(load64(ctx + ASYNC_PROXY) + proxy.SCRATCH)
            combine_piece(scratch, function, source + piece, target + piece, 0, end)
        else:
            for byte in range(end):
                store8(target + piece + byte, load8(source + piece + byte))


def move_piece(inner: int, outer: int, first: int, last: int, stores: int) -> None:
    """Move 16 bytes, of which the range from `first` up to, excluding, `last` is in global memory."""
    if first == 0 and last == rows.PIECE:
        source = inner if stores else outer
        target = outer if stores else inner
        store64(target, load64(source))
        store64(target + 8, load64(source + 8))
        return
    for byte in range(rows.PIECE):
        if first <= byte and byte < last:
            if stores:
                store8(outer + byte, load8(inner + byte))
            else:
                store8(inner + byte, load8(outer + byte))
        elif not stores:
            store8(inner + byte, 0)


def move_packed(inner: int, outer: int, bits: int, stores: int) -> None:
    """Move 16 elements of 4 or 6 bits, which have 16 bytes in shared memory.

    A load adds padding after them, which has no defined value: all bits are set. A store takes each of a byte.
    """
    if not stores:
        fill_ones(inner + 2 * bits, rows.PIECE - 2 * bits)
        for byte in range(2 * bits):
            store8(inner + byte, load8(outer + byte))
        return
    for triple in range(4):
        word = load32(inner + 4 * triple)
        word = (word & 0x3F) | ((word >> 2) & 0xFC0) | ((word >> 4) & 0x3F000) | ((word >> 6) & 0xFC0000)
        for byte in range(3):
            store8(outer + 3 * triple + byte, word >> (8 * byte))


def fill_piece(inner: int, first: int, last: int, element: int) -> None:
    """Set the elements of 16 bytes before `first` and from `last` on to NaN: all bits but the sign are set."""
    for byte in range(rows.PIECE):
        if byte < first or byte >= last:
            store8(inner + byte, 0x7F if byte % element == element - 1 else 0xFF)


def combine_piece(scratch: int, function: int, inner: int, outer: int, first: int, last: int) -> None:
    """Combine 16 bytes of shared memory with those of global memory by the reduction function."""
    store64(scratch + proxy.REDUCTION_ROW, load64(inner))
    store64(scratch + proxy.REDUCTION_ROW + 8, load64(inner + 8))
    for byte in range(first, last):
        store8(scratch + byte, load8(outer + byte))
    call_host(function, scratch)
    for byte in range(first, last):
        store8(outer + byte, load8(scratch + byte))
