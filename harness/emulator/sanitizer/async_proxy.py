"""mbarriers and bulk copies as the sanitizer sees them.

An arrival releases what its warp knows to those who find the phase over. A bulk copy is an access at the end of time,
as in `copies_in_flight.py`, until it lands: a load then is its issuer's access, which the mbarrier that counts it tells
to all who wait there; a store has read shared memory when its thread's wait for its group is over. Products of
warpgroups are not watched: what is written over their operands too early shows in the sums.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64
from harness.emulator.sanitizer.copies_in_flight import (
    BUFFER_START,
    FIRST_BUFFER_WINDOW,
    FIRST_VARIABLE_WINDOW,
    OFFSET_MASK,
    WINDOW_BITS,
    settle_entry,
)
from harness.emulator.sanitizer.shadow_cell import check, note_reader
from harness.emulator.sanitizer.vector_clock import SHARED_SYNC, raise_to, synchronise_shared, tick
from harness.emulator.sanitizer.watch import (
    check_read,
    nobody_wrote,
    note_writer,
    read_shared,
    unwritten_bytes,
    write_bytes,
)

BUFFERS, VARIABLES, WARPS, SHARED_CELLS = (at.SLOT[name] for name in ("BUFFERS", "VARIABLES", "WARPS", "SHARED_CELLS"))
SHARED_SHIFT, GLOBAL_SHIFT = at.SLOT["SHARED_SHIFT"], at.SLOT["GLOBAL_SHIFT"]
PENDING, RAW, WAW, WAR = at.PENDING, at.RAW, at.WAW, at.WAR
READERS, ENTRY_BYTES, GLOBAL_CELL_BYTES = at.READERS, at.ENTRY_BYTES, at.GLOBAL_CELL_BYTES
SHARED_ADDRESS = machine.SHARED_WINDOW << machine.WINDOW_BITS
BARRIER_BYTES = 8


def shared_cell(state: int, index: int) -> int:
    """Where a cell of shared memory is."""
    return int(load64(state + SHARED_CELLS) + (READERS + ENTRY_BYTES * load64(state + WARPS)) * index)


def begin_mbarrier(state: int, warp: int, lane: int, site: int, offset: int) -> None:
    """`mbarrier.init` is a plain write: who uses the barrier has to know of it."""
    note_writer(shared_cell(state, offset >> load64(state + SHARED_SHIFT)), warp, lane, site, 0, tick(state))


def use_mbarrier(state: int, warp: int, lane: int, site: int, offset: int, releases: int) -> None:
    """A thread arrives, or has found the phase over."""
    tick(state)
    index = offset >> load64(state + SHARED_SHIFT)
    check(state, RAW, warp, 1 << lane, site, 0, SHARED_ADDRESS + offset, BARRIER_BYTES, shared_cell(state, index))
    synchronise_shared(state, warp, index, releases != 0, releases == 0)


def watch_global_run(
    state: int, warp: int, lane: int, site: int, time: int, address: int, size: int, stores: int
) -> None:
    """A copy reads, or writes, these bytes of global memory."""
    window = address >> WINDOW_BITS
    if window < FIRST_VARIABLE_WINDOW:
        return
    offset = (address & OFFSET_MASK) - BUFFER_START
    table = load64(state + VARIABLES) + 16 * (window - FIRST_VARIABLE_WINDOW)
    if window >= FIRST_BUFFER_WINDOW:
        table = load64(state + BUFFERS) + 16 * (window - FIRST_BUFFER_WINDOW)
    written = load64(table + 8)
    if written and stores:
        write_bytes(state, warp, lane, site, address, written + offset, size)
    elif written and unwritten_bytes(written + offset, size):
        nobody_wrote(state, site, warp, 1 << lane, address, size)
    shift = load64(state + GLOBAL_SHIFT)
    for index in range(offset >> shift, (offset + size + (1 << shift) - 1) >> shift):
        cell = load64(table) + GLOBAL_CELL_BYTES * index
        if stores:
            check(state, WAW, warp, 1 << lane, site, 0, address, size, cell)
            note_writer(cell, warp, lane, site, 0, time)
        else:
            check_read(state, warp, 1 << lane, site, 0, address, size, cell)


def read_until_landed(state: int, warp: int, lane: int, site: int, time: int, offset: int, size: int) -> None:
    """A store reads these bytes of shared memory at some time until it lands."""
    read_shared(state, warp, 1 << lane, site, 0, time, offset, size)
    shift = load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + size) >> shift):
        entry = shared_cell(state, index) + READERS + ENTRY_BYTES * warp
        note_reader(state, entry, warp, 1 << lane, site, 0, PENDING + time)


def settle_bulk(state: int, warp: int, issued: int, offset: int, size: int, stores: int, barrier: int) -> None:
    """The copy lands; a load's mbarrier tells those who wait there."""
    time = tick(state)
    shift = load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + size) >> shift):
        entry = shared_cell(state, index)
        settle_entry(entry + READERS + ENTRY_BYTES * warp if stores else entry, PENDING + issued, time)
    if not stores:
        raise_to(load64(state + SHARED_SYNC) + 8 * ((barrier >> shift) * load64(state + WARPS) + warp), time)
