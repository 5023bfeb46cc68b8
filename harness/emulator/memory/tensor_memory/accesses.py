"""Loads and stores of tensor memory: `tcgen05.ld` and `tcgen05.st` (PTX ISA 9.7.16.8).

Both are asynchronous. A load gives the registers their values at once, since the PTX ISA respects dependences through
registers; but what it reads may not be written before the warp's next `tcgen05.wait::ld`.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store32, store64
from harness.emulator.memory.tensor_memory.cells import (
    BAD_ADDRESS,
    COLUMN_BYTES,
    COLUMNS,
    FOREIGN_LANES,
    GROUPS,
    LOADED,
    NOT_ALLOCATED,
    OUTSIDE,
    STORED,
    access_word,
    count_tensor,
    is_allocated,
    is_pending,
    memory_of,
    width_of,
)
from harness.emulator.memory.tensor_memory.watched import watch_tensor_access

FORM_PACKED, FORM_REGISTERS, FORM_HALF = tensor.FORM_PACKED, tensor.FORM_REGISTERS, tensor.FORM_HALF
WHOLE, OF_64, OF_128, TWO_HALVES = tensor.WHOLE, tensor.OF_64, tensor.OF_128, tensor.TWO_HALVES
POISON = 0xFFFFFFFF
ROW_BYTES = 128
"""Bytes of a register's 32 lanes."""


def lane_of(shape: int, register: int, thread: int) -> int:
    """The lane, among those of the access, of a thread's register."""
    if shape == WHOLE:
        return thread
    if shape == TWO_HALVES:
        return thread & 15
    if shape == OF_64:
        return (thread >> 2) + 8 * (thread & 1)
    if shape == OF_128:
        return (thread >> 2) + 8 * (register & 1)
    return (thread >> 2) + 8 * ((register >> 1) & 1)


def column_of(shape: int, register: int, thread: int) -> int:
    """The column, among those of the access, of a thread's register, counted in registers."""
    if shape == WHOLE:
        return register
    if shape == TWO_HALVES:
        return register
    if shape == OF_64:
        return 2 * register + ((thread >> 1) & 1)
    if shape == OF_128:
        return 4 * (register >> 1) + (thread & 3)
    return 8 * (register >> 2) + 2 * (thread & 3) + (register & 1)


def begin_access(ctx: int, site: int, address: int, form: int, stores: int) -> int:
    """Check an access. Returns 1 on a fault, else 0."""
    shape, lane, column = form & 7, address >> tensor.LANE_SHIFT, address & 0xFFFF
    own = 32 * (load64(ctx + context.WARP_INDEX) & 3)
    if lane != own and (shape == WHOLE or lane != own + 16):
        set_fault(ctx, BAD_ADDRESS, site, 0, address, FOREIGN_LANES)
        return 1
    memory, width = memory_of(ctx, load64(ctx + context.CLUSTER_RANK)), width_of(form)
    if not is_allocated(memory, column, width):
        set_fault(ctx, BAD_ADDRESS, site, 0, address, OUTSIDE if column + width > COLUMNS else NOT_ALLOCATED)
        return 1
    if shape == TWO_HALVES:
        second = column + (form >> FORM_HALF)
        if not is_allocated(memory, second, width):
            set_fault(ctx, BAD_ADDRESS, site, 0, address, OUTSIDE if second + width > COLUMNS else NOT_ALLOCATED)
            return 1
    if load64(ctx + context.SANITIZER):
        watch_tensor_access(ctx, site, address, form, stores)
    return 0


def some_are_pending(ctx: int, memory: int, first: int, width: int, lane: int, lanes: int) -> bool:
    """Whether some cell of a range is written by an operation or store in flight."""
    for column in range(first, first + width):
        for group in range(lane // tensor.GROUP_LANES, (lane + lanes) // tensor.GROUP_LANES):
            if is_pending(ctx, memory, column, group):
                return True
    return False


def note_access(ctx: int, memory: int, table: int, word: int, first: int, width: int, lane: int, lanes: int) -> None:
    """Record an access to a range of cells in a table."""
    for column in range(first, first + width):
        for group in range(lane // tensor.GROUP_LANES, (lane + lanes) // tensor.GROUP_LANES):
            store64(memory + table + 8 * (GROUPS * column + group), word)


def note_whole(ctx: int, memory: int, site: int, address: int, form: int, stores: int) -> None:
    """Record an access to all cells that it touches."""
    word = access_word(ctx, warp_number(ctx), site, stores)
    table = STORED if stores else LOADED
    lane, column = address >> tensor.LANE_SHIFT, address & 0xFFFF
    lanes = 32 if form & 7 == WHOLE else 16
    note_access(ctx, memory, table, word, column, width_of(form), lane, lanes)
    if form & 7 == TWO_HALVES:
        note_access(ctx, memory, table, word, column + (form >> FORM_HALF), width_of(form), lane, lanes)


def cell_of(address: int, form: int, register: int, thread: int) -> int:
    """Offset in a block's tensor memory of the first cell of a thread's register."""
    shape = form & 7
    column = column_of(shape, register, thread)
    if (form >> FORM_PACKED) & 1:
        column *= 2
    if shape == TWO_HALVES and thread >= 16:
        column += form >> FORM_HALF
    lane = (address >> tensor.LANE_SHIFT) + lane_of(shape, register, thread)
    return int(COLUMN_BYTES * ((address & 0xFFFF) + column) + 4 * lane)


def value_at(ctx: int, memory: int, cell: int) -> int:
    """The value of a cell; NaN if something in flight writes it."""
    column, lane = cell // COLUMN_BYTES, cell % COLUMN_BYTES // 4
    if is_pending(ctx, memory, column, lane // tensor.GROUP_LANES):
        return POISON
    return load32(memory + tensor.CELLS + cell)


def load_tensor(ctx: int, warp: int, site: int, address: int, form: int, places: int) -> int:
    """`tcgen05.ld`. Returns 1 on a fault, else 0.

    `places` is the address of the locations of the registers in the warp's state, 4 bytes each.
    """
    if begin_access(ctx, site, address, form, 0):
        return 1
    memory, registers = memory_of(ctx, load64(ctx + context.CLUSTER_RANK)), (form >> FORM_REGISTERS) & 0xFFF
    lane, column, packed = address >> tensor.LANE_SHIFT, address & 0xFFFF, (form >> FORM_PACKED) & 1
    whole = form & 7 == WHOLE and packed == 0
    if whole and not some_are_pending(ctx, memory, column, registers, lane, 32):
        for register in range(registers):
            source = memory + tensor.CELLS + COLUMN_BYTES * (column + register) + 4 * lane
            target = warp + load32(places + 4 * register)
            for place in range(0, 128, 8):
                store64(target + place, load64(source + place))
    else:
        for register in range(registers):
            target = warp + load32(places + 4 * register)
            for thread in range(32):
                cell = cell_of(address, form, register, thread)
                value = value_at(ctx, memory, cell)
                if packed:
                    value = (value & 0xFFFF) | ((value_at(ctx, memory, cell + COLUMN_BYTES) & 0xFFFF) << 16)
                store32(target + 4 * thread, value)
    note_whole(ctx, memory, site, address, form, 0)
    count_tensor(ctx, site, ROW_BYTES * registers, 0, 0)
    return 0


def store_tensor(ctx: int, warp: int, site: int, address: int, form: int, places: int) -> int:
    """`tcgen05.st`. Returns 1 on a fault, else 0. `places` as for `load_tensor`."""
    if begin_access(ctx, site, address, form, 1):
        return 1
    memory, registers = memory_of(ctx, load64(ctx + context.CLUSTER_RANK)), (form >> FORM_REGISTERS) & 0xFFF
    lane, column, packed = address >> tensor.LANE_SHIFT, address & 0xFFFF, (form >> FORM_PACKED) & 1
    for register in range(registers):
        source = warp + load32(places + 4 * register)
        if form & 7 == WHOLE and packed == 0:
            target = memory + tensor.CELLS + COLUMN_BYTES * (column + register) + 4 * lane
            for place in range(0, 128, 8):
                store64(target + place, load64(source + place))
        else:
            for thread in range(32):
                cell = memory + tensor.CELLS + cell_of(address, form, register, thread)
                value = load32(source + 4 * thread)
                store32(cell, value & 0xFFFF if packed else value)
                if packed:
                    store32(cell + COLUMN_BYTES, (value >> 16) & 0xFFFF)
    note_whole(ctx, memory, site, address, form, 1)
    count_tensor(ctx, site, 0, ROW_BYTES * registers, 0)
    return 0
