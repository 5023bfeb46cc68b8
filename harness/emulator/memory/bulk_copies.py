"""Bulk copies (PTX ISA 9.7.9.25.4 f.): runs of bytes, and boxes of a tensor, between global and shared memory.

As with cp.async, a copy happens as late as it may, and what it writes in shared memory is NaN until then. A load lands
where some warp waits for the phase of its mbarrier that is not over, if the loads before it do not end that phase, and
then counts its bytes there; a store lands where its thread waits for its
bulk group. One that nobody waits for never lands. Bytes and sectors are counted at the issue: each row of the box takes
whole sectors. What of a box lies outside its tensor is loaded as zeros, which count at the mbarrier, and not stored.

The swizzle exchanges pieces of 16 bytes by address (PTX ISA 5.5.7): the lower bits of a piece's number within 128 bytes
are flipped by the number of the 128 bytes.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.context import (
    ASYNC_PROXY,
    BUFFER_COUNT,
    BUFFERS,
    CHANGES,
    PARAMS,
    PARAMS_SIZE,
    SANITIZER,
    SHARED_BASE,
    SHARED_SIZE,
    VARIABLE_COUNT,
    VARIABLES,
    WARP_COUNT,
    WARP_INDEX,
)
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, fill_ones, load8, load32, load64, store8, store64
from harness.emulator.memory.trace import is_traced, record
from harness.emulator.memory.translation import count
from harness.emulator.sanitizer.async_proxy import (
    finish_mbarrier_phase,
    read_until_landed,
    settle_bulk,
    watch_global_run,
)
from harness.emulator.sanitizer.copies_in_flight import overwrite_shared
from harness.emulator.sanitizer.vector_clock import tick

HEAD, TAIL, COPIES, GROUPS = proxy.HEAD, proxy.TAIL, proxy.COPIES, proxy.GROUPS
COPY_CAPACITY, COPY_BYTES = proxy.COPY_CAPACITY, proxy.COPY_BYTES
IN_FLIGHT, STORES, RANK, SHARED, BYTES = proxy.IN_FLIGHT, proxy.STORES, proxy.RANK, proxy.SHARED, proxy.BYTES
MAP, BARRIER, THREAD, GROUP, SITE = proxy.MAP, proxy.BARRIER, proxy.THREAD, proxy.GROUP, proxy.SITE
ADDRESS, ISSUED, REDUCTION, COORDINATES = proxy.ADDRESS, proxy.ISSUED, proxy.REDUCTION, proxy.COORDINATES
MAP_BOX, MAP_EXTENTS, MAP_STRIDES = proxy.MAP_BOX, proxy.MAP_EXTENTS, proxy.MAP_STRIDES
OUT_OF_BOUNDS, MISALIGNED = at.FAULT["out of bounds"], at.FAULT["misaligned"]
NO_MBARRIER, NO_MAP = at.FAULT["no mbarrier"], at.FAULT["no tensor map"]
TOO_MANY, BAD_BYTES = at.FAULT["bulk copies in flight"], at.FAULT["mbarrier bytes"]
COPY_SIZE, NO_REDUCTION = at.FAULT["copy size"], at.FAULT["reduction type"]
BAD_COORDINATE = at.FAULT["tensor coordinate"]
OFFSET_MASK = (1 << at.WINDOW_BITS) - 1
PIECE = 16
"""Bytes that move together."""
BOX_ALIGNMENT = 128
"""Of a box in shared memory, in bytes."""
TRACED_SECTORS = 32
SOURCES = at.DATA
"""Where generated code leaves each lane's tensor map or address in global memory, 8 bytes; shared memory: ADDRESSES."""
BARRIERS = at.DATA + 256
"""The lane's mbarrier, 8 bytes."""
SIZES = at.DATA_2
"""Coordinates of each lane's box, 4 bytes, 128 bytes apart; or how many bytes it copies."""
LAST_COORDINATE = at.HOSTS
"""The fifth coordinate."""
OUTSIDE = -(1 << 62)


def copy_at(state: int, number: int) -> int:
    """Where a copy of the ring is."""
    return int(load64(state + COPIES) + COPY_BYTES * (number & (COPY_CAPACITY - 1)))


def host_of(ctx: int, address: int, size: int) -> int:
    """Host address of `size` bytes outside shared and local memory; 0 where there are none."""
    window = address >> at.WINDOW_BITS
    offset = address & OFFSET_MASK
    if window == at.PARAM_WINDOW:
        return load64(ctx + PARAMS) + offset if offset + size <= load64(ctx + PARAMS_SIZE) else 0
    number, table, limit = window - at.FIRST_VARIABLE_WINDOW, load64(ctx + VARIABLES), load64(ctx + VARIABLE_COUNT)
    if window >= at.FIRST_BUFFER_WINDOW:
        number, table, limit = window - at.FIRST_BUFFER_WINDOW, load64(ctx + BUFFERS), load64(ctx + BUFFER_COUNT)
    offset -= at.BUFFER_START
    if number < 0 or number >= limit or offset < 0 or offset + size > load64(table + 16 * number + 8):
        return 0
    return int(load64(table + 16 * number) + offset)


def swizzled(offset: int, bits: int) -> int:
    """Where in shared memory the bytes lie that would be at `offset` without a swizzle."""
    return offset ^ (((offset >> 7) & ((1 << bits) - 1)) << 4)


# Rows of a copy -------------------------------------------------------------------------------------------------------


def rows_of(copy: int) -> int:
    """How many runs of bytes it has."""
    rows = 1
    for dimension in range(1, load64(copy + RANK)):
        rows *= load32(load64(copy + MAP) + MAP_BOX + 4 * dimension)
    return rows


def row_address(copy: int, row: int) -> int:
    """Virtual address of a run's first byte, inside the tensor or not; `OUTSIDE` where all of the run is outside."""
    rank, tensor_map = load64(copy + RANK), load64(copy + MAP)
    if rank == 0:
        return int(load64(copy + ADDRESS))
    address = load64(tensor_map + proxy.MAP_ADDRESS)
    address += load64(copy + COORDINATES) * load64(tensor_map + proxy.MAP_ELEMENT)
    rest = row
    for dimension in range(1, rank):
        box = load32(tensor_map + MAP_BOX + 4 * dimension)
        place = load64(copy + COORDINATES + 8 * dimension) + rest % box
        rest = rest // box
        if place < 0 or place >= load32(tensor_map + MAP_EXTENTS + 4 * dimension):
            return OUTSIDE
        address += place * load64(tensor_map + MAP_STRIDES + 8 * (dimension - 1))
    return int(address)


def row_bytes(copy: int) -> int:
    """Bytes of a run, inside the tensor or not."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + BYTES))
    tensor_map = load64(copy + MAP)
    return int(load32(tensor_map + MAP_BOX) * load64(tensor_map + proxy.MAP_ELEMENT))


def first_inside(copy: int) -> int:
    """Bytes of each run before the tensor begins."""
    if load64(copy + RANK) == 0:
        return 0
    return int(max(0, -load64(copy + COORDINATES)) * load64(load64(copy + MAP) + proxy.MAP_ELEMENT))


def last_inside(copy: int) -> int:
    """Bytes of each run before the tensor ends; not more than the run has."""
    if load64(copy + RANK) == 0:
        return int(load64(copy + BYTES))
    tensor_map = load64(copy + MAP)
    left = load32(tensor_map + MAP_EXTENTS) - load64(copy + COORDINATES)
    return int(min(row_bytes(copy), left * load64(tensor_map + proxy.MAP_ELEMENT)))


def count_rows(ctx: int, warp: int, copy: int) -> None:
    """Add the copy to the counters of its instruction and buffer."""
    first, last, site = first_inside(copy), last_inside(copy), load64(copy + SITE)
    sectors, requested, buffer = 0, 0, -1
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        if address == OUTSIDE or first >= last:
            continue
        buffer = (address >> at.WINDOW_BITS) - at.FIRST_BUFFER_WINDOW
        start = (address & OFFSET_MASK) - at.BUFFER_START
        low, high = (start + first) >> 5, ((start + last - 1) >> 5) + 1
        requested += last - first
        sectors += high - low
        if is_traced(ctx) and buffer >= 0:
            for piece in range(low, high, TRACED_SECTORS):
                some = min(TRACED_SECTORS, high - piece)
                for sector in range(some):
                    store64(warp + at.DATA_3 + 8 * sector, piece + sector)
                record(ctx, warp, site, buffer, some)
    if buffer >= 0:
        count(ctx, site, buffer, 1, requested, sectors, requested)


# Issue, commit, wait --------------------------------------------------------------------------------------------------


def issue_bulk(ctx: int, warp: int, site: int, mask: int, stores: int, rank: int, reductions: int) -> int:
    """Check, count and queue each active lane's copy. 1 on a fault, else 0.

    `reductions`: address of the functions that combine, for each type of a tensor's elements; 0 where none does.
    """
    state = load64(ctx + ASYNC_PROXY)
    for lane in range(32):
        if (mask >> lane) & 1 and issue_one(ctx, state, warp, site, lane, stores, rank, reductions):
            return 1
    return 0


def issue_one(ctx: int, state: int, warp: int, site: int, lane: int, stores: int, rank: int, reductions: int) -> int:
    """One lane's copy."""
    number = load64(state + TAIL)
    if number - load64(state + HEAD) == COPY_CAPACITY:
        set_fault(ctx, TOO_MANY, site, lane, 0, COPY_CAPACITY)
        return 1
    copy = copy_at(state, number)
    outer = load64(warp + SOURCES + 8 * lane)
    size = load32(warp + SIZES + 4 * lane)
    store64(copy + RANK, rank)
    store64(copy + ADDRESS, outer)
    store64(copy + REDUCTION, load64(reductions) if reductions else 0)
    alignment = PIECE
    if rank:
        tensor_map = host_of(ctx, outer, proxy.MAP_BYTES)
        if tensor_map == 0 or load64(tensor_map) != proxy.MAGIC or load64(tensor_map + proxy.MAP_RANK) != rank:
            set_fault(ctx, NO_MAP, site, lane, outer, rank)
            return 1
        store64(copy + MAP, tensor_map)
        if reductions:
            kind = load64(tensor_map + proxy.MAP_TYPE)
            store64(copy + REDUCTION, load64(reductions + 8 * kind))
            if load64(copy + REDUCTION) == 0:
                set_fault(ctx, NO_REDUCTION, site, lane, kind, 0)
                return 1
        size = load64(tensor_map + proxy.MAP_ELEMENT)
        for dimension in range(rank):
            place = warp + SIZES + 128 * dimension if dimension < 4 else warp + LAST_COORDINATE
            coordinate = load32(place + 4 * lane)
            store64(copy + COORDINATES + 8 * dimension, coordinate - ((coordinate >> 31) << 32))
            size *= load32(tensor_map + MAP_BOX + 4 * dimension)
        element = load64(tensor_map + proxy.MAP_ELEMENT)
        if (load64(copy + COORDINATES) * element) & (PIECE - 1):
            set_fault(ctx, BAD_COORDINATE, site, lane, load64(copy + COORDINATES), element)
            return 1
        alignment = BOX_ALIGNMENT
    elif size & (PIECE - 1):
        set_fault(ctx, COPY_SIZE, site, lane, size, 0)
        return 1
    elif host_of(ctx, outer, size) == 0 and size:
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, outer, size)
        return 1
    elif outer & (PIECE - 1):
        set_fault(ctx, MISALIGNED, site, lane, outer, PIECE)
        return 1
    address = load64(warp + at.ADDRESSES + 8 * lane)
    offset = address & OFFSET_MASK
    if address >> at.WINDOW_BITS != at.SHARED_WINDOW or offset + size > load64(ctx + SHARED_SIZE):
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
        return 1
    if offset & (alignment - 1):
        set_fault(ctx, MISALIGNED, site, lane, address, alignment)
        return 1
    thread = 32 * load64(ctx + WARP_INDEX) + lane
    store64(copy + IN_FLIGHT, 1)
    store64(copy + STORES, stores)
    store64(copy + SHARED, offset)
    store64(copy + BYTES, size)
    store64(copy + THREAD, thread)
    store64(copy + GROUP, load64(load64(state + GROUPS) + 8 * thread))
    store64(copy + SITE, site)
    if not stores:
        barrier = load64(warp + BARRIERS + 8 * lane)
        place = barrier & OFFSET_MASK
        if barrier >> at.WINDOW_BITS != at.SHARED_WINDOW or place + 8 > load64(ctx + SHARED_SIZE) or place & 7:
            set_fault(ctx, NO_MBARRIER, site, lane, barrier, 8)
            return 1
        if (load64(load64(ctx + SHARED_BASE) + place) >> proxy.VALID_AT) & 3 != 1:
            set_fault(ctx, NO_MBARRIER, site, lane, barrier, 8)
            return 1
        store64(copy + BARRIER, place)
        fill_ones(load64(ctx + SHARED_BASE) + offset, size)
    store64(state + TAIL, number + 1)
    count_rows(ctx, warp, copy)
    if load64(ctx + SANITIZER):
        watch_bulk(load64(ctx + SANITIZER), load64(ctx + WARP_INDEX), lane, copy)
    return 0


def watch_bulk(state: int, warp: int, lane: int, copy: int) -> None:
    """Tell the sanitizer of a copy that was issued."""
    time = tick(state)
    store64(copy + ISSUED, time)
    site, stores = load64(copy + SITE), load64(copy + STORES)
    combines = load64(copy + REDUCTION) != 0
    first, last = first_inside(copy), last_inside(copy)
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        if address != OUTSIDE and first < last:
            watch_global_run(state, warp, lane, site, time, address + first, last - first, stores, combines)
    if stores:
        read_until_landed(state, warp, lane, site, time, load64(copy + SHARED), load64(copy + BYTES))
    else:
        overwrite_shared(state, warp, lane, site, time, load64(copy + SHARED), load64(copy + BYTES))


def commit_bulk(ctx: int, mask: int) -> int:
    """The active lanes' stores since their last commit become a group. Always 0."""
    groups = load64(load64(ctx + ASYNC_PROXY) + GROUPS) + 8 * 32 * load64(ctx + WARP_INDEX)
    for lane in range(32):
        if (mask >> lane) & 1:
            store64(groups + 8 * lane, load64(groups + 8 * lane) + 1)
    return 0


def wait_for_bulk(ctx: int, mask: int, pending: int) -> int:
    """The active lanes wait until at most the `pending` latest groups of each are in flight. Always 0."""
    state = load64(ctx + ASYNC_PROXY)
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        copy = copy_at(state, number)
        lane = load64(copy + THREAD) - 32 * load64(ctx + WARP_INDEX)
        if load64(copy + IN_FLIGHT) and load64(copy + STORES) and 0 <= lane and lane < 32 and (mask >> lane) & 1:
            committed = load64(load64(state + GROUPS) + 8 * load64(copy + THREAD))
            if load64(copy + GROUP) + pending < committed:
                land(ctx, copy)
    forget_landed(state)
    return 0


def forget_landed(state: int) -> None:
    """The ring begins with a copy that is in flight."""
    head = load64(state + HEAD)
    while head < load64(state + TAIL) and load64(copy_at(state, head) + IN_FLIGHT) == 0:
        head += 1
    store64(state + HEAD, head)


def land_loads(ctx: int, barrier: int) -> int:
    """The loads that this phase of an mbarrier counts happen, and are counted. 1 on a fault, else 0."""
    state = load64(ctx + ASYNC_PROXY)
    landed = 0
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        copy = copy_at(state, number)
        if load64(copy + IN_FLIGHT) and not load64(copy + STORES) and load64(copy + BARRIER) == barrier:
            land(ctx, copy)
            landed += 1
            place = load64(ctx + SHARED_BASE) + barrier
            phase = load64(place) >> proxy.PHASE_AT
            if take_bytes(ctx, place, load64(copy + BYTES)):
                set_fault(ctx, BAD_BYTES, load64(copy + SITE), load64(copy + THREAD) & 31, load64(copy + BYTES), 0)
                return 1
            if load64(place) >> proxy.PHASE_AT != phase:
                if load64(ctx + SANITIZER):
                    finish_mbarrier_phase(load64(ctx + SANITIZER), barrier)
                break
    if landed:
        forget_landed(state)
        store64(ctx + CHANGES, load64(ctx + CHANGES) + 1)
    return 0


def take_bytes(ctx: int, place: int, size: int) -> int:
    """`complete_tx` of so many bytes on the mbarrier at a host address. 1 where it cannot count so many."""
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
    """The copy happens."""
    bits = load64(load64(copy + MAP) + proxy.MAP_SWIZZLE) if load64(copy + RANK) else 0
    first, last, width = first_inside(copy), last_inside(copy), row_bytes(copy)
    shared, stores, function = load64(ctx + SHARED_BASE), load64(copy + STORES), load64(copy + REDUCTION)
    for row in range(rows_of(copy)):
        address = row_address(copy, row)
        start, end, outer = first, last, 0
        if address == OUTSIDE or first >= last:
            start, end = 0, 0
        else:
            outer = host_of(ctx, address + start, end - start) - start
        for piece in range(0, width, PIECE):
            inner = shared + swizzled(load64(copy + SHARED) + row * width + piece, bits)
            low, high = max(0, start - piece), min(PIECE, end - piece)
            if function:
                combine_piece(
                    load64(load64(ctx + ASYNC_PROXY) + proxy.SCRATCH), function, inner, outer + piece, low, high
                )
            else:
                move_piece(inner, outer + piece, low, high, stores)
    store64(copy + IN_FLIGHT, 0)
    if load64(ctx + SANITIZER):
        warp, size = load64(copy + THREAD) >> 5, load64(copy + BYTES)
        state, issued = load64(ctx + SANITIZER), load64(copy + ISSUED)
        settle_bulk(state, warp, issued, load64(copy + SHARED), size, stores, load64(copy + BARRIER))


def move_piece(inner: int, outer: int, first: int, last: int, stores: int) -> None:
    """16 bytes, of which global memory has those from `first` up to, not including, `last`."""
    if first == 0 and last == PIECE:
        source = inner if stores else outer
        target = outer if stores else inner
        store64(target, load64(source))
        store64(target + 8, load64(source + 8))
        return
    for byte in range(PIECE):
        if first <= byte and byte < last:
            if stores:
                store8(outer + byte, load8(inner + byte))
            else:
                store8(inner + byte, load8(outer + byte))
        elif not stores:
            store8(inner + byte, 0)


def combine_piece(scratch: int, function: int, inner: int, outer: int, first: int, last: int) -> None:
    """16 bytes of shared memory are added, or what the function does, to those of global memory."""
    store64(scratch + proxy.REDUCTION_ROW, load64(inner))
    store64(scratch + proxy.REDUCTION_ROW + 8, load64(inner + 8))
    for byte in range(first, last):
        store8(scratch + byte, load8(outer + byte))
    call_host(function, scratch)
    for byte in range(first, last):
        store8(outer + byte, load8(scratch + byte))


def drop_bulk(ctx: int) -> None:
    """A block begins: what the one before it left in flight will not land any more."""
    state = load64(ctx + ASYNC_PROXY)
    store64(state + HEAD, 0)
    store64(state + TAIL, 0)
    for thread in range(32 * load64(ctx + WARP_COUNT)):
        store64(load64(state + GROUPS) + 8 * thread, 0)
