"""Tracks asynchronous copies, which are accesses with the time `PENDING` until the wait that covers them.

A copy writes its destination and reads its source at some time between its issue and its wait. Accesses before the
issue are ordered as with any access of the issuing thread. Accesses after it find the time `PENDING` in the cells,
which no thread knows, not even the issuing one: every access to the destination and every write to the source is a
race. The wait stores its own time: from then on the copy is an access of the issuing thread, which others know after a
barrier that follows the wait. Two copies in flight to the same place race, regardless of their data (PTX ISA
9.7.9.25.3.2).
"""

from __future__ import annotations

from harness.emulator.abi import copy_layout
from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.cluster_memory import warp_number
from harness.emulator.abi.context import SANITIZER
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.sanitizer.block_lifetime import note_remote
from harness.emulator.sanitizer.clock_words import tick
from harness.emulator.sanitizer.shadow_cell import check, global_reader, info_word, note_reader
from harness.emulator.sanitizer.watch import check_read, nobody_wrote, unwritten_bytes

FLOOR, WARPS, SHARED_CELLS, SHARED_SHIFT, GLOBAL_SHIFT, BUFFERS, VARIABLES = (
    at.SLOT[name] for name in ("FLOOR", "WARPS", "SHARED_CELLS", "SHARED_SHIFT", "GLOBAL_SHIFT", "BUFFERS", "VARIABLES")
)
PENDING, PROXY_BIT, WAW, WAR, GPU_SCOPE = at.PENDING, at.PROXY_BIT, at.WAW, at.WAR, at.GPU_SCOPE
READERS, STRONG_WRITER = at.READERS, at.STRONG_WRITER
ENTRY_BYTES, GLOBAL_CELL_BYTES, GLOBAL_READERS = at.ENTRY_BYTES, at.GLOBAL_CELL_BYTES, at.GLOBAL_READERS
ADDRESSES = machine.ADDRESSES
WINDOW_BITS, BUFFER_START = machine.WINDOW_BITS, machine.BUFFER_START
FIRST_VARIABLE_WINDOW, FIRST_BUFFER_WINDOW = machine.FIRST_VARIABLE_WINDOW, machine.FIRST_BUFFER_WINDOW
IN_FLIGHT, SIZE, ISSUED = copy_layout.IN_FLIGHT, copy_layout.SIZE, copy_layout.ISSUED
DESTINATION, SOURCE_BYTES, SOURCE_CELL = copy_layout.DESTINATION, copy_layout.SOURCE_BYTES, copy_layout.SOURCE_CELL


def overwrite_shared(
    state: int, warp: int, lane: int, site: int, time: int, offset: int, size: int, combines: int
) -> None:
    """`lane` issues a copy to these bytes, to which earlier accesses have to be ordered before.

    A copy that `combines` with the old value is an atomic, which does not race with other atomics.
    """
    note_remote(state, warp, lane, site, offset, size)
    shift, warps, floor = load64(state + SHARED_SHIFT), load64(state + WARPS), load64(state + FLOOR)
    width = READERS + ENTRY_BYTES * warps
    address = machine.SHARED_ADDRESS + offset
    strength = GPU_SCOPE if combines else 0
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = load64(state + SHARED_CELLS) + width * index
        for writer in range(cell, cell + 2 * STRONG_WRITER, STRONG_WRITER):
            if load64(writer) > floor:
                check(state, WAW, warp, 1 << lane, site, strength, address, size, writer)
        for other in range(warps):
            entry = cell + READERS + ENTRY_BYTES * other
            if load64(entry) > floor:
                check(state, WAR, warp, 1 << lane, site, strength, address, size, entry)
        entry = cell + STRONG_WRITER if combines else cell
        store64(entry, PENDING + time)
        store64(entry + 8, info_word(1 << lane, site, strength, warp) | PROXY_BIT)


def read_source(state: int, warp: int, lane: int, site: int, time: int, address: int, size: int) -> int:
    """`lane` issues a copy from these bytes, which have to be written. Returns their first cell; 0 if there is none."""
    window = address >> WINDOW_BITS
    if window < FIRST_VARIABLE_WINDOW:
        return 0
    offset = (address & machine.OFFSET_MASK) - BUFFER_START
    table = load64(state + VARIABLES) + 16 * (window - FIRST_VARIABLE_WINDOW)
    if window >= FIRST_BUFFER_WINDOW:
        table = load64(state + BUFFERS) + 16 * (window - FIRST_BUFFER_WINDOW)
    written = load64(table + 8)
    if written and unwritten_bytes(written + offset, size):
        nobody_wrote(state, site, warp, 1 << lane, address, size)
    shift = load64(state + GLOBAL_SHIFT)
    first = load64(table) + GLOBAL_CELL_BYTES * (offset >> shift)
    for index in range(cells_of(size, shift)):
        cell = first + GLOBAL_CELL_BYTES * index
        check_read(state, warp, 1 << lane, site, 0, address, size, cell)
        entry = global_reader(state, cell, warp)
        if entry:
            note_reader(state, entry, warp, 1 << lane, site, 0, PENDING + time)
    return int(first)


def cells_of(size: int, shift: int) -> int:
    """Number of cells that these bytes of a source touch; they begin at a cell, but may end within one."""
    return (size + (1 << shift) - 1) >> shift


def watch_copy(ctx: int, warp_state: int, site: int, request: int) -> None:
    """Handle an issued request; the virtual addresses of its sources are in ADDRESSES."""
    state = load64(ctx + SANITIZER)
    time = tick(state)
    warp = warp_number(ctx)
    size = load64(request + SIZE)
    store64(request + ISSUED, time)
    for lane in range(32):
        if (load64(request + IN_FLIGHT) >> lane) & 1:
            wanted = load32(request + SOURCE_BYTES + 4 * lane)
            cell = 0
            if wanted > 0:
                cell = read_source(state, warp, lane, site, time, load64(warp_state + ADDRESSES + 8 * lane), wanted)
            store64(request + SOURCE_CELL + 8 * lane, cell)
            overwrite_shared(state, warp, lane, site, time, load32(request + DESTINATION + 4 * lane), size, 0)


def settle_entry(entry: int, pending: int, time: int) -> None:
    """Set the time of a copy's entry to `time`, unless another access has replaced it."""
    if load64(entry) == pending:
        store64(entry, time)


def settle(state: int, request: int, lanes: int, time: int) -> None:
    """Complete the copies of these lanes."""
    pending = PENDING + load64(request + ISSUED)
    shift = load64(state + SHARED_SHIFT)
    width = READERS + ENTRY_BYTES * load64(state + WARPS)
    size = load64(request + SIZE)
    for lane in range(32):
        if not (lanes >> lane) & 1:
            continue
        offset = load32(request + DESTINATION + 4 * lane)
        for index in range(offset >> shift, (offset + size) >> shift):
            settle_entry(load64(state + SHARED_CELLS) + width * index, pending, time)
        first = load64(request + SOURCE_CELL + 8 * lane)
        if first:
            for index in range(cells_of(load32(request + SOURCE_BYTES + 4 * lane), load64(state + GLOBAL_SHIFT))):
                for reader in range(GLOBAL_READERS):
                    entry = first + GLOBAL_CELL_BYTES * index + READERS + ENTRY_BYTES * reader
                    settle_entry(entry, pending, time)
