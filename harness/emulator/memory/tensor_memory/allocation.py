"""Allocation of tensor memory (PTX ISA 9.7.16.7), in units of 32 columns of all lanes.

A warp that allocates returns to the scheduler and continues when its columns are free, and for `.cta_group::2`, when a
warp of the peer block allocates, too.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import fill_ones, load32, load64, store32, store64
from harness.emulator.memory.bulk_copies import checked_place
from harness.emulator.memory.tensor_memory.cells import COLUMN_BYTES, COLUMNS, GROUPS, UNIT_COLUMNS, memory_of
from harness.emulator.memory.tensor_memory.watched import operation_that_writes, watch_free
from harness.emulator.sanitizer.tensor_memory import allocate_for

OWNERS, SIZES, SITES = tensor.OWNERS, tensor.SIZES, tensor.SITES
BAD_ALLOCATION = at.FAULT["tensor memory allocation"]
NOT_A_SIZE, NO_PERMIT, NOT_ALLOCATED_HERE, NEVER_FREED, IN_FLIGHT = range(5)
"""Reasons of a bad allocation."""
PAIR = 1 << 16
"""Flag of a request for two blocks, beside its number of columns."""
REQUEST_PLACE = at.DATA
"""Where a warp that waits for tensor memory keeps the place that its address is written to."""


def begin_allocation(ctx: int, warp: int, site: int, columns: int, pair: int) -> int:
    """`tcgen05.alloc`: describe the request of a warp, which waits for `grant`. Returns 1 on a fault, else 0."""
    relinquished = load64(memory_of(ctx, load64(ctx + context.CLUSTER_RANK)) + tensor.RELINQUISHED)
    if relinquished:
        set_fault(ctx, BAD_ALLOCATION, site, 0, relinquished - 1, NO_PERMIT)
        return 1
    if not is_size(columns):
        set_fault(ctx, BAD_ALLOCATION, site, 0, columns, NOT_A_SIZE)
        return 1
    place = checked_place(ctx, site, 0, load64(warp + at.ADDRESSES), 4, 4, 1)
    if place < 0:
        return 1
    store64(warp + REQUEST_PLACE, place)
    store32(warp + at.GROUPS_LEFT, columns | (PAIR if pair else 0))
    store32(warp + at.BARRIER_SITE, site)
    return 0


def is_size(columns: int) -> bool:
    """Whether so many columns may be allocated."""
    return bool(columns >= UNIT_COLUMNS and columns <= COLUMNS and columns & (columns - 1) == 0)


def free_units(memory: int, units: int) -> int:
    """The first of so many consecutive free units; -1 if there are none."""
    run = 0
    for unit in range(tensor.UNITS):
        run = run + 1 if load64(memory + OWNERS + 8 * unit) == 0 else 0
        if run == units:
            return unit + 1 - units
    return -1


def units_free_at(memory: int, first: int, units: int) -> bool:
    """Whether these units are free."""
    taken = 0
    for unit in range(first, first + units):
        taken |= load64(memory + OWNERS + 8 * unit)
    return taken == 0


def grant(ctx: int, rank: int, warp: int, first: int) -> None:
    """Give a waiting warp of a block its columns from this unit on, and let it continue."""
    memory, columns = memory_of(ctx, rank), load32(warp + at.GROUPS_LEFT) & (PAIR - 1)
    for unit in range(first, first + columns // UNIT_COLUMNS):
        store64(memory + OWNERS + 8 * unit, 1 + first)
    store64(memory + SIZES + 8 * first, columns)
    store64(memory + SITES + 8 * first, load32(warp + at.BARRIER_SITE))
    store32(load64(ctx + context.SHARED_ORIGIN) + load64(warp + REQUEST_PLACE), first * UNIT_COLUMNS)
    store32(warp + at.STATUS, at.READY)
    if load64(ctx + context.SANITIZER):
        number = (warp - load64(ctx + context.WARPS_ORIGIN)) // load64(ctx + context.WARP_BYTES)
        site, place = load32(warp + at.BARRIER_SITE), load64(warp + REQUEST_PLACE)
        allocate_for(load64(ctx + context.SANITIZER), number, site, place)
    store64(ctx + context.CHANGES, load64(ctx + context.CHANGES) + 1)


def waiting_warp(ctx: int, rank: int, request: int) -> int:
    """The state of a warp of a block that waits with this request; 0 if there is none."""
    for index in range(load64(ctx + context.WARP_COUNT)):
        number = rank * load64(ctx + context.WARP_PITCH) + index
        warp = load64(ctx + context.WARPS_ORIGIN) + number * load64(ctx + context.WARP_BYTES)
        if load32(warp + at.STATUS) == at.AT_WARPGROUP and load32(warp + at.GROUPS_LEFT) == request:
            return int(warp)
    return 0


def tensor_warp_waits(ctx: int) -> int:
    """Give warps that wait for tensor memory what is free, after a request or a deallocation. Returns 0."""
    for rank in range(load64(ctx + context.CLUSTER_SIZE)):
        for index in range(load64(ctx + context.WARP_COUNT)):
            number = rank * load64(ctx + context.WARP_PITCH) + index
            warp = load64(ctx + context.WARPS_ORIGIN) + number * load64(ctx + context.WARP_BYTES)
            if load32(warp + at.STATUS) == at.AT_WARPGROUP:
                try_grant(ctx, rank, warp)
    return 0


def try_grant(ctx: int, rank: int, warp: int) -> None:
    """Let a warp that waits continue if its columns are free, together with one of the peer block if it is a pair."""
    request = load32(warp + at.GROUPS_LEFT)
    units = (request & (PAIR - 1)) // UNIT_COLUMNS
    first = free_units(memory_of(ctx, rank), units)
    if first < 0:
        return
    if request & PAIR:
        peer = rank ^ 1
        if peer >= load64(ctx + context.CLUSTER_SIZE):
            return
        other = waiting_warp(ctx, peer, request)
        while other and first + units <= tensor.UNITS:
            mine = units_free_at(memory_of(ctx, rank), first, units)
            if mine and units_free_at(memory_of(ctx, peer), first, units):
                grant(ctx, rank, warp, first)
                grant(ctx, peer, other, first)
                return
            first += 1
        return
    grant(ctx, rank, warp, first)


def writer_in_flight(ctx: int, column: int, columns: int) -> int:
    """The instruction of an operation in flight that writes some of the current block's columns; -1 without one."""
    rank = load64(ctx + context.CLUSTER_RANK)
    memory = memory_of(ctx, rank)
    for cell in range(GROUPS * column, GROUPS * (column + columns)):
        if load32(memory + tensor.PENDING + 4 * cell):
            return int(load64(operation_that_writes(ctx, rank, cell) + tensor.SITE))
    return -1


def free_tensor(ctx: int, site: int, address: int, columns: int) -> int:
    """`tcgen05.dealloc`. Returns 1 on a fault, else 0."""
    memory = memory_of(ctx, load64(ctx + context.CLUSTER_RANK))
    first = address // UNIT_COLUMNS
    known = address < COLUMNS and address % UNIT_COLUMNS == 0 and columns > 0
    if not known or load64(memory + SIZES + 8 * (first & (tensor.UNITS - 1))) != columns:
        set_fault(ctx, BAD_ALLOCATION, site, 0, (columns << 32) | address, NOT_ALLOCATED_HERE)
        return 1
    writer = writer_in_flight(ctx, address, columns)
    if writer >= 0:
        set_fault(ctx, BAD_ALLOCATION, site, 0, writer, IN_FLIGHT)
        return 1
    if load64(ctx + context.SANITIZER):
        watch_free(ctx, site, address, columns)
    store64(memory + SIZES + 8 * first, 0)
    for unit in range(first, first + columns // UNIT_COLUMNS):
        store64(memory + OWNERS + 8 * unit, 0)
    fill_ones(memory + tensor.CELLS + COLUMN_BYTES * address, COLUMN_BYTES * columns)
    tensor_warp_waits(ctx)
    return 0


def relinquish_tensor(ctx: int, site: int) -> int:
    """`tcgen05.relinquish_alloc_permit`. Returns 0."""
    store64(memory_of(ctx, load64(ctx + context.CLUSTER_RANK)) + tensor.RELINQUISHED, 1 + site)
    return 0


def require_freed(ctx: int) -> None:
    """Fault if the current block, which has ended, has not freed its tensor memory."""
    memory = memory_of(ctx, load64(ctx + context.CLUSTER_RANK))
    for unit in range(tensor.UNITS):
        columns = load64(memory + SIZES + 8 * unit)
        if columns and load64(ctx + context.FAULT_KIND) == 0:
            set_fault(ctx, BAD_ALLOCATION, load64(memory + SITES + 8 * unit), 0, columns, NEVER_FREED)
