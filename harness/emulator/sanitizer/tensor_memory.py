"""Tracks tensor memory for the sanitizer: who wrote and read which cells, and what products read in shared memory.

A cell stands for 16 lanes of a column. `memory/tensor_memory/cells.py` and `operations.py` know what is in flight;
here are the accesses that are complete, which later ones have to know. A product has read its operands, and written D,
when it completes; the arrival of its commit releases it to waiting threads.

`tcgen05.fence` is not required: `mbarrier` operations, barriers and `tcgen05.wait` order accesses without it here.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.raw_memory import load64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer import vector_clock as clocks
from harness.emulator.sanitizer.async_proxy import read_until_landed, shared_cell
from harness.emulator.sanitizer.copies_in_flight import settle_entry
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.shadow_cell import check, info_word, note_reader
from harness.emulator.sanitizer.watch import nobody_wrote, note_writer

WARPS, FLOOR, BLOCK_START, TIME = (at.SLOT[name] for name in ("WARPS", "FLOOR", "BLOCK_START", "TIME"))
SHARED_SHIFT = at.SLOT["SHARED_SHIFT"]
RAW, WAR, WAW, PENDING = at.RAW, at.WAR, at.WAW, at.PENDING
READERS, ENTRY_BYTES = at.READERS, at.ENTRY_BYTES
CELL_BYTES = 4


def cell_address(rank: int, cell: int) -> int:
    """The address for findings of a cell's first lane."""
    column, group = cell // tensor.GROUPS, cell % tensor.GROUPS
    lane = tensor.GROUP_LANES * group
    return int((machine.TENSOR_WINDOW << machine.WINDOW_BITS) | (rank << 32) | (lane << tensor.LANE_SHIFT) | column)


def shadow_of(state: int, table: int, rank: int, cell: int) -> int:
    """Address of the shadow of a cell of a block."""
    width = READERS + ENTRY_BYTES * load64(state + WARPS)
    return int(table + width * (rank * tensor.COLUMNS * tensor.GROUPS + cell))


def check_entry(state: int, kind: int, thread: int, lanes: int, site: int, address: int, entry: int) -> None:
    """Report a race with an earlier access of this cluster."""
    if load64(entry) > load64(state + FLOOR):
        check(state, kind, thread >> 5, lanes, site, 0, address, CELL_BYTES, entry)


def check_cell(state: int, table: int, rank: int, cell: int, thread: int, lanes: int, site: int, access: int) -> None:
    """Check an access of these lanes to a cell: `LOAD`, `STORE`, or `ATOMIC` for one that does both."""
    entry, address = shadow_of(state, table, rank, cell), cell_address(rank, cell)
    check_entry(state, RAW if access == at.LOAD else WAW, thread, lanes, site, address, entry)
    if access != at.LOAD:
        for warp in range(load64(state + WARPS)):
            check_entry(state, WAR, thread, lanes, site, address, entry + READERS + ENTRY_BYTES * warp)


def check_written(state: int, table: int, rank: int, cell: int, thread: int, lanes: int, site: int) -> None:
    """Report a read of a cell that nothing has written."""
    if load64(shadow_of(state, table, rank, cell)) <= load64(state + BLOCK_START):
        nobody_wrote(state, site, thread >> 5, lanes, cell_address(rank, cell), CELL_BYTES)


def note_cell(
    state: int, table: int, rank: int, cell: int, thread: int, lanes: int, site: int, access: int, time: int
) -> None:
    """Record a completed access to a cell."""
    entry, warp = shadow_of(state, table, rank, cell), thread >> 5
    if access == at.LOAD:
        note_reader(state, entry + READERS + ENTRY_BYTES * warp, warp, lanes, site, 0, time)
    else:
        note_writer(entry, warp, thread & 31, site, 0, time)


def report_in_flight(
    state: int, kind: int, rank: int, cell: int, thread: int, site: int, before: int, other: int
) -> None:
    """Report a race with an access of thread `other` at `before` that is still in flight."""
    address = cell_address(rank, cell)
    report(state, kind, site, thread, address, CELL_BYTES, before, PENDING + load64(state + TIME), other)


def knows_issue(state: int, thread: int, when: int, other: int) -> bool:
    """Whether a thread knows what another did up to some time."""
    info = info_word(1 << (other & 31), 0, 0, other >> 5)
    return bool(thread == other or clocks.unordered(state, thread >> 5, 1 << (thread & 31), when, info) < 0)


def allocate_for(state: int, warp: int, site: int, offset: int) -> None:
    """`tcgen05.alloc` stores an address at an offset of shared memory."""
    time, shift = clock_words.tick(state), load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, ((offset + CELL_BYTES - 1) >> shift) + 1):
        note_writer(shared_cell(state, index), warp, 0, site, 0, time)


def whole_granules(state: int, size: int) -> int:
    """Bytes of the granules that contain so many bytes from the begin of one on."""
    shift = load64(state + SHARED_SHIFT)
    return int((size + (1 << shift) - 1) >> shift << shift)


def begin_operand(state: int, thread: int, site: int, issued: int, offset: int, size: int) -> None:
    """A product or copy of a thread reads up to 16 bytes of shared memory until it completes."""
    size = whole_granules(state, size)
    read_until_landed(state, thread >> 5, thread & 31, site, issued, offset, size)


def end_operand(state: int, thread: int, issued: int, time: int, offset: int, size: int) -> None:
    """It has read them."""
    shift = load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + whole_granules(state, size)) >> shift):
        settle_entry(shared_cell(state, index) + READERS + ENTRY_BYTES * (thread >> 5), PENDING + issued, time)


def release_commit(state: int, thread: int, offset: int) -> None:
    """The arrival of a thread's commit at an mbarrier releases the operations before it, and what the thread knows."""
    clock_words.tick(state)
    clock = clocks.shared_clock(state, load64(state + clocks.PHASE_SYNC), offset >> load64(state + SHARED_SHIFT))
    clocks.release(state, thread >> 5, thread & 31, clock)
