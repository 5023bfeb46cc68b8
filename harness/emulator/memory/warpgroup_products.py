"""Products of a warpgroup that its warps do not wait for: wgmma.mma_async (PTX ISA 9.7.15).

D += A B for 64 rows, of which each of the four warps has 16. A product happens as late as it may, at the wait that
covers it: what has been written over its operands in shared memory by then, it computes with. Registers of A are taken
at the issue, for to a compiler they are free from there on.

An accumulator that is under way is not in its register, which holds a *ticket* instead: NaN, in which the number of the
accumulator is hidden. Whoever computes with it too early has NaN; a compiler that moves it to another register before
the wait, which ptxas undoes, moves the ticket. The wait puts the sums in all registers that hold their tickets.

The four warps meet at each wait, because a product is one instruction of all four: none of them is done with it before
the others have issued it, and when one of them is, all are. Columns come in slices of 8, which are those of an
`mma.m16n8`: the same registers, and the same arithmetic (`codegen/dot_product.py`).

Tiles in shared memory are made of 8 rows of 16 bytes, 8 steps of 16 bits each or, where they lie the other way, 8 steps
of 8 rows or columns; a descriptor says where, see `piece_at` (PTX ISA 9.7.15.5.1).
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi import sanitizer_layout
from harness.emulator.abi.cluster_memory import own_place, warp_number
from harness.emulator.abi.context import (
    ASYNC_PROXY,
    CLUSTER_WARPS,
    EVENT_CLOCKS,
    FIRST_WARP,
    SANITIZER,
    SHARED_BASE,
    SHARED_SIZE,
    WARP_BYTES,
    WARP_COUNT,
    WARP_INDEX,
    WARPS,
)
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, load32, load64, store16, store32, store64
from harness.emulator.memory.bulk_rows import swizzled
from harness.emulator.sanitizer.async_proxy import read_operand, settle_operand, touched_early
from harness.emulator.sanitizer.product_registers import use_registers
from harness.emulator.sanitizer.vector_clock import lowest, tick

FIRST, NEXT, COMMITTED, CURSOR = proxy.FIRST, proxy.NEXT, proxy.COMMITTED, proxy.CURSOR
OWNERS, SOURCES, LAST, ROWS, PRODUCTS = proxy.OWNERS, proxy.SOURCES, proxy.LAST, proxy.ROWS, proxy.PRODUCTS
TICKETS, TICKET, TICKET_MASK, LOW_BITS = proxy.TICKETS, proxy.TICKET, proxy.TICKET_MASK, proxy.TICKET_LOW_BITS
PRODUCT_CAPACITY, PRODUCT_BYTES, QUEUE_BYTES = proxy.PRODUCT_CAPACITY, proxy.PRODUCT_BYTES, proxy.QUEUE_BYTES
FUNCTION, SHAPE, GROUP, SITE = proxy.FUNCTION, proxy.SHAPE, proxy.PRODUCT_GROUP, proxy.PRODUCT_SITE
FRAGMENT, ACCUMULATORS, ISSUED = proxy.FRAGMENT, proxy.ACCUMULATORS, proxy.PRODUCT_ISSUED
SHAPE_SLICE, SHAPE_SHARED_A, SHAPE_SIGNS = proxy.SHAPE_SLICE, proxy.SHAPE_SHARED_A, proxy.SHAPE_SIGNS
EARLY_ACCUMULATOR, EARLY_REGISTER = sanitizer_layout.EARLY_ACCUMULATOR, sanitizer_layout.EARLY_REGISTER
TOO_MANY, BAD_DESCRIPTOR = at.FAULT["products in flight"], at.FAULT["matrix descriptor"]
ROW = 128
"""Bytes of a register's 32 lanes."""
PIECE = 16
SLICE_PLACES = 0
"""In the scratch memory: addresses of D's registers (4), A's (4) and B's (2), as the product's function wants them."""
SLICE_A, SLICE_B = 128, 128 + 4 * ROW


def queue_of(state: int, warp: int) -> int:
    """The products of a warp, by its number."""
    return int(load64(state + proxy.QUEUES) + QUEUE_BYTES * warp)


def product_at(queue: int, number: int) -> int:
    """Where a product of a queue is."""
    return int(queue + PRODUCTS + PRODUCT_BYTES * (number & (PRODUCT_CAPACITY - 1)))


def copy_row(source: int, target: int) -> None:
    """The 32 lanes of a register."""
    for place in range(0, ROW, 8):
        store64(target + place, load64(source + place))


# Tickets --------------------------------------------------------------------------------------------------------------


def ticket_in(word: int) -> int:
    """The number of the ticket that a register's lane holds; -1 where it holds none."""
    if word & TICKET_MASK != TICKET:
        return -1
    return (((word >> 16) & 0xF) << LOW_BITS) | (word & ((1 << LOW_BITS) - 1))


def is_under_way(queue: int, ticket: int) -> bool:
    """Whether some product that has not happened adds to it."""
    return bool(load64(queue + LAST + 8 * ticket) > load64(queue + FIRST))


def free_ticket(queue: int) -> int:
    """A ticket that is not under way; -1 where there is none."""
    ticket = load64(queue + CURSOR)
    for _ in range(TICKETS):
        ticket = (ticket + 1) & (TICKETS - 1)
        if not is_under_way(queue, ticket):
            store64(queue + CURSOR, ticket)
            return int(ticket)
    return -1


def accumulator(queue: int, warp: int, place: int, keeps: int) -> int:
    """The ticket for a register of D, which begins with what that has, or with zeros; -1 where all are taken."""
    held = ticket_in(load32(warp + place))
    if held >= 0 and not is_under_way(queue, held):
        held = -1
    if keeps and held >= 0 and load32(queue + OWNERS + 4 * held) == place:
        return held
    ticket = free_ticket(queue)
    if ticket < 0:
        return -1
    store32(queue + OWNERS + 4 * ticket, place)
    store32(queue + SOURCES + 4 * ticket, held + 1 if keeps else 0)
    row = queue + ROWS + ROW * ticket
    for lane in range(32):
        store32(row + 4 * lane, load32(warp + place + 4 * lane) if keeps else 0)
        store32(warp + place + 4 * lane, TICKET | ((ticket >> LOW_BITS) << 16) | (ticket & ((1 << LOW_BITS) - 1)))
    return ticket


def issue_product(
    ctx: int, warp: int, site: int, function: int, places: int, shape: int, keeps: int, a: int, b: int, marks: int
) -> int:
    """Queue a product. 1 on a fault, else 0.

    `places`: address of the places of D's registers in the warp's state, and of A's where it is in registers, 4 bytes
    each. `keeps`: whether D is added to. `a` and `b`: descriptors. `marks`: where those of the sanitizer are, if any.
    """
    queue = queue_of(load64(ctx + ASYNC_PROXY), warp_number(ctx))
    number = load64(queue + NEXT)
    if number - load64(queue + FIRST) == PRODUCT_CAPACITY:
        set_fault(ctx, TOO_MANY, site, 0, 0, PRODUCT_CAPACITY)
        return 1
    product = product_at(queue, number)
    registers = shape & 0xFF
    if marks:
        watch_registers(ctx, warp, site, places, shape, marks, number)
    for register in range(registers):
        ticket = accumulator(queue, warp, load32(places + 4 * register), keeps)
        if ticket < 0:
            set_fault(ctx, TOO_MANY, site, 0, 0, TICKETS)
            return 1
        store64(queue + LAST + 8 * ticket, number + 1)
        store32(product + ACCUMULATORS + 4 * register, ticket)
    if not (shape >> SHAPE_SHARED_A) & 1:
        for register in range(4):
            copy_row(warp + load32(places + 4 * (registers + register)), product + FRAGMENT + ROW * register)
    store64(product + FUNCTION, function)
    store64(product + SHAPE, shape)
    store64(product + proxy.DESCRIPTOR_A, a)
    store64(product + proxy.DESCRIPTOR_B, b)
    store64(product + GROUP, load64(queue + COMMITTED))
    store64(product + SITE, site)
    store64(queue + NEXT, number + 1)
    if load64(ctx + SANITIZER):
        store64(product + ISSUED, tick(load64(ctx + SANITIZER)))
        visit_operands(ctx, product, warp_number(ctx), 0)
    return 0


def commit_products(ctx: int) -> int:
    """The warp's products since its last commit become a group. Always 0."""
    queue = queue_of(load64(ctx + ASYNC_PROXY), warp_number(ctx))
    store64(queue + COMMITTED, load64(queue + COMMITTED) + 1)
    return 0


# Operands in shared memory --------------------------------------------------------------------------------------------


def piece_at(descriptor: int, group: int, step: int, turned: int) -> int:
    """Offset, before the swizzle, of the first 16 bytes of 8: of 8 rows or columns, and half of K."""
    mode = (descriptor >> 62) & 3
    start = (descriptor & 0x3FFF) << 4
    leading, stride = ((descriptor >> 16) & 0x3FFF) << 4, ((descriptor >> 32) & 0x3FFF) << 4
    bits = (4 - mode) & 3
    if not turned:
        return start + group * stride + step * (PIECE if mode else leading)
    if not mode:
        return start + group * stride + step * leading
    return start + (group & ((1 << bits) - 1)) * PIECE + (group >> bits) * leading + step * stride


def load_pieces(ctx: int, descriptor: int, group: int, step: int, turned: int, target: int) -> int:
    """8 rows of 16 bytes -> a register's 32 lanes. 1 where they are not in shared memory, else 0."""
    mode = (descriptor >> 62) & 3
    bits = (4 - mode) & 3
    start = piece_at(descriptor, group, step, turned)
    base, limit = load64(ctx + SHARED_BASE), load64(ctx + SHARED_SIZE) - PIECE
    if (descriptor >> 49) & 7:
        return 1
    for row in range(8):
        place = swizzled(start + row * (PIECE << bits), bits)
        if place > limit:
            return 1
        low, high = load64(base + place), load64(base + place + 8)
        if not turned:
            store64(target + PIECE * row, low)
            store64(target + PIECE * row + 8, high)
        else:
            # Two steps of K, which are in rows, share a lane.
            half = target + 4 * (row >> 1) + 2 * (row & 1)
            store16(half, low)
            store16(half + 16, low >> 16)
            store16(half + 32, low >> 32)
            store16(half + 48, low >> 48)
            store16(half + 64, high)
            store16(half + 80, high >> 16)
            store16(half + 96, high >> 32)
            store16(half + 112, high >> 48)
    return 0


def multiply(ctx: int, state: int, queue: int, product: int, rank: int) -> int:
    """The product happens, for the 16 rows of the warp that is number `rank` of its warpgroup. 1 on a fault, else 0."""
    scratch = load64(state + proxy.SCRATCH)
    shape, descriptor = load64(product + SHAPE), load64(product + proxy.DESCRIPTOR_B)
    of_slice = (shape >> SHAPE_SLICE) & 0xF
    fragment = product + FRAGMENT
    if (shape >> SHAPE_SHARED_A) & 1:
        fragment = scratch + SLICE_A
        for register in range(4):
            group, step = 2 * rank + (register & 1), register >> 1
            turned = (shape >> proxy.SHAPE_TURNED_A) & 1
            if load_pieces(ctx, load64(product + proxy.DESCRIPTOR_A), group, step, turned, fragment + ROW * register):
                return 1
    signs = (shape >> SHAPE_SIGNS) & 0xFFFFFFFF
    if signs:
        for place in range(0, 4 * ROW, 4):
            store32(scratch + SLICE_A + place, load32(fragment + place) ^ signs)
        fragment = scratch + SLICE_A
    for register in range(4):
        store64(scratch + SLICE_PLACES + 8 * (4 + register), fragment + ROW * register)
    for step in range(2):
        store64(scratch + SLICE_PLACES + 8 * (8 + step), scratch + SLICE_B + ROW * step)
    for column in range((shape & 0xFF) // of_slice):
        for step in range(2):
            turned = (shape >> proxy.SHAPE_TURNED_B) & 1
            if load_pieces(ctx, descriptor, column, step, turned, scratch + SLICE_B + ROW * step):
                return 1
        for register in range(of_slice):
            ticket = load32(product + ACCUMULATORS + 4 * (of_slice * column + register))
            row = queue + ROWS + ROW * ticket
            source = load32(queue + SOURCES + 4 * ticket)
            if source:
                copy_row(queue + ROWS + ROW * (source - 1), row)
                store32(queue + SOURCES + 4 * ticket, 0)
            store64(scratch + SLICE_PLACES + 8 * register, row)
        call_host(load64(product + FUNCTION), scratch + SLICE_PLACES)
    return 0


# The sanitizer --------------------------------------------------------------------------------------------------------


def visit_operands(ctx: int, product: int, warp: int, over: int) -> None:
    """A warp begins to read its part of a product in shared memory or, where it is `over`, has read it by that time.

    Of B, which all four read, each warp tells of a quarter: two of 8 rows. That is a fourth of the time.
    """
    shape, rank = load64(product + SHAPE), warp & (at.WARPGROUP_WARPS - 1)
    for column in range((shape & 0xFF) // ((shape >> SHAPE_SLICE) & 0xF)):
        for step in range(2):
            turned = (shape >> proxy.SHAPE_TURNED_B) & 1
            start = piece_at(load64(product + proxy.DESCRIPTOR_B), column, step, turned)
            visit_rows(ctx, product, load64(product + proxy.DESCRIPTOR_B), start, warp, over, rank, at.WARPGROUP_WARPS)
    if (shape >> SHAPE_SHARED_A) & 1:
        for register in range(4):
            turned = (shape >> proxy.SHAPE_TURNED_A) & 1
            start = piece_at(load64(product + proxy.DESCRIPTOR_A), 2 * rank + (register & 1), register >> 1, turned)
            visit_rows(ctx, product, load64(product + proxy.DESCRIPTOR_A), start, warp, over, 0, 1)


def visit_rows(
    ctx: int, product: int, descriptor: int, start: int, warp: int, over: int, first: int, apart: int
) -> None:
    """Some of 8 rows of 16 bytes. What is beyond shared memory is a fault when the product happens."""
    state = load64(ctx + SANITIZER)
    issued = load64(product + ISSUED)
    bits = (4 - ((descriptor >> 62) & 3)) & 3
    for row in range(first, 8, apart):
        place = swizzled(start + row * (PIECE << bits), bits)
        if place > load64(ctx + SHARED_SIZE) - PIECE:
            continue
        place = own_place(ctx, place)
        if over:
            settle_operand(state, warp, issued, over, place, PIECE)
        else:
            read_operand(state, warp, load64(product + SITE), issued, place, PIECE)


def watch_registers(ctx: int, warp: int, site: int, places: int, shape: int, marks: int, number: int) -> None:
    """A product takes its registers; of A none may be a sum that is under way."""
    registers = shape & 0xFF
    if not (shape >> SHAPE_SHARED_A) & 1:
        for register in range(registers, registers + 4):
            watch_accumulator(ctx, warp, site, at.FULL_MASK, load32(places + 4 * register), EARLY_ACCUMULATOR)
    use_registers(load64(ctx + SANITIZER), warp_number(ctx), warp, site, marks, places, shape, number + 1)


def watch_accumulator(ctx: int, warp: int, site: int, mask: int, place: int, kind: int) -> int:
    """A register that may be an accumulator is touched, and some lane holds what looks like a ticket. Always 0."""
    index = warp_number(ctx)
    queue = queue_of(load64(ctx + ASYNC_PROXY), index)
    for lane in range(32):
        ticket = ticket_in(load32(warp + place + 4 * lane))
        if (mask >> lane) & 1 and ticket >= 0 and is_under_way(queue, ticket):
            product = product_at(queue, load64(queue + LAST + 8 * ticket) - 1)
            thread = 32 * index + lane
            touched_early(load64(ctx + SANITIZER), kind, thread, site, load64(product + SITE), load64(product + ISSUED))
            return 0
    return 0


def watch_fragment(ctx: int, warp: int, site: int, mask: int, used: int) -> int:
    """A register is written that product number `used`, minus 1, has as A. Always 0."""
    index = warp_number(ctx)
    queue = queue_of(load64(ctx + ASYNC_PROXY), index)
    if mask and used > load64(queue + FIRST):
        product, thread = product_at(queue, used - 1), 32 * index + lowest(mask)
        state = load64(ctx + SANITIZER)
        touched_early(state, EARLY_REGISTER, thread, site, load64(product + SITE), load64(product + ISSUED))
    return 0


# Waiting --------------------------------------------------------------------------------------------------------------


def redeem(state: int, queue: int, warp: int, before: int) -> None:
    """Sums take the places of their tickets, those whose last product was number `before` or later and is over."""
    held = load64(state + proxy.HELD)
    for index in range(load32(held)):
        place = warp + load32(held + 4 + 4 * index)
        for lane in range(32):
            ticket = ticket_in(load32(place + 4 * lane))
            if ticket >= 0 and load64(queue + LAST + 8 * ticket) > before and not is_under_way(queue, ticket):
                store32(place + 4 * lane, load32(queue + ROWS + ROW * ticket + 4 * lane))


def keep_sources(queue: int) -> None:
    """Accumulators that begin with one that is over take its value: its ticket is free."""
    for number in range(load64(queue + FIRST), load64(queue + NEXT)):
        product = product_at(queue, number)
        for register in range(load64(product + SHAPE) & 0xFF):
            ticket = load32(product + ACCUMULATORS + 4 * register)
            source = load32(queue + SOURCES + 4 * ticket)
            if source and not is_under_way(queue, source - 1):
                copy_row(queue + ROWS + ROW * (source - 1), queue + ROWS + ROW * ticket)
                store32(queue + SOURCES + 4 * ticket, 0)


def warpgroup_arrives(ctx: int) -> int:
    """A warp waits for its products; the last of the four lets those happen, for all of them. 1 on a fault, else 0."""
    state = load64(ctx + ASYNC_PROXY)
    first = load64(ctx + WARP_INDEX) & ~(at.WARPGROUP_WARPS - 1)
    width = load64(ctx + WARP_BYTES)
    if first + at.WARPGROUP_WARPS > load64(ctx + WARP_COUNT):
        return 0
    for index in range(first, first + at.WARPGROUP_WARPS):
        if load32(load64(ctx + WARPS) + index * width + at.STATUS) != at.AT_WARPGROUP:
            return 0
    over = tick(load64(ctx + SANITIZER)) if load64(ctx + SANITIZER) else 0
    if load64(ctx + EVENT_CLOCKS):
        meet_in_time(ctx, load64(ctx + WARPS) + first * width)
    for rank in range(at.WARPGROUP_WARPS):
        warp = load64(ctx + WARPS) + (first + rank) * width
        number_of_warp = load64(ctx + FIRST_WARP) + first + rank
        queue = queue_of(state, number_of_warp)
        before = load64(queue + FIRST)
        number = before
        while number < load64(queue + NEXT):
            product = product_at(queue, number)
            if load64(product + GROUP) + load32(warp + at.GROUPS_LEFT) >= load64(queue + COMMITTED):
                break
            if multiply(ctx, state, queue, product, rank):
                store64(ctx + WARP_INDEX, first + rank)
                set_fault(ctx, BAD_DESCRIPTOR, load64(product + SITE), 0, load64(product + proxy.DESCRIPTOR_B), 0)
                return 1
            if over:
                visit_operands(ctx, product, number_of_warp, over)
            number += 1
        store64(queue + FIRST, number)
        keep_sources(queue)
        redeem(state, queue, warp, before)
        store32(warp + at.STATUS, at.READY)
    return 0


def meet_in_time(ctx: int, first: int) -> None:
    """The warps of a warpgroup, whose states begin at `first`, go on at the same time, where events are recorded."""
    latest, width = 0, load64(ctx + WARP_BYTES)
    for warp in range(first, first + at.WARPGROUP_WARPS * width, width):
        latest = max(latest, load64(warp + at.SAVED_STEPS) + load64(warp + at.CLOCK_LEAD))
    for warp in range(first, first + at.WARPGROUP_WARPS * width, width):
        store64(warp + at.CLOCK_LEAD, latest - load64(warp + at.SAVED_STEPS))


def drop_products(ctx: int) -> None:
    """A cluster begins: what the one before it had under way is over."""
    state = load64(ctx + ASYNC_PROXY)
    for warp in range(load64(ctx + CLUSTER_WARPS)):
        queue = queue_of(state, warp)
        store64(queue + FIRST, load64(queue + NEXT))
        store64(queue + COMMITTED, 0)
