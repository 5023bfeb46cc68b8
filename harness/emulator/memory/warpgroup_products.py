"""Asynchronous products of a warpgroup: wgmma.mma_async (PTX ISA 9.7.15).

D += A B for 64 rows, of which each of the four warps has 16. A product completes as late as possible, at the wait that
covers it, and uses its operands in shared memory as of then. Registers of A are read at issue, since a compiler may
reuse them afterwards.

The register of an accumulator in flight contains a *ticket*: a NaN that encodes the number of the accumulator. A thread
that uses it too early computes with NaN. If a compiler moves it to another register before the wait, which ptxas
undoes, it moves the ticket. The wait writes the sums to all registers that contain their tickets.

The four warps meet at each wait, because a product is one instruction of all four: it completes for none of them before
the others have issued it, and then for all. Columns are processed in slices of 8, which are those of an `mma.m16n8`,
with the same registers and the same arithmetic (`codegen/matrix/dot_product.py`).

Tiles in shared memory consist of 8 rows of 16 bytes, with 8 steps of K of 16 bits each or, if transposed, 8 rows or
columns; a descriptor gives their location, see `piece_at` (PTX ISA 9.7.15.5.1).
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context, sanitizer_layout
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import own_place, warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import call_host, load32, load64, store16, store32, store64
from harness.emulator.memory.bulk_rows import PIECE, swizzled
from harness.emulator.sanitizer.async_proxy import read_operand, settle_operand, touched_early
from harness.emulator.sanitizer.clock_words import lowest, tick
from harness.emulator.sanitizer.product_registers import use_registers

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
SLICE_PLACES = 0
"""In the scratch memory: addresses of D's registers (4), A's (4) and B's (2), as expected by the product's function."""
SLICE_A, SLICE_B = 128, 128 + 4 * ROW


def queue_of(state: int, warp: int) -> int:
    """The queue of products of a warp, by the warp's number."""
    return int(load64(state + proxy.QUEUES) + QUEUE_BYTES * warp)


def product_at(queue: int, number: int) -> int:
    """Address of a product in a queue."""
    return int(queue + PRODUCTS + PRODUCT_BYTES * (number & (PRODUCT_CAPACITY - 1)))


def copy_row(source: int, target: int) -> None:
    """Copy the 32 lanes of a register."""
    for place in range(0, ROW, 8):
        store64(target + place, load64(source + place))


# Tickets --------------------------------------------------------------------------------------------------------------


def ticket_in(word: int) -> int:
    """The ticket in a register's lane; -1 if it contains none."""
    if word & TICKET_MASK != TICKET:
        return -1
    return (((word >> 16) & 0xF) << LOW_BITS) | (word & ((1 << LOW_BITS) - 1))


def is_under_way(queue: int, ticket: int) -> bool:
    """Whether a product in flight adds to the ticket's accumulator."""
    return bool(load64(queue + LAST + 8 * ticket) > load64(queue + FIRST))


def free_ticket(queue: int) -> int:
    """A ticket that is not in flight; -1 if there is none."""
    ticket = load64(queue + CURSOR)
    for _ in range(TICKETS):
        ticket = (ticket + 1) & (TICKETS - 1)
        if not is_under_way(queue, ticket):
            store64(queue + CURSOR, ticket)
            return int(ticket)
    return -1


def accumulator(queue: int, warp: int, place: int, keeps: int) -> int:
    """The ticket for a register of D, initialized with its value or with zeros; -1 if none is free."""
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
    """Queue a product. Returns 1 on a fault, else 0.

    `places` is the address of the locations of D's registers in the warp's state, followed by A's if in registers, 4
    bytes each. `keeps`: whether to add to D. `a` and `b` are descriptors. `marks` is the location of the sanitizer's
    marks, or 0.
    """
    queue = queue_of(load64(ctx + context.ASYNC_PROXY), warp_number(ctx))
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
    if load64(ctx + context.SANITIZER):
        store64(product + ISSUED, tick(load64(ctx + context.SANITIZER)))
        visit_operands(ctx, product, warp_number(ctx), 0)
    return 0


def commit_products(ctx: int) -> int:
    """Commit the warp's products since its last commit as a group. Returns 0."""
    queue = queue_of(load64(ctx + context.ASYNC_PROXY), warp_number(ctx))
    store64(queue + COMMITTED, load64(queue + COMMITTED) + 1)
    return 0


# Operands in shared memory --------------------------------------------------------------------------------------------


def piece_at(descriptor: int, group: int, step: int, turned: int) -> int:
    """Offset, before the swizzle, of the first of 8 pieces of 16 bytes: 8 rows or columns, and half of K."""
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
    """Load 8 rows of 16 bytes to a register's 32 lanes. Returns 1 if they are not in shared memory, else 0."""
    mode = (descriptor >> 62) & 3
    bits = (4 - mode) & 3
    start = piece_at(descriptor, group, step, turned)
    base, limit = load64(ctx + context.SHARED_BASE), load64(ctx + context.SHARED_SIZE) - PIECE
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
    """Compute a product for the 16 rows of the warp with index `rank` in its warpgroup.

    Returns 1 on a fault, else 0.
    """
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
    """Report to the sanitizer that a warp begins to read its part of a product, or has read it by the time `over`.

    All four warps read B; each reports a quarter of it, which takes a fourth of the time.
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
    """Report some of 8 rows of 16 bytes. Rows beyond shared memory become a fault when the product completes."""
    state = load64(ctx + context.SANITIZER)
    issued = load64(product + ISSUED)
    bits = (4 - ((descriptor >> 62) & 3)) & 3
    for row in range(first, 8, apart):
        place = swizzled(start + row * (PIECE << bits), bits)
        if place > load64(ctx + context.SHARED_SIZE) - PIECE:
            continue
        place = own_place(ctx, place)
        if over:
            settle_operand(state, warp, issued, over, place, PIECE)
        else:
            read_operand(state, warp, load64(product + SITE), issued, place, PIECE)


def watch_registers(ctx: int, warp: int, site: int, places: int, shape: int, marks: int, number: int) -> None:
    """Check the registers that a product takes; those of A may not contain sums in flight."""
    registers = shape & 0xFF
    if not (shape >> SHAPE_SHARED_A) & 1:
        for register in range(registers, registers + 4):
            watch_accumulator(ctx, warp, site, at.FULL_MASK, load32(places + 4 * register), EARLY_ACCUMULATOR)
    use_registers(load64(ctx + context.SANITIZER), warp_number(ctx), warp, site, marks, places, shape, number + 1)


def watch_accumulator(ctx: int, warp: int, site: int, mask: int, place: int, kind: int) -> int:
    """Check an access to a register that may be an accumulator, if some lane contains what looks like a ticket.

    Returns 0.
    """
    index = warp_number(ctx)
    queue = queue_of(load64(ctx + context.ASYNC_PROXY), index)
    for lane in range(32):
        ticket = ticket_in(load32(warp + place + 4 * lane))
        if (mask >> lane) & 1 and ticket >= 0 and is_under_way(queue, ticket):
            product = product_at(queue, load64(queue + LAST + 8 * ticket) - 1)
            thread = 32 * index + lane
            touched_early(
                load64(ctx + context.SANITIZER), kind, thread, site, load64(product + SITE), load64(product + ISSUED)
            )
            return 0
    return 0


def watch_fragment(ctx: int, warp: int, site: int, mask: int, used: int) -> int:
    """Check a write to a register that product number `used` - 1 has as A. Returns 0."""
    index = warp_number(ctx)
    queue = queue_of(load64(ctx + context.ASYNC_PROXY), index)
    if mask and used > load64(queue + FIRST):
        product, thread = product_at(queue, used - 1), 32 * index + lowest(mask)
        state = load64(ctx + context.SANITIZER)
        touched_early(state, EARLY_REGISTER, thread, site, load64(product + SITE), load64(product + ISSUED))
    return 0


# Waiting --------------------------------------------------------------------------------------------------------------


def redeem(state: int, queue: int, warp: int, before: int) -> None:
    """Replace tickets by sums, for accumulators whose last product has completed and is number `before` or later."""
    held = load64(state + proxy.HELD)
    for index in range(load32(held)):
        place = warp + load32(held + 4 + 4 * index)
        for lane in range(32):
            ticket = ticket_in(load32(place + 4 * lane))
            if ticket >= 0 and load64(queue + LAST + 8 * ticket) > before and not is_under_way(queue, ticket):
                store32(place + 4 * lane, load32(queue + ROWS + ROW * ticket + 4 * lane))


def keep_sources(queue: int) -> None:
    """Copy the initial values of accumulators that refer to completed ones, whose tickets become free."""
    for number in range(load64(queue + FIRST), load64(queue + NEXT)):
        product = product_at(queue, number)
        for register in range(load64(product + SHAPE) & 0xFF):
            ticket = load32(product + ACCUMULATORS + 4 * register)
            source = load32(queue + SOURCES + 4 * ticket)
            if source and not is_under_way(queue, source - 1):
                copy_row(queue + ROWS + ROW * (source - 1), queue + ROWS + ROW * ticket)
                store32(queue + SOURCES + 4 * ticket, 0)


def warpgroup_arrives(ctx: int) -> int:
    """A warp waits for its products; the last of the four completes them for all. Returns 1 on a fault, else 0."""
    state = load64(ctx + context.ASYNC_PROXY)
    first = load64(ctx + context.WARP_INDEX) & ~(at.WARPGROUP_WARPS - 1)
    width = load64(ctx + context.WARP_BYTES)
    if first + at.WARPGROUP_WARPS > load64(ctx + context.WARP_COUNT):
        return 0
    for index in range(first, first + at.WARPGROUP_WARPS):
        if load32(load64(ctx + context.WARPS) + index * width + at.STATUS) != at.AT_WARPGROUP:
            return 0
    over = tick(load64(ctx + context.SANITIZER)) if load64(ctx + context.SANITIZER) else 0
    if load64(ctx + context.EVENT_CLOCKS):
        meet_in_time(ctx, load64(ctx + context.WARPS) + first * width)
    for rank in range(at.WARPGROUP_WARPS):
        warp = load64(ctx + context.WARPS) + (first + rank) * width
        number_of_warp = load64(ctx + context.FIRST_WARP) + first + rank
        queue = queue_of(state, number_of_warp)
        before = load64(queue + FIRST)
        number = before
        while number < load64(queue + NEXT):
            product = product_at(queue, number)
            if load64(product + GROUP) + load32(warp + at.GROUPS_LEFT) >= load64(queue + COMMITTED):
                break
            if multiply(ctx, state, queue, product, rank):
                store64(ctx + context.WARP_INDEX, first + rank)
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
    """Synchronize the clocks of a warpgroup, whose warp states begin at `first`, if events are recorded."""
    latest, width = 0, load64(ctx + context.WARP_BYTES)
    for warp in range(first, first + at.WARPGROUP_WARPS * width, width):
        latest = max(latest, load64(warp + at.SAVED_STEPS) + load64(warp + at.CLOCK_LEAD))
    for warp in range(first, first + at.WARPGROUP_WARPS * width, width):
        store64(warp + at.CLOCK_LEAD, latest - load64(warp + at.SAVED_STEPS))


def drop_products(ctx: int) -> None:
    """Discard products in flight when a cluster begins."""
    state = load64(ctx + context.ASYNC_PROXY)
    for warp in range(load64(ctx + context.CLUSTER_WARPS)):
        queue = queue_of(state, warp)
        store64(queue + FIRST, load64(queue + NEXT))
        store64(queue + COMMITTED, 0)
