"""Executes operations of Blackwell's tensor cores: products, copies from shared memory, and shifts (PTX ISA 9.7.16).

`descriptors.py` describes shapes and the locations of operands. A in tensor memory is in the lanes of the rows
of D, once for each part of the lanes.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import (
    call_host,
    fill_ones,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from harness.emulator.memory.tensor_memory.descriptors import (
    COPY_PIECE,
    CP_4X256,
    CP_32X128,
    CP_64X128_01_23,
    CP_64X128_02_13,
    D_COLUMNS,
    F16,
    LANE_STEP,
    PARTS,
    PIECE,
    ROW,
    ROWS_OF_BLOCK,
    TF32,
    columns_of,
    element_bytes,
    is_scaled,
    is_turned,
    kind_of,
    lane_groups,
    rows_to_copy,
    shape_of,
    straight_piece,
    turned_piece,
)
from harness.emulator.memory.tensor_memory.narrow_elements import flags_of, padded_bits, sign_bits, unpack_rows
from harness.emulator.memory.tensor_memory.scales import describe_scales, load_scales

COLUMN_BYTES = tensor.COLUMN_BYTES


def gather(ctx: int, rank: int, descriptor: int, count: int, size: int, turned: int, target: int, steps: int) -> int:
    """Copy so many rows of A, or columns of B, of `size` bytes per element, to consecutive rows of 32 bytes.

    `steps` is the number of pieces of 16 bytes of each row. Returns 1 if they are not in shared memory, else 0.
    """
    base = load64(ctx + context.SHARED_ORIGIN) + rank * load64(ctx + context.SHARED_PITCH)
    limit = load64(ctx + context.SHARED_SIZE) - PIECE
    if not turned:
        for row in range(count):
            for step in range(steps):
                place = straight_piece(descriptor, row, step)
                if place > limit:
                    return 1
                store64(target + ROW * row + PIECE * step, load64(base + place))
                store64(target + ROW * row + PIECE * step + 8, load64(base + place + 8))
        return 0
    together = PIECE // size
    for piece in range((count + together - 1) // together):
        for k in range(ROW // size):
            place = turned_piece(descriptor, piece, k)
            if place > limit:
                return 1
            to = target + ROW * together * piece + size * k
            for element in range(min(together, count - together * piece)):
                move_element(to + ROW * element, base + place + size * element, size)
    return 0


def move_element(target: int, source: int, size: int) -> None:
    """Copy an element of 1, 2 or 4 bytes."""
    if size == 2:
        store16(target, load16(source))
    elif size == 4:
        store32(target, load32(source))
    else:
        store8(target, load8(source))


# Products -------------------------------------------------------------------------------------------------------------


def multiply(ctx: int, operation: int) -> int:
    """Execute a product. Returns a descriptor that reaches beyond shared memory, or 0."""
    scratch = load64(load64(load64(ctx + context.ASYNC_PROXY) + proxy.TENSOR_MEMORY) + tensor.SCRATCH)
    pair, size = load64(operation + tensor.PAIR), element_bytes(operation)
    first = load64(operation + tensor.RANK) & ~pair
    columns, b = columns_of(operation), load64(operation + tensor.B)
    if load64(operation + tensor.TAINTED):
        for rank in range(first, first + pair + 1):
            poison_d(ctx, operation, rank)
        return 0
    each = columns >> pair
    for rank in range(first, first + pair + 1):
        target = scratch + tensor.SCRATCH_B + ROW * each * (rank - first)
        if gather(ctx, rank, b, each, size, is_turned(operation, 1), target, 2):
            return b
        if padded_bits(operation, 1):
            unpack_rows(target, each, 2, padded_bits(operation, 1))
    word = load64(operation + tensor.DESCRIPTOR)
    store64(scratch + tensor.KEEPS, load64(operation + tensor.ADDS))
    store64(scratch + tensor.SIGNS, signs_of(operation))
    scale = (load64(operation + tensor.FORM) >> tensor.FORM_SCALE) & 15
    store64(scratch + tensor.SCALE, (127 - scale) << 23)
    store64(scratch + tensor.FLAG_A, flags_of(operation, 0))
    store64(scratch + tensor.FLAG_B, flags_of(operation, 1))
    store64(scratch + tensor.SATURATES, (word >> 3) & 1)
    if is_scaled(operation):
        describe_scales(operation, scratch)
    for rank in range(first, first + pair + 1):
        if multiply_in_block(ctx, operation, rank, rank - first, scratch):
            return load64(operation + tensor.A)
    return 0


def signs_of(operation: int) -> int:
    """Sign bits to flip in each word of A."""
    word, kind = load64(operation + tensor.DESCRIPTOR), kind_of(operation)
    if ((word >> 13) ^ (word >> 14)) & 1 == 0:
        return 0
    return 0x80008000 if kind == F16 else 0x80000000 if kind == TF32 else sign_bits(operation)


def cells_of(ctx: int, rank: int, address: int) -> int:
    """Host address of the cell in lane 0 of an address's column."""
    memories = load64(load64(load64(ctx + context.ASYNC_PROXY) + proxy.TENSOR_MEMORY) + tensor.MEMORIES)
    return int(memories + tensor.BLOCK_BYTES * rank + tensor.CELLS + COLUMN_BYTES * (address & 0xFFFF))


def multiply_in_block(ctx: int, operation: int, rank: int, number: int, scratch: int) -> int:
    """Compute the rows of D in one block, the first or second that takes part. Returns 1 on a fault, else 0."""
    parts, columns = shape_of(operation, PARTS), shape_of(operation, D_COLUMNS)
    words = cells_of(ctx, rank, load64(operation + tensor.A))
    if not (load64(operation + tensor.FORM) >> tensor.FORM_TENSOR_A) & 1:
        if gather_a(ctx, operation, rank, scratch):
            return 1
        words = scratch + tensor.SCRATCH_A
    store64(scratch + tensor.COLUMNS_D, cells_of(ctx, rank, load64(operation + tensor.D)))
    store64(scratch + tensor.WORDS_A, words)
    store64(scratch + tensor.COLUMN_COUNT, columns)
    if is_scaled(operation):
        multiply_scaled(ctx, operation, rank, scratch)
        return 0
    for part in range(parts):
        store64(scratch + tensor.ROWS_B, scratch + tensor.SCRATCH_B + ROW * columns * part)
        for group in range(4):
            mask = lanes_of(operation, group) if group * parts // 4 == part else 0
            store32(scratch + tensor.LANE_MASKS + 4 * group, mask & ~disabled_lanes(operation, number, group))
        call_host(load64(operation + tensor.FUNCTION), scratch)
    return 0


def multiply_scaled(ctx: int, operation: int, rank: int, scratch: int) -> None:
    """Compute D with block scaling in one block: each quarter of the lanes with its own copy of the scales."""
    store64(scratch + tensor.ROWS_B, scratch + tensor.SCRATCH_B)
    for quarter in range(4):
        load_scales(ctx, operation, rank, quarter, scratch)
        for group in range(4):
            store32(scratch + tensor.LANE_MASKS + 4 * group, 0xFFFFFFFF if group == quarter else 0)
        call_host(load64(operation + tensor.FUNCTION), scratch)


def lanes_of(operation: int, group: int) -> int:
    """The lanes of a group of 32 that have rows of D."""
    if shape_of(operation, LANE_STEP):
        return int(0xFFFF << (load64(operation + tensor.D) >> tensor.LANE_SHIFT))
    return 0xFFFFFFFF


def disabled_lanes(operation: int, number: int, group: int) -> int:
    """The lanes of a group of 32 that a product does not write, in the first or second block."""
    return int(load32(operation + tensor.DISABLED + 16 * number + 4 * group))


def lane_of_row(operation: int, row: int) -> int:
    """The first lane with a row of D."""
    if shape_of(operation, LANE_STEP):
        return int(32 * (row >> 4) + (row & 15) + (load64(operation + tensor.D) >> tensor.LANE_SHIFT))
    return row


def gather_a(ctx: int, operation: int, rank: int, scratch: int) -> int:
    """Load the rows of A from shared memory, and distribute them to the lanes. Returns 1 on a fault, else 0."""
    rows, parts = shape_of(operation, ROWS_OF_BLOCK), shape_of(operation, PARTS)
    a, size = load64(operation + tensor.A), element_bytes(operation)
    if gather(ctx, rank, a, rows, size, is_turned(operation, 0), scratch + tensor.SCRATCH_ROWS, 2):
        return 1
    if padded_bits(operation, 0):
        unpack_rows(scratch + tensor.SCRATCH_ROWS, rows, 2, padded_bits(operation, 0))
    for row in range(rows):
        lane, source = lane_of_row(operation, row), scratch + tensor.SCRATCH_ROWS + ROW * row
        for part in range(parts):
            target = scratch + tensor.SCRATCH_A + 4 * (lane + part * (tensor.LANES // parts))
            for word in range(8):
                store32(target + COLUMN_BYTES * word, load32(source + 4 * word))
    return 0


def poison_d(ctx: int, operation: int, rank: int) -> None:
    """Set D to NaN in the lanes that a product writes."""
    first = cells_of(ctx, rank, load64(operation + tensor.D))
    groups = lane_groups(operation)
    for column in range(shape_of(operation, D_COLUMNS)):
        for group in range(tensor.GROUPS):
            if (groups >> group) & 1:
                bytes_of_group = 4 * tensor.GROUP_LANES
                fill_ones(first + COLUMN_BYTES * column + bytes_of_group * group, bytes_of_group)


# Copies and shifts ----------------------------------------------------------------------------------------------------


def is_target(shape: int, row: int, lane: int, first: int) -> bool:
    """Whether a copy to an address in lane `first` writes a row to a lane."""
    warp = lane >> 5
    if shape == CP_4X256:
        return 32 * row + first == lane
    if shape == CP_32X128:
        return row == lane & 31
    if shape == CP_64X128_02_13:
        return row == (lane & 31) + 32 * (warp & 1)
    if shape == CP_64X128_01_23:
        return row == (lane & 31) + 32 * (warp >> 1)
    return row == lane


def copy_to_tensor(ctx: int, operation: int) -> int:
    """Execute a copy. Returns a descriptor that reaches beyond shared memory, or 0."""
    scratch = load64(load64(load64(ctx + context.ASYNC_PROXY) + proxy.TENSOR_MEMORY) + tensor.SCRATCH)
    shape, width = load64(operation + tensor.FORM), load64(operation + tensor.B)
    rows, source = rows_to_copy(shape), scratch + tensor.SCRATCH_ROWS
    pair = load64(operation + tensor.PAIR)
    first = load64(operation + tensor.RANK) & ~pair
    for rank in range(first, first + pair + 1):
        if gather(ctx, rank, load64(operation + tensor.A), rows, 1, 0, source, width // COPY_PIECE):
            return load64(operation + tensor.A)
        if padded_bits(operation, 0):
            unpack_rows(source, rows, width // COPY_PIECE, padded_bits(operation, 0))
        cells = cells_of(ctx, rank, load64(operation + tensor.D))
        for lane in range(tensor.LANES):
            for row in range(rows):
                if is_target(shape, row, lane, load64(operation + tensor.D) >> tensor.LANE_SHIFT):
                    for word in range(width):
                        store32(cells + COLUMN_BYTES * word + 4 * lane, load32(source + ROW * row + 4 * word))
    return 0


def shift_tensor(ctx: int, operation: int) -> None:
    """Execute a shift: each of 31 lanes moves to the next one, in 8 columns; the first lane stays."""
    pair, lane = load64(operation + tensor.PAIR), load64(operation + tensor.D) >> tensor.LANE_SHIFT
    first = load64(operation + tensor.RANK) & ~pair
    for rank in range(first, first + pair + 1):
        cells = cells_of(ctx, rank, load64(operation + tensor.D)) + 4 * lane
        for column in range(8):
            for row in range(31, 0, -1):
                place = cells + COLUMN_BYTES * column + 4 * row
                store32(place, load32(place - 4))
