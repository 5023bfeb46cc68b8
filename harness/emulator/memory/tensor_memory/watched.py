"""Reports accesses to tensor memory, and to the shared memory that products and copies read, to the sanitizer."""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.layout import FULL_MASK
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.memory.tensor_memory.cells import is_incomplete, memory_of, state_of, width_of
from harness.emulator.memory.tensor_memory.descriptors import (
    COPY_PIECE,
    D_COLUMNS,
    PIECE,
    ROW,
    ROWS_OF_BLOCK,
    columns_of,
    element_bytes,
    is_scaled,
    is_turned,
    lane_groups,
    rows_to_copy,
    scale_columns,
    shape_of,
    straight_piece,
    turned_piece,
)
from harness.emulator.memory.tensor_memory.narrow_elements import used_bytes
from harness.emulator.memory.tensor_memory.scales import scale_address, scale_groups
from harness.emulator.sanitizer.clock_words import tick
from harness.emulator.sanitizer.tensor_memory import (
    begin_operand,
    check_cell,
    check_written,
    end_operand,
    knows_issue,
    note_cell,
    report_in_flight,
)

LOAD, STORE, ATOMIC = sanitizer.LOAD, sanitizer.STORE, sanitizer.ATOMIC
RAW, WAR, WAW = sanitizer.RAW, sanitizer.WAR, sanitizer.WAW
BLOCK_START = sanitizer.SLOT["BLOCK_START"]
GROUPS = tensor.GROUPS
SHAPE_BITS = 0x3F << 17 | 0x1F << 24
"""The bits of N and M in an instruction descriptor."""
SITE_MASK = (1 << (tensor.ACCESS_WARP - tensor.ACCESS_SITE)) - 1
FORM_HALF, WHOLE, TWO_HALVES = tensor.FORM_HALF, tensor.WHOLE, tensor.TWO_HALVES
WIDTH_A = 8


def check_not_pending(ctx: int, rank: int, cell: int, thread: int, site: int, access: int, accessing: int) -> None:
    """Report that the cell is accessed by something that is not complete.

    `accessing` is the operation that accesses the cell, if it is one that may execute in order with others of its
    thread, and of threads that are ordered before it; otherwise 0.
    """
    state, memory = load64(ctx + context.SANITIZER), memory_of(ctx, rank)
    kind = RAW if access == LOAD else WAW
    if load32(memory + tensor.PENDING + 4 * cell):
        operation = operation_that_writes(ctx, rank, cell)
        other = load64(operation + tensor.THREAD)
        in_order = accessing and are_pipelined(operation, accessing)
        if not in_order or not knows_issue(state, thread, load64(operation + tensor.ISSUED), other):
            report_in_flight(state, kind, rank, cell, thread, site, load64(operation + tensor.SITE), other)
    word = load64(memory + tensor.STORED + 8 * cell)
    if is_incomplete(ctx, word, 1):
        report_access(state, kind, rank, cell, thread, site, word)
    word = load64(memory + tensor.LOADED + 8 * cell)
    if access != LOAD and is_incomplete(ctx, word, 0):
        report_access(state, WAR, rank, cell, thread, site, word)


def are_pipelined(earlier: int, later: int) -> bool:
    """Whether two operations execute in the order of their issue (PTX ISA 9.7.16.6.2), if they share cells."""
    if load64(earlier + tensor.PAIR) != load64(later + tensor.PAIR):
        return False
    if load64(earlier + tensor.KIND) != tensor.PRODUCT or load64(later + tensor.KIND) != tensor.PRODUCT:
        return True
    same_d = load64(earlier + tensor.D) == load64(later + tensor.D)
    return bool(same_d and (load64(earlier + tensor.DESCRIPTOR) ^ load64(later + tensor.DESCRIPTOR)) & SHAPE_BITS == 0)


def report_access(state: int, kind: int, rank: int, cell: int, thread: int, site: int, word: int) -> None:
    """Report a race with a load or store that its warp has not waited for."""
    before, other = (word >> tensor.ACCESS_SITE) & SITE_MASK, 32 * ((word >> tensor.ACCESS_WARP) - 1)
    report_in_flight(state, kind, rank, cell, thread, site, before, other)


def operation_that_writes(ctx: int, rank: int, cell: int) -> int:
    """The last operation in flight that writes a cell."""
    state = state_of(ctx)
    for number in range(load64(state + tensor.TAIL) - 1, load64(state + tensor.HEAD) - 1, -1):
        place = tensor.OPERATION_BYTES * (number & (tensor.CAPACITY - 1))
        operation = load64(state + tensor.OPERATIONS) + place
        if load64(operation + tensor.IN_FLIGHT) and writes_cell(operation, rank, cell):
            return int(operation)
    return 0


def writes_cell(operation: int, rank: int, cell: int) -> bool:
    """Whether an operation writes a cell of a block."""
    kind, pair = load64(operation + tensor.KIND), load64(operation + tensor.PAIR)
    first = load64(operation + tensor.RANK) & ~pair
    if kind == tensor.COMMIT or rank < first or rank > first + pair:
        return False
    width = shape_of(operation, D_COLUMNS) if kind == tensor.PRODUCT else load64(operation + tensor.B)
    column = cell // GROUPS - (load64(operation + tensor.D) & 0xFFFF)
    return bool(column >= 0 and column < width and (lane_groups(operation) >> (cell % GROUPS)) & 1)


def watch_range(
    ctx: int, rank: int, first: int, width: int, groups: int, thread: int, lanes: int, site: int, access: int,
    accessing: int, time: int,
) -> None:  # fmt: skip
    """Check an access to columns, and record it if it has a time."""
    state, table = load64(ctx + context.SANITIZER), load64(state_of(ctx) + tensor.SHADOW)
    for cell in range(GROUPS * first, GROUPS * (first + width)):
        if not (groups >> (cell % GROUPS)) & 1:
            continue
        check_not_pending(ctx, rank, cell, thread, site, access, accessing)
        check_cell(state, table, rank, cell, thread, lanes, site, access)
        if access != STORE and load32(memory_of(ctx, rank) + tensor.PENDING + 4 * cell) == 0:
            check_written(state, table, rank, cell, thread, lanes, site)
        if time:
            note_cell(state, table, rank, cell, thread, lanes, site, access, time)


def watch_tensor_access(ctx: int, site: int, address: int, form: int, stores: int) -> None:
    """A `tcgen05.ld` or `.st` of the current warp, before it is recorded as not complete."""
    rank, thread = load64(ctx + context.CLUSTER_RANK), 32 * warp_number(ctx)
    lane, column, width = address >> tensor.LANE_SHIFT, address & 0xFFFF, width_of(form)
    groups = (3 if form & 7 == WHOLE else 1) << (lane // tensor.GROUP_LANES)
    time, access = tick(load64(ctx + context.SANITIZER)), STORE if stores else LOAD
    watch_range(ctx, rank, column, width, groups, thread, FULL_MASK, site, access, 0, time)
    if form & 7 == TWO_HALVES:
        watch_range(ctx, rank, column + (form >> FORM_HALF), width, groups, thread, FULL_MASK, site, access, 0, time)


def watch_free(ctx: int, site: int, column: int, columns: int) -> None:
    """A deallocation by the current warp, which has to come after all accesses."""
    rank, thread = load64(ctx + context.CLUSTER_RANK), 32 * warp_number(ctx)
    memory, state = memory_of(ctx, rank), load64(ctx + context.SANITIZER)
    table = load64(state_of(ctx) + tensor.SHADOW)
    tick(state)
    for cell in range(GROUPS * column, GROUPS * (column + columns)):
        check_not_pending(ctx, rank, cell, thread, site, STORE, 0)
        check_cell(state, table, rank, cell, thread, FULL_MASK, site, STORE)
        # What is allocated again has no writer.
        note_cell(state, table, rank, cell, thread, FULL_MASK, site, STORE, load64(state + BLOCK_START))
        store64(memory + tensor.STORED + 8 * cell, 0)
        store64(memory + tensor.LOADED + 8 * cell, 0)


# Operations -----------------------------------------------------------------------------------------------------------


def watch_issue(ctx: int, operation: int) -> None:
    """An operation is issued: check its operands."""
    state = load64(ctx + context.SANITIZER)
    store64(operation + tensor.ISSUED, tick(state))
    watch_cells(ctx, operation, 0)
    watch_operands(ctx, operation, 0)


def watch_completion(ctx: int, operation: int) -> None:
    """An operation has completed: record its accesses."""
    time = tick(load64(ctx + context.SANITIZER))
    watch_cells(ctx, operation, time)
    watch_operands(ctx, operation, time)


def watch_cells(ctx: int, operation: int, time: int) -> None:
    """The tensor memory of an operation: check it at issue, or record it at the time when it has completed."""
    kind, pair, form = load64(operation + tensor.KIND), load64(operation + tensor.PAIR), load64(operation + tensor.FORM)
    first, groups = load64(operation + tensor.RANK) & ~pair, lane_groups(operation)
    d = load64(operation + tensor.D) & 0xFFFF
    for rank in range(first, first + pair + 1):
        if kind == tensor.PRODUCT:
            if (form >> tensor.FORM_TENSOR_A) & 1:
                a = load64(operation + tensor.A) & 0xFFFF
                visit_cells(ctx, operation, rank, a, WIDTH_A, groups, LOAD, 1, time)
            if is_scaled(operation):
                visit_scales(ctx, operation, rank, time)
            access = ATOMIC if load64(operation + tensor.ADDS) else STORE
            visit_cells(ctx, operation, rank, d, shape_of(operation, D_COLUMNS), groups, access, 1, time)
        elif kind == tensor.SHIFT:
            visit_cells(ctx, operation, rank, d, 8, groups, ATOMIC, 1, time)
        else:
            visit_cells(ctx, operation, rank, d, load64(operation + tensor.B), groups, STORE, 1, time)


def visit_scales(ctx: int, operation: int, rank: int, time: int) -> None:
    """The scales that a product reads in a block."""
    for side in range(2):
        first = scale_address(operation, side) & 0xFFFF
        for column in range(scale_columns(operation, side)):
            groups = scale_groups(operation, side, column)
            visit_cells(ctx, operation, rank, first + column, 1, groups, LOAD, 1, time)


def visit_cells(
    ctx: int, operation: int, rank: int, first: int, width: int, groups: int, access: int, pipelined: int, time: int
) -> None:
    """Check columns, or record an access to them."""
    thread, site = load64(operation + tensor.THREAD), load64(operation + tensor.SITE)
    if time == 0:
        accessing = operation if pipelined else 0
        watch_range(ctx, rank, first, width, groups, thread, 1 << (thread & 31), site, access, accessing, 0)
        return
    state, table = load64(ctx + context.SANITIZER), load64(state_of(ctx) + tensor.SHADOW)
    for cell in range(GROUPS * first, GROUPS * (first + width)):
        if (groups >> (cell % GROUPS)) & 1:
            note_cell(state, table, rank, cell, thread, 1 << (thread & 31), site, access, time)


def watch_operands(ctx: int, operation: int, time: int) -> None:
    """The shared memory that an operation reads, from its issue to the time when it has completed."""
    kind, pair = load64(operation + tensor.KIND), load64(operation + tensor.PAIR)
    first = load64(operation + tensor.RANK) & ~pair
    for rank in range(first, first + pair + 1):
        if kind == tensor.PRODUCT:
            watch_rows(ctx, operation, rank, tensor.B, columns_of(operation) >> pair, is_turned(operation, 1), 2, time)
            if not (load64(operation + tensor.FORM) >> tensor.FORM_TENSOR_A) & 1:
                rows = shape_of(operation, ROWS_OF_BLOCK)
                watch_rows(ctx, operation, rank, tensor.A, rows, is_turned(operation, 0), 2, time)
        elif kind == tensor.COPY:
            steps = load64(operation + tensor.B) // COPY_PIECE
            watch_rows(ctx, operation, rank, tensor.A, rows_to_copy(load64(operation + tensor.FORM)), 0, steps, time)


def watch_rows(ctx: int, operation: int, rank: int, field: int, count: int, turned: int, steps: int, time: int) -> None:
    """Rows of A or columns of B, as pieces of 16 bytes."""
    descriptor, size = load64(operation + field), element_bytes(operation)
    used = used_bytes(operation, 1 if field == tensor.B else 0)
    if not turned:
        for row in range(count):
            for step in range(steps):
                watch_piece(ctx, operation, rank, straight_piece(descriptor, row, step), used, time)
        return
    together = PIECE // size
    for piece in range((count + together - 1) // together):
        for k in range(ROW // size):
            watch_piece(ctx, operation, rank, turned_piece(descriptor, piece, k), used, time)


def watch_piece(ctx: int, operation: int, rank: int, offset: int, used: int, time: int) -> None:
    """16 bytes of a block's shared memory, of which the first `used` are read.

    What is beyond it becomes a fault when the operation completes.
    """
    if offset > load64(ctx + context.SHARED_SIZE) - PIECE:
        return
    state, place = load64(ctx + context.SANITIZER), rank * load64(ctx + context.SHARED_PITCH) + offset
    thread, issued = load64(operation + tensor.THREAD), load64(operation + tensor.ISSUED)
    if time:
        end_operand(state, thread, issued, time, place, used)
    else:
        begin_operand(state, thread, load64(operation + tensor.SITE), issued, place, used)
