"""Operations of Blackwell's tensor cores in flight: `tcgen05.mma`, `.cp`, `.shift` and `.commit` (PTX ISA 9.7.16).

An operation completes as late as possible: when a warp waits for the phase of the mbarrier at which a commit after it
arrives. It then reads its operands in shared and tensor memory. Until then, loads of the cells that it writes give NaN.
Operations of a thread execute in their order. Those of another thread execute before them if they are copies or shifts,
or write what these read or write; both need a fence of the kernel between them.

A product whose operands in tensor memory were not complete when it was issued, because a store there was not waited
for, or a product in flight writes A, gives NaN.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.cluster_memory import rank_of_place, warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.bulk_copies import checked_place
from harness.emulator.memory.tensor_memory.cells import (
    BAD_ADDRESS,
    NOT_ALLOCATED,
    OUTSIDE,
    WRONG_LANE,
    count_tensor,
    is_allocated,
    is_incomplete,
    memory_of,
    state_of,
)
from harness.emulator.memory.tensor_memory.descriptors import (
    CP_4X256,
    D_COLUMNS,
    LANE_STEP,
    ROW,
    columns_of,
    flaw_of_descriptor,
    flaw_of_product,
    function_of,
    is_scaled,
    lane_groups,
    rows_of,
    rows_to_copy,
    scale_columns,
    shape_of,
)
from harness.emulator.memory.tensor_memory.products import copy_to_tensor, multiply, shift_tensor
from harness.emulator.memory.tensor_memory.scales import scale_address, scale_bytes
from harness.emulator.memory.tensor_memory.watched import watch_completion, watch_issue

KIND, IN_FLIGHT, THREAD, PAIR, RANK, D, A, B = (
    tensor.KIND, tensor.IN_FLIGHT, tensor.THREAD, tensor.PAIR, tensor.RANK, tensor.D, tensor.A, tensor.B,
)  # fmt: skip
HEAD, TAIL, BARRIER, SITE, FORM = tensor.HEAD, tensor.TAIL, tensor.BARRIER, tensor.SITE, tensor.FORM
PRODUCT, COPY, SHIFT, COMMIT = tensor.PRODUCT, tensor.COPY, tensor.SHIFT, tensor.COMMIT
GROUPS = tensor.GROUPS
TOO_MANY, BAD_PRODUCT = at.FAULT["tensor operations in flight"], at.FAULT["instruction descriptor"]
BAD_DESCRIPTOR, NO_PEER = at.FAULT["tensor descriptor"], at.FAULT["no peer block"]
NO_RANK = at.FAULT["cluster rank"]
VALUES_A, VALUES_B, VALUES_I, VALUES_LANES = at.HOSTS, at.DATA, at.DATA + 256, at.DATA_2
"""Where generated code stores each lane's address or descriptor of A, descriptor of B, instruction descriptor, and
rows of lanes that are not written, or addresses of the scales of A and B; the address of D is in ADDRESSES."""
QUARTER = 32
"""Lanes that one warp reaches."""
SHIFTED_BYTES = 31 * 32
"""Bytes that a shift moves in one block."""
WIDTH_A = 8
"""Columns of A in tensor memory: 32 bytes of each row."""


def operation_at(state: int, number: int) -> int:
    """Address of an operation in the ring."""
    place = number & (tensor.CAPACITY - 1)
    return int(load64(state + tensor.OPERATIONS) + tensor.OPERATION_BYTES * place)


def begin_operation(ctx: int, site: int, lane: int, kind: int, pair: int) -> int:
    """A new operation, which is in flight once `queue_operation` is called; 0 on a fault."""
    state = state_of(ctx)
    if load64(state + TAIL) - load64(state + HEAD) >= tensor.CAPACITY:
        set_fault(ctx, TOO_MANY, site, lane, 0, tensor.CAPACITY)
        return 0
    rank = load64(ctx + context.CLUSTER_RANK)
    if pair and rank | 1 >= load64(ctx + context.CLUSTER_SIZE):
        set_fault(ctx, NO_PEER, site, lane, 0, 0)
        return 0
    operation = operation_at(state, load64(state + TAIL))
    for place in range(0, tensor.OPERATION_BYTES, 8):
        store64(operation + place, 0)
    store64(operation + KIND, kind)
    store64(operation + PAIR, pair)
    store64(operation + RANK, rank)
    store64(operation + THREAD, 32 * warp_number(ctx) + lane)
    store64(operation + SITE, site)
    return operation


def queue_operation(ctx: int, operation: int) -> None:
    """Add a described operation to those in flight."""
    state = state_of(ctx)
    if load64(ctx + context.SANITIZER) and load64(operation + KIND) != COMMIT:
        watch_issue(ctx, operation)
    store64(operation + IN_FLIGHT, 1)
    store64(state + TAIL, load64(state + TAIL) + 1)
    mark(ctx, operation, 1)


# Cells of tensor memory that an operation writes ----------------------------------------------------------------------


def first_rank(operation: int) -> int:
    """Rank of the first block whose tensor memory takes part."""
    return int(load64(operation + RANK) & ~1 if load64(operation + PAIR) else load64(operation + RANK))


def last_rank(operation: int) -> int:
    """Rank of the last block whose tensor memory takes part."""
    return int(first_rank(operation) + load64(operation + PAIR))


def written_width(operation: int) -> int:
    """Columns that an operation writes."""
    if load64(operation + KIND) == PRODUCT:
        return int(shape_of(operation, D_COLUMNS))
    if load64(operation + KIND) == COMMIT:
        return 0
    return int(8 if load64(operation + KIND) == SHIFT else load64(operation + B))


def mark(ctx: int, operation: int, amount: int) -> None:
    """Change the number of operations in flight that write the cells of this one."""
    column, groups = load64(operation + D) & 0xFFFF, lane_groups(operation)
    if load64(operation + KIND) != PRODUCT:
        amount <<= tensor.OTHERS
    for rank in range(first_rank(operation), last_rank(operation) + 1):
        memory = memory_of(ctx, rank)
        for cell in range(GROUPS * column, GROUPS * (column + written_width(operation))):
            if (groups >> (cell & (GROUPS - 1))) & 1:
                place = memory + tensor.PENDING + 4 * cell
                store32(place, load32(place) + amount)


def require_cells(ctx: int, operation: int, lane: int, address: int, width: int) -> int:
    """Check that columns are allocated in each block that takes part. Returns 1 on a fault, else 0."""
    column = address & 0xFFFF
    for rank in range(first_rank(operation), last_rank(operation) + 1):
        if not is_allocated(memory_of(ctx, rank), column, width):
            reason = OUTSIDE if column + width > tensor.COLUMNS else NOT_ALLOCATED
            set_fault(ctx, BAD_ADDRESS, load64(operation + SITE), lane, address, reason)
            return 1
    return 0


def is_unready(ctx: int, operation: int, address: int, width: int, reads: int) -> bool:
    """Whether a store to these columns was not waited for; if the operation `reads` them, also a product in flight.

    Copies and shifts are executed before the products that follow them.

    A load that was not waited for is left to the sanitizer: kernels may use its registers instead, and then signal.
    """
    groups = lane_groups(operation)
    for rank in range(first_rank(operation), last_rank(operation) + 1):
        memory = memory_of(ctx, rank)
        for cell in range(GROUPS * (address & 0xFFFF), GROUPS * ((address & 0xFFFF) + width)):
            if not (groups >> (cell & (GROUPS - 1))) & 1:
                continue
            if is_incomplete(ctx, load64(memory + tensor.STORED + 8 * cell), 1):
                return True
            if reads and load32(memory + tensor.PENDING + 4 * cell) & ((1 << tensor.OTHERS) - 1):
                return True
    return False


# Issue ----------------------------------------------------------------------------------------------------------------


def issue_tensor_product(
    ctx: int, warp: int, site: int, mask: int, adds: int, form: int, first: int, second: int, third: int
) -> int:
    """`tcgen05.mma` of each lane in `mask`. Returns 1 on a fault, else 0.

    `adds` is the mask of lanes whose D is added to. For `form` see `FORM_*`. The last arguments are the addresses of
    the functions of its kind.
    """
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        operation = begin_operation(ctx, site, lane, PRODUCT, (form >> tensor.FORM_PAIR) & 1)
        if operation == 0:
            return 1
        d, a = load32(warp + at.ADDRESSES + 4 * lane), load64(warp + VALUES_A + 8 * lane)
        descriptor = load32(warp + VALUES_I + 4 * lane)
        store64(operation + FORM, form)
        store64(operation + D, d)
        store64(operation + A, a)
        store64(operation + B, load64(warp + VALUES_B + 8 * lane))
        store64(operation + tensor.DESCRIPTOR, descriptor)
        store64(operation + tensor.ADDS, (adds >> lane) & 1)
        if (form >> tensor.FORM_DISABLED) & 1:
            for word in range(8 if load64(operation + PAIR) else 4):
                store32(operation + tensor.DISABLED + 4 * word, load32(warp + VALUES_LANES + 128 * word + 4 * lane))
        if is_scaled(operation):
            store64(operation + tensor.SCALES_A, load32(warp + VALUES_LANES + 4 * lane))
            store64(operation + tensor.SCALES_B, load32(warp + VALUES_LANES + 128 + 4 * lane))
        if begin_product(ctx, operation, lane):
            return 1
        store64(operation + tensor.FUNCTION, function_of(operation, first, second, third))
        queue_operation(ctx, operation)
    return 0


def begin_product(ctx: int, operation: int, lane: int) -> int:
    """Check a product. Returns 1 on a fault, else 0."""
    site, d, a = load64(operation + SITE), load64(operation + D), load64(operation + A)
    flaw = flaw_of_product(operation)
    if flaw:
        set_fault(ctx, BAD_PRODUCT, site, lane, load64(operation + tensor.DESCRIPTOR), flaw)
        return 1
    in_tensor = (load64(operation + FORM) >> tensor.FORM_TENSOR_A) & 1
    allowed = d >> tensor.LANE_SHIFT == 0 or (shape_of(operation, LANE_STEP) and d >> tensor.LANE_SHIFT == 16)
    if not allowed or (in_tensor and a >> tensor.LANE_SHIFT != d >> tensor.LANE_SHIFT):
        set_fault(ctx, BAD_ADDRESS, site, lane, a if allowed else d, WRONG_LANE)
        return 1
    for side in range(2):
        if side or not in_tensor:
            found = flaw_of_descriptor(operation, side)
            if found:
                set_fault(ctx, BAD_DESCRIPTOR, site, lane, load64(operation + (B if side else A)), found)
                return 1
    width = shape_of(operation, D_COLUMNS)
    if require_cells(ctx, operation, lane, d, width) or (in_tensor and require_cells(ctx, operation, lane, a, WIDTH_A)):
        return 1
    if is_unready(ctx, operation, d, width, 0) or (in_tensor and is_unready(ctx, operation, a, WIDTH_A, 1)):
        store64(operation + tensor.TAINTED, 1)
    return begin_scales(ctx, operation, lane) if is_scaled(operation) else 0


def begin_scales(ctx: int, operation: int, lane: int) -> int:
    """Check the scales of a product. Returns 1 on a fault, else 0."""
    for side in range(2):
        address, width = scale_address(operation, side), scale_columns(operation, side)
        if address >> tensor.LANE_SHIFT:
            set_fault(ctx, BAD_ADDRESS, load64(operation + SITE), lane, address, WRONG_LANE)
            return 1
        if require_cells(ctx, operation, lane, address, width):
            return 1
        if is_unready(ctx, operation, address, width, 1):
            store64(operation + tensor.TAINTED, 1)
    return 0


def issue_tensor_copy(ctx: int, warp: int, site: int, mask: int, form: int, width: int) -> int:
    """`tcgen05.cp` of each lane in `mask`, of so many columns. Returns 1 on a fault, else 0.

    `form` is the shape, see `copy_to_tensor`; bit 8 is set for two blocks; the bits from 9 on are 6 or 4 if elements of
    so many bits are unpacked, else 0.
    """
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        operation = begin_operation(ctx, site, lane, COPY, (form >> 8) & 1)
        if operation == 0:
            return 1
        d = load32(warp + at.ADDRESSES + 4 * lane)
        store64(operation + FORM, form & 0xFF)
        store64(operation + D, d)
        store64(operation + A, load64(warp + VALUES_A + 8 * lane))
        store64(operation + B, width)
        store64(operation + tensor.DESCRIPTOR, form >> 9)
        flaw = flaw_of_descriptor(operation, 0)
        if flaw:
            set_fault(ctx, BAD_DESCRIPTOR, site, lane, load64(operation + A), flaw)
            return 1
        if d >> tensor.LANE_SHIFT and (form & 0xFF != CP_4X256 or d >> tensor.LANE_SHIFT >= QUARTER):
            set_fault(ctx, BAD_ADDRESS, site, lane, d, WRONG_LANE)
            return 1
        if require_cells(ctx, operation, lane, d, width):
            return 1
        queue_operation(ctx, operation)
    return 0


def issue_tensor_shift(ctx: int, warp: int, site: int, mask: int, pair: int) -> int:
    """`tcgen05.shift` of each lane in `mask`. Returns 1 on a fault, else 0."""
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        operation = begin_operation(ctx, site, lane, SHIFT, pair)
        if operation == 0:
            return 1
        d = load32(warp + at.ADDRESSES + 4 * lane)
        store64(operation + D, d)
        if (d >> tensor.LANE_SHIFT) & 31 or d >> tensor.LANE_SHIFT >= tensor.LANES:
            set_fault(ctx, BAD_ADDRESS, site, lane, d, WRONG_LANE)
            return 1
        if require_cells(ctx, operation, lane, d, 8):
            return 1
        queue_operation(ctx, operation)
    return 0


def issue_tensor_commit(ctx: int, warp: int, site: int, mask: int, pair: int, multicasts: int) -> int:
    """`tcgen05.commit` of each lane in `mask`. Returns 1 on a fault, else 0.

    `multicasts`: whether the lanes' masks of destination blocks are in RECEIVERS.
    """
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        address = load64(warp + at.ADDRESSES + 8 * lane)
        place = checked_place(ctx, site, lane, address, proxy.MBARRIER_BYTES, proxy.MBARRIER_BYTES, 0)
        if place < 0:
            return 1
        offset = place - rank_of_place(ctx, place) * load64(ctx + context.SHARED_PITCH)
        receivers = load32(warp + at.RECEIVERS + 4 * lane) & 0xFFFF if multicasts else 1 << rank_of_place(ctx, place)
        for rank in range(16):
            if not (receivers >> rank) & 1:
                continue
            if rank >= load64(ctx + context.CLUSTER_SIZE):
                set_fault(ctx, NO_RANK, site, lane, rank, 0)
                return 1
            operation = begin_operation(ctx, site, lane, COMMIT, pair)
            if operation == 0:
                return 1
            store64(operation + BARRIER, rank * load64(ctx + context.SHARED_PITCH) + offset)
            queue_operation(ctx, operation)
    return 0


# Completion -----------------------------------------------------------------------------------------------------------


def complete(ctx: int, operation: int) -> int:
    """Execute an operation. Returns 1 on a fault, else 0."""
    kind = load64(operation + KIND)
    failed = 0
    if kind == PRODUCT:
        failed = multiply(ctx, operation)
    elif kind == COPY:
        failed = copy_to_tensor(ctx, operation)
    elif kind == SHIFT:
        shift_tensor(ctx, operation)
    if failed:
        set_fault(ctx, BAD_DESCRIPTOR, load64(operation + SITE), load64(operation + THREAD) & 31, failed, 1)
        return 1
    mark(ctx, operation, -1)
    count_operation(ctx, operation)
    store64(operation + IN_FLIGHT, 0)
    if load64(ctx + context.SANITIZER):
        watch_completion(ctx, operation)
    return 0


def count_operation(ctx: int, operation: int) -> None:
    """Count the bytes of an operation that has completed, in all blocks that take part."""
    site, kind, blocks = load64(operation + SITE), load64(operation + KIND), 1 + load64(operation + PAIR)
    if kind == SHIFT:
        moved = blocks * SHIFTED_BYTES
        count_tensor(ctx, site, moved, moved, 0)
    elif kind == COPY:
        rows, width = rows_to_copy(load64(operation + FORM)), 4 * load64(operation + B)
        lanes = rows if load64(operation + FORM) == CP_4X256 else tensor.LANES
        count_tensor(ctx, site, 0, blocks * lanes * width, blocks * rows * width)
    else:
        d, a = 4 * rows_of(operation) * columns_of(operation), ROW * rows_of(operation)
        in_tensor = (load64(operation + FORM) >> tensor.FORM_TENSOR_A) & 1
        read = d if load64(operation + tensor.ADDS) else 0
        b = ROW * columns_of(operation)
        if is_scaled(operation):
            read += blocks * scale_bytes(operation)
        count_tensor(ctx, site, read + (a if in_tensor else 0), d, b if in_tensor else a + b)


def overlaps(first: int, width: int, second: int, other_width: int) -> bool:
    """Whether two ranges of columns, given by addresses, overlap."""
    first, second = first & 0xFFFF, second & 0xFFFF
    return bool(first < second + other_width and second < first + width)


def is_needed(ctx: int, number: int, last: int, thread: int) -> bool:
    """Whether an operation of another thread is ordered before one of this thread's up to number `last`."""
    state = state_of(ctx)
    earlier = operation_at(state, number)
    for later in range(number + 1, last):
        operation = operation_at(state, later)
        if not load64(operation + IN_FLIGHT) or load64(operation + THREAD) != thread:
            continue
        if load64(operation + KIND) == COMMIT or first_rank(operation) > last_rank(earlier):
            continue
        if last_rank(operation) < first_rank(earlier):
            continue
        if load64(earlier + KIND) != PRODUCT:
            return True
        written, width = load64(earlier + D), written_width(earlier)
        if overlaps(written, width, load64(operation + D), written_width(operation)):
            return True
        in_tensor = load64(operation + KIND) == PRODUCT and (load64(operation + FORM) >> tensor.FORM_TENSOR_A) & 1
        if in_tensor and overlaps(written, width, load64(operation + A), WIDTH_A):
            return True
        if is_scaled(operation):
            for side in range(2):
                if overlaps(written, width, scale_address(operation, side), scale_columns(operation, side)):
                    return True
    return False


def complete_before(ctx: int, last: int) -> int:
    """Execute what the commit with this number covers. Returns 1 on a fault, else 0."""
    state = state_of(ctx)
    commit = operation_at(state, last)
    thread, pair = load64(commit + THREAD), load64(commit + PAIR)
    for number in range(load64(state + HEAD), last):
        operation = operation_at(state, number)
        if not load64(operation + IN_FLIGHT) or load64(operation + KIND) == COMMIT:
            continue
        own = load64(operation + THREAD) == thread and load64(operation + PAIR) == pair
        if (own or is_needed(ctx, number, last, thread)) and complete(ctx, operation):
            return 1
    return 0
