"""Tensor memory of Blackwell (PTX ISA 9.7.16.1): its cells, and which of them are not complete.

Each block has 128 lanes x 512 columns of 32 bits, which are NaN until something writes them. A cell is not complete
while an operation in flight writes it (`operations.py`), and from a `tcgen05.st` until the warp's next
`tcgen05.wait::st`; until then, other accesses read NaN.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.raw_memory import fill_ones, load32, load64, store64
from harness.emulator.sanitizer.vector_clock import meet_lanes

COLUMN_BYTES, COLUMNS, GROUPS, UNIT_COLUMNS = (
    tensor.COLUMN_BYTES, tensor.COLUMNS, tensor.GROUPS, tensor.UNIT_COLUMNS,
)  # fmt: skip
PENDING, STORED, LOADED, OWNERS = tensor.PENDING, tensor.STORED, tensor.LOADED, tensor.OWNERS
FORM_PACKED, FORM_REGISTERS = tensor.FORM_PACKED, tensor.FORM_REGISTERS
WHOLE, TWO_HALVES = tensor.WHOLE, tensor.TWO_HALVES
BAD_ADDRESS = at.FAULT["tensor memory address"]
FOREIGN_LANES, OUTSIDE, NOT_ALLOCATED, WRONG_LANE = range(4)
"""Reasons of a bad address."""


def state_of(ctx: int) -> int:
    """Address of the state of tensor memory."""
    return int(load64(load64(ctx + context.ASYNC_PROXY) + proxy.TENSOR_MEMORY))


def memory_of(ctx: int, rank: int) -> int:
    """Address of the tensor memory of a block of the cluster."""
    return int(load64(state_of(ctx) + tensor.MEMORIES) + tensor.BLOCK_BYTES * rank)


def begin_memory(memory: int) -> None:
    """Fill cells with NaN, and forget allocations and accesses."""
    fill_ones(memory + tensor.CELLS, COLUMNS * COLUMN_BYTES)
    for place in range(memory + PENDING, memory + tensor.BLOCK_BYTES, 8):
        store64(place, 0)


def is_allocated(memory: int, column: int, columns: int) -> bool:
    """Whether all of these columns are allocated."""
    if column + columns > COLUMNS:
        return False
    for unit in range(column // UNIT_COLUMNS, (column + columns + UNIT_COLUMNS - 1) // UNIT_COLUMNS):
        if load64(memory + OWNERS + 8 * unit) == 0:
            return False
    return True


def count_tensor(ctx: int, site: int, reads: int, writes: int, operands: int) -> None:
    """Count a request: bytes read from and written to tensor memory, and read from shared memory."""
    entry = load64(ctx + context.SHARED_COUNTERS) + 8 * at.SHARED_COUNTERS_PER_SITE * site
    store64(entry, load64(entry) + 1)
    store64(entry + 8, load64(entry + 8) + reads)
    store64(entry + 16, load64(entry + 16) + writes)
    store64(entry + 24, load64(entry + 24) + operands)


# Accesses that are not complete --------------------------------------------------------------------------------------


def waits_of(ctx: int, number: int) -> int:
    """Address of how often a warp has waited for its loads, followed by the same for its stores."""
    return int(load64(state_of(ctx) + tensor.WAITS) + 16 * number)


def access_word(ctx: int, number: int, site: int, stores: int) -> int:
    """What is recorded of an access of a warp, see `ACCESS_*`."""
    waits = load64(waits_of(ctx, number) + 8 * stores)
    return int(((number + 1) << tensor.ACCESS_WARP) | (site << tensor.ACCESS_SITE) | waits)


def is_incomplete(ctx: int, word: int, stores: int) -> bool:
    """Whether the warp of a recorded access has not waited for it."""
    if word == 0:
        return False
    waits = load64(waits_of(ctx, (word >> tensor.ACCESS_WARP) - 1) + 8 * stores)
    return bool(word & 0xFFFFFFFF == waits)


def is_pending(ctx: int, memory: int, column: int, group: int) -> bool:
    """Whether some operation or store in flight writes cells of a column in a group of lanes."""
    cell = GROUPS * column + group
    if load32(memory + PENDING + 4 * cell):
        return True
    return is_incomplete(ctx, load64(memory + STORED + 8 * cell), 1)


def wait_for_tensor(ctx: int, stores: int) -> int:
    """`tcgen05.wait::ld` and `::st`. Returns 0."""
    place = waits_of(ctx, warp_number(ctx)) + 8 * stores
    store64(place, load64(place) + 1)
    state, index = load64(ctx + context.SANITIZER), load64(ctx + context.WARP_INDEX)
    if state:
        warp = load64(ctx + context.WARPS) + index * load64(ctx + context.WARP_BYTES)
        meet_lanes(state, warp_number(ctx), load32(warp + at.STARTED), load32(warp + at.STARTED))
    return 0


def width_of(form: int) -> int:
    """Number of columns from the first to the last one that an access touches, in one half if there are two."""
    shape, registers = form & 7, (form >> FORM_REGISTERS) & 0xFFF
    width = 2 * registers if shape > WHOLE and shape < TWO_HALVES else registers
    return int(2 * width if (form >> FORM_PACKED) & 1 else width)
