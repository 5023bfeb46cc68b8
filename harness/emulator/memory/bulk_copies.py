"""Bulk copies (PTX ISA 9.7.9.25.4 f.): contiguous bytes and boxes of a tensor, between global and shared memory.

As with cp.async, a copy completes as late as possible, and its destination in shared memory contains NaN until then. A
load completes when some warp waits for the current phase of its mbarrier, unless earlier loads complete that phase, and
then counts its bytes there; without a wait it never completes. A store completes when its thread waits for its bulk
group, and at the latest when the last warp of its block ends, as on an H100; the sanitizer reports that. Bytes and
sectors are counted at issue: each row of the box takes whole sectors. Elements of a box outside its tensor are loaded
as zeros, which count at the mbarrier, and are not stored; but a store, or a reduction, moves whole pieces of 16 bytes,
and the last one of a row may extend beyond the tensor. A box that is stored to global memory cannot begin at a negative
coordinate. This is an H200's behaviour; PTX does not define it.

A copy to several blocks of a cluster (`.multicast::cluster`) is one copy for each of them, with its own mbarrier, or
with the one at the same offset in its pair (`.cta_group::2`); what it reads is counted once. A copy from a block's
shared memory to another block's completes like a load.

The swizzle exchanges pieces of 16 bytes by address (PTX ISA 5.5.7): the low bits of a piece's number within 128 bytes
are XORed with the number of the 128 bytes. Rows of a box that are narrower than their swizzle's span begin a span
apart, and an H100 does not modify the gaps; the mbarrier counts the bytes that are moved.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import event_layout as event
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import ENDED, STRAY, address_of, place_of, rank_of_place, warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import fill_ones, load32, load64, store64
from harness.emulator.memory import bulk_rows as rows
from harness.emulator.memory.bulk_landing import forget_landed, land
from harness.emulator.memory.tensor_map_fields import ELEMTYPE, flaw_of, is_map
from harness.emulator.memory.trace import NO_SITE, arrive_in_time, note_now
from harness.emulator.sanitizer.async_proxy import end_before_wait, read_until_landed, watch_global_run
from harness.emulator.sanitizer.clock_words import tick
from harness.emulator.sanitizer.copies_in_flight import overwrite_shared
from harness.emulator.sanitizer.tensor_map_fences import check_map

HEAD, TAIL, GROUPS = proxy.HEAD, proxy.TAIL, proxy.GROUPS
COPY_BYTES = proxy.COPY_BYTES
IN_FLIGHT, STORES, RANK, SHARED, BYTES = proxy.IN_FLIGHT, proxy.STORES, proxy.RANK, proxy.SHARED, proxy.BYTES
MAP_COPY = proxy.MAP_COPY
MAP, BARRIER, THREAD, GROUP, SITE = proxy.MAP, proxy.BARRIER, proxy.THREAD, proxy.GROUP, proxy.SITE
ADDRESS, ISSUED, REDUCTION, COORDINATES = proxy.ADDRESS, proxy.ISSUED, proxy.REDUCTION, proxy.COORDINATES
SOURCE, FROM_GLOBAL, FROM_SHARED = proxy.SOURCE, proxy.FROM_GLOBAL, proxy.FROM_SHARED
TO_GLOBAL, TO_OTHER_BLOCK = proxy.TO_GLOBAL, proxy.TO_OTHER_BLOCK
MULTICAST, OWN_BLOCK, TO_PAIR = proxy.MULTICAST, proxy.OWN_BLOCK, proxy.TO_PAIR
OUT_OF_BOUNDS, MISALIGNED = at.FAULT["out of bounds"], at.FAULT["misaligned"]
NO_MBARRIER, NO_MAP = at.FAULT["no mbarrier"], at.FAULT["no tensor map"]
READ_ONLY = at.FAULT["read-only memory"]
TOO_MANY, ENDED_BLOCK = at.FAULT["bulk copies in flight"], at.FAULT["ended block"]
COPY_SIZE, NO_REDUCTION = at.FAULT["copy size"], at.FAULT["reduction type"]
BAD_COORDINATE, NO_BLOCK = at.FAULT["tensor coordinate"], at.FAULT["cluster rank"]
NOT_REMOTE, BARRIER_ELSEWHERE = at.FAULT["own block"], at.FAULT["mbarrier elsewhere"]
BAD_FIELD = at.FAULT["tensor map field"]
BOX_ALIGNMENT = 128
"""Alignment of a box in shared memory, in bytes."""
SOURCES = at.DATA
"""Where generated code stores each lane's tensor map or source address, 8 bytes; the shared memory address is in
ADDRESSES."""
BARRIERS = at.DATA + 256
"""Where generated code stores each lane's mbarrier, 8 bytes."""
SIZES = at.DATA_2
"""Where generated code stores the coordinates of each lane's box, 4 bytes, 128 bytes apart; or the number of bytes to
copy."""
LAST_COORDINATE = at.HOSTS
"""Where generated code stores the fifth coordinate."""


# Issue, commit, wait --------------------------------------------------------------------------------------------------


def issue_bulk(ctx: int, warp: int, site: int, mask: int, direction: int, rank: int, reductions: int) -> int:
    """Check, count and queue each active lane's copy. Returns 1 on a fault, else 0.

    `reductions` is the address of the reduction functions, one for each type of a tensor's elements; 0 for a plain
    copy. A box that several lanes store to the same place is stored once, as by the machine code of `ptxas`: its
    instruction `UTMASTG` is executed once by a warp.
    """
    first, stores_box = -1, rank != 0 and direction & TO_GLOBAL and reductions == 0
    for lane in range(32):
        if (mask >> lane) & 1 and not (stores_box and first >= 0 and is_same_box(warp, first, lane, rank)):
            if issue_one(ctx, warp, site, lane, direction, rank, reductions):
                return 1
            first = lane
    return 0


def is_same_box(warp: int, one: int, other: int, rank: int) -> bool:
    """Whether two lanes copy the same box from the same shared memory."""
    same = load64(warp + SOURCES + 8 * one) == load64(warp + SOURCES + 8 * other)
    same = same and load64(warp + at.ADDRESSES + 8 * one) == load64(warp + at.ADDRESSES + 8 * other)
    for dimension in range(rank):
        place = warp + SIZES + 128 * dimension if dimension < 4 else warp + LAST_COORDINATE
        same = same and load32(place + 4 * one) == load32(place + 4 * other)
    return same


def issue_one(ctx: int, warp: int, site: int, lane: int, direction: int, rank: int, reductions: int) -> int:
    """Check, count and queue one lane's copy. Returns 1 on a fault, else 0."""
    copy = begin_copy(ctx, site, lane)
    if copy == 0:
        return 1
    alignment = rows.PIECE
    store64(copy + RANK, rank)
    store64(copy + STORES, direction & TO_GLOBAL)
    store64(copy + REDUCTION, load64(reductions) if reductions else 0)
    if rank:
        if describe_box(ctx, warp, copy, lane, reductions):
            return 1
        alignment = BOX_ALIGNMENT
    elif describe_run(ctx, warp, copy, lane, direction):
        return 1
    size, address = rows.shared_bytes(copy), load64(warp + at.ADDRESSES + 8 * lane)
    place = checked_place(ctx, site, lane, address, size, alignment, direction & (TO_GLOBAL | OWN_BLOCK))
    if place < 0:
        return 1
    barrier = 0
    if direction & TO_OTHER_BLOCK and rank_of_place(ctx, place) == load64(ctx + context.CLUSTER_RANK):
        set_fault(ctx, NOT_REMOTE, site, lane, address, size)
        return 1
    if not direction & TO_GLOBAL:
        barrier = barrier_of(ctx, site, lane, load64(warp + BARRIERS + 8 * lane), place, direction & TO_PAIR)
        if barrier < 0:
            return 1
    if load64(copy + SOURCE) == FROM_GLOBAL:
        rows.count_rows(ctx, warp, copy, place)
    if load64(ctx + context.SANITIZER):
        watch_source(load64(ctx + context.SANITIZER), warp_number(ctx), lane, copy, place)
    if not direction & MULTICAST:
        return int(queue_copy(ctx, copy, lane, place, barrier))
    receivers, pitch = load32(warp + at.RECEIVERS + 4 * lane) & 0xFFFF, load64(ctx + context.SHARED_PITCH)
    own_rank, barrier_rank = rank_of_place(ctx, place), rank_of_place(ctx, barrier)
    for block in range(16):
        if (receivers >> block) & 1:
            if block >= load64(ctx + context.CLUSTER_SIZE):
                set_fault(ctx, NO_BLOCK, site, lane, block, 0)
                return 1
            if load32(load64(ctx + context.LIVE_WARPS) + 4 * block) == 0:
                set_fault(ctx, ENDED_BLOCK, site, lane, address, size)
                return 1
            away = pitch * (block - own_rank)
            # In a pair, the blocks of the mbarriers have the parity of the given one.
            host = (block & ~1) | (barrier_rank & 1) if direction & TO_PAIR else block
            if queue_copy(ctx, copy, lane, place + away, barrier + pitch * (host - barrier_rank)):
                return 1
    return 0


def begin_copy(ctx: int, site: int, lane: int) -> int:
    """Address of the next copy in the ring, with its common fields set.

    Returns 0 and records a fault if the ring is full.
    """
    state = load64(ctx + context.ASYNC_PROXY)
    number = load64(state + TAIL)
    # A multicast takes one entry per destination.
    if number - load64(state + HEAD) + load64(ctx + context.CLUSTER_SIZE) > load64(state + proxy.CAPACITY):
        set_fault(ctx, TOO_MANY, site, lane, 0, load64(state + proxy.CAPACITY))
        return 0
    copy = rows.copy_at(state, number)
    thread = 32 * warp_number(ctx) + lane
    store64(copy + IN_FLIGHT, 1)
    store64(copy + THREAD, thread)
    store64(copy + GROUP, load64(load64(state + GROUPS) + 8 * thread))
    store64(copy + SITE, site)
    store64(copy + SOURCE, FROM_GLOBAL)
    return copy


def describe_box(ctx: int, warp: int, copy: int, lane: int, reductions: int) -> int:
    """Set the tensor map of a lane, and the coordinates of its box. Returns 1 on a fault, else 0."""
    outer, rank, site = load64(warp + SOURCES + 8 * lane), load64(copy + RANK), load64(copy + SITE)
    tensor_map = rows.host_of(ctx, outer, proxy.MAP_BYTES)
    if tensor_map == 0 or load64(tensor_map + proxy.MAP_RANK) != rank or not is_map(tensor_map):
        set_fault(ctx, NO_MAP, site, lane, outer, rank)
        return 1
    flaw = flaw_of(tensor_map, rank) if load64(tensor_map) == proxy.MODIFIED else 0
    if flaw:
        set_fault(ctx, BAD_FIELD, site, lane, 0, flaw - 1)
        return 1
    check_map(ctx, site, lane, outer)
    for word in range(0, proxy.MAP_BYTES, 8):
        store64(copy + MAP_COPY + word, load64(tensor_map + word))
    store64(copy + MAP, copy + MAP_COPY)
    kind = load32(tensor_map + proxy.MAP_TYPE)
    if load64(copy + STORES) and kind == proxy.PADDED_4:
        set_fault(ctx, BAD_FIELD, site, lane, kind, ELEMTYPE)
        return 1
    if reductions:
        store64(copy + REDUCTION, load64(reductions + 8 * kind))
        if load64(copy + REDUCTION) == 0:
            set_fault(ctx, NO_REDUCTION, site, lane, kind, 0)
            return 1
    element = load64(tensor_map + proxy.MAP_ELEMENT)
    size = element
    for dimension in range(rank):
        place = warp + SIZES + 128 * dimension if dimension < 4 else warp + LAST_COORDINATE
        coordinate = load32(place + 4 * lane)
        coordinate -= (coordinate >> 31) << 32
        if load64(copy + STORES) and coordinate < 0:
            set_fault(ctx, BAD_COORDINATE, site, lane, coordinate, 0)
            return 1
        store64(copy + COORDINATES + 8 * dimension, coordinate)
        size *= load32(tensor_map + proxy.MAP_BOX + 4 * dimension)
    multiple = proxy.PADDED_BOX if kind > proxy.PACKED else 8 * rows.PIECE // element
    if load64(copy + COORDINATES) % multiple:
        set_fault(ctx, BAD_COORDINATE, site, lane, load64(copy + COORDINATES), multiple)
        return 1
    store64(copy + BYTES, size >> 3)
    stray = rows.leaves_buffer(ctx, copy) if load64(copy + STORES) else 0
    if stray:
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, stray, rows.last_inside(copy) - rows.first_inside(copy))
        return 1
    return 0


def describe_run(ctx: int, warp: int, copy: int, lane: int, direction: int) -> int:
    """Set the bytes that a lane copies, and their address in global memory or, between blocks, in its own block."""
    outer, size, site = load64(warp + SOURCES + 8 * lane), load32(warp + SIZES + 4 * lane), load64(copy + SITE)
    store64(copy + BYTES, size)
    store64(copy + ADDRESS, outer)
    if size & (rows.PIECE - 1):
        set_fault(ctx, COPY_SIZE, site, lane, size, 0)
        return 1
    if direction & TO_OTHER_BLOCK:
        store64(copy + SOURCE, FROM_SHARED)
        store64(copy + ADDRESS, checked_place(ctx, site, lane, outer, size, rows.PIECE, 1))
        return 1 if load64(copy + ADDRESS) < 0 else 0
    if rows.host_of(ctx, outer, size) == 0 and size:
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, outer, size)
        return 1
    if outer & (rows.PIECE - 1):
        set_fault(ctx, MISALIGNED, site, lane, outer, rows.PIECE)
        return 1
    if direction & TO_GLOBAL and rows.column_of(ctx, outer) == at.CONSTANT:
        set_fault(ctx, READ_ONLY, site, lane, outer, size)
        return 1
    return 0


def checked_place(ctx: int, site: int, lane: int, address: int, size: int, alignment: int, own: int) -> int:
    """The place of bytes in shared memory, the block's `own` or any; negative, with a fault recorded, if in none."""
    place = place_of(ctx, address, size)
    if place == ENDED:
        set_fault(ctx, ENDED_BLOCK, site, lane, address, size)
        return ENDED
    if place < 0 or (own and rank_of_place(ctx, place) != load64(ctx + context.CLUSTER_RANK)):
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
        return STRAY
    if place & (alignment - 1):
        set_fault(ctx, MISALIGNED, site, lane, address, alignment)
        return STRAY
    return int(place)


def barrier_of(ctx: int, site: int, lane: int, address: int, target: int, pair: int) -> int:
    """The place of the mbarrier that counts a copy to `target`; -1, with a fault recorded, if it is invalid.

    It is in the block that contains `target`, or with `pair` in either block of that block's pair.
    """
    place = place_of(ctx, address, proxy.MBARRIER_BYTES)
    if place < 0 or place & (proxy.MBARRIER_BYTES - 1):
        set_fault(ctx, NO_MBARRIER, site, lane, address, proxy.MBARRIER_BYTES)
        return -1
    apart = rank_of_place(ctx, place) ^ rank_of_place(ctx, target)
    if apart > (1 if pair else 0):
        set_fault(ctx, BARRIER_ELSEWHERE, site, lane, rank_of_place(ctx, place), rank_of_place(ctx, target))
        return -1
    return int(place)


def queue_copy(ctx: int, described: int, lane: int, place: int, barrier: int) -> int:
    """Add a copy to or from this place of shared memory to those in flight. Returns 1 on a fault, else 0."""
    state = load64(ctx + context.ASYNC_PROXY)
    number = load64(state + TAIL)
    copy = rows.copy_at(state, number)
    if copy != described:
        for word in range(0, COPY_BYTES, 8):
            store64(copy + word, load64(described + word))
        store64(copy + MAP, copy + MAP_COPY)
    site = load64(copy + SITE)
    store64(copy + SHARED, place)
    store64(copy + BARRIER, barrier)
    if not load64(copy + STORES):
        if (load64(load64(ctx + context.SHARED_ORIGIN) + barrier) >> proxy.VALID_AT) & 3 != 1:
            set_fault(ctx, NO_MBARRIER, site, lane, address_of(ctx, barrier), proxy.MBARRIER_BYTES)
            return 1
        sanitizer, time, combines = (
            load64(ctx + context.SANITIZER),
            load64(copy + ISSUED),
            load64(copy + REDUCTION) != 0,
        )
        size = rows.part_bytes(copy)
        for part in range(rows.parts_of(copy)):
            here = rows.part_place(copy, place, part)
            if not combines:
                fill_ones(load64(ctx + context.SHARED_ORIGIN) + here, size)
            if sanitizer:
                overwrite_shared(sanitizer, warp_number(ctx), lane, site, time, here, size, combines)
    store64(state + TAIL, number + 1)
    note_now(ctx, site, event.ISSUES_BULK_COPY, number)
    if not load64(copy + STORES):
        arrive_in_time(ctx, barrier)
    return 0


def watch_source(state: int, warp: int, lane: int, copy: int, place: int) -> None:
    """Report an issued copy to the sanitizer, except for what it writes in shared memory."""
    time = tick(state)
    store64(copy + ISSUED, time)
    site, stores, size = load64(copy + SITE), load64(copy + STORES), load64(copy + BYTES)
    if load64(copy + SOURCE) == FROM_SHARED:
        read_until_landed(state, warp, lane, site, time, load64(copy + ADDRESS), size)
        return
    combines = load64(copy + REDUCTION) != 0
    first, last = rows.first_inside(copy), rows.last_inside(copy)
    for row in range(rows.rows_of(copy)):
        address = rows.row_address(copy, row)
        if address != rows.OUTSIDE and first < last:
            begin, end = rows.outer_bytes(copy, first), rows.outer_bytes(copy, last)
            watch_global_run(state, warp, lane, site, time, address + begin, end - begin, stores, combines)
    if stores and rows.is_inside(copy):
        for part in range(rows.parts_of(copy)):
            read_until_landed(state, warp, lane, site, time, rows.part_place(copy, place, part), rows.part_bytes(copy))
    elif stores:
        for row in range(rows.rows_of(copy)):
            if rows.row_address(copy, row) != rows.OUTSIDE:
                for piece in range(first // rows.PIECE, (last + rows.PIECE - 1) // rows.PIECE):
                    here = rows.piece_place(copy, place, row, piece)
                    read_until_landed(state, warp, lane, site, time, here, rows.PIECE)


def commit_bulk(ctx: int, mask: int) -> int:
    """Commit the active lanes' stores since their last commit as a group. Returns 0."""
    groups = load64(load64(ctx + context.ASYNC_PROXY) + GROUPS) + 8 * 32 * warp_number(ctx)
    for lane in range(32):
        if (mask >> lane) & 1:
            store64(groups + 8 * lane, load64(groups + 8 * lane) + 1)
    return 0


def wait_for_bulk(ctx: int, mask: int, pending: int) -> int:
    """Complete the active lanes' stores, except for the `pending` latest groups of each. Returns 0."""
    state = load64(ctx + context.ASYNC_PROXY)
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        copy = rows.copy_at(state, number)
        lane = load64(copy + THREAD) - 32 * warp_number(ctx)
        if load64(copy + IN_FLIGHT) and load64(copy + STORES) and 0 <= lane and lane < 32 and (mask >> lane) & 1:
            committed = load64(load64(state + GROUPS) + 8 * load64(copy + THREAD))
            if load64(copy + GROUP) + pending < committed:
                land(ctx, copy)
                note_now(ctx, NO_SITE, event.BULK_COPY_LANDS, number)
    forget_landed(state)
    return 0


def land_left_stores(ctx: int) -> int:
    """Complete the stores and reductions of the current block, which has ended, that no thread awaited. Returns 0."""
    state, sanitizer, own = (
        load64(ctx + context.ASYNC_PROXY),
        load64(ctx + context.SANITIZER),
        load64(ctx + context.CLUSTER_RANK),
    )
    for number in range(load64(state + HEAD), load64(state + TAIL)):
        copy = rows.copy_at(state, number)
        thread = load64(copy + THREAD)
        if (
            load64(copy + IN_FLIGHT)
            and load64(copy + STORES)
            and thread // (32 * load64(ctx + context.WARP_PITCH)) == own
        ):
            if sanitizer:
                end_before_wait(sanitizer, load64(copy + SITE), thread, load64(copy + SHARED), load64(copy + BYTES))
            land(ctx, copy)
            note_now(ctx, NO_SITE, event.BULK_COPY_LANDS, number)
    forget_landed(state)
    return 0


def drop_bulk(ctx: int) -> None:
    """Discard copies in flight when a cluster begins."""
    state = load64(ctx + context.ASYNC_PROXY)
    store64(state + HEAD, 0)
    store64(state + TAIL, 0)
    for thread in range(32 * load64(ctx + context.CLUSTER_WARPS)):
        store64(load64(state + GROUPS) + 8 * thread, 0)
