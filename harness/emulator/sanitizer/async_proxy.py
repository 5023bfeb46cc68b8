"""Tracks mbarriers, bulk copies and operands of products in memory for the sanitizer.

An arrival releases what its warp knows to warps that observe the completed phase, and to none before. A bulk copy is an
access with the time `PENDING`, as in `copies_in_flight.py`, until it completes: a load then counts as its issuer's
access, which is released by the mbarrier that counts it; a store has read shared memory once its thread's wait for its
group is over. A warpgroup product reads its operands until the wait that covers it.

Data that a store or a product reads has to be covered by a proxy fence, see `vector_clock.py`, unless a copy wrote it.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer import vector_clock as clocks
from harness.emulator.sanitizer.block_lifetime import note_remote
from harness.emulator.sanitizer.copies_in_flight import (
    BUFFER_START,
    FIRST_BUFFER_WINDOW,
    FIRST_VARIABLE_WINDOW,
    WINDOW_BITS,
    settle_entry,
)
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.shadow_cell import check, info_word, note_reader
from harness.emulator.sanitizer.watch import (
    check_read,
    nobody_wrote,
    note_writer,
    read_shared,
    unwritten_bytes,
    write_bytes,
)

BUFFERS, VARIABLES, WARPS, SHARED_CELLS, BLOCK_START = (
    at.SLOT[name] for name in ("BUFFERS", "VARIABLES", "WARPS", "SHARED_CELLS", "BLOCK_START")
)
SHARED_SHIFT, GLOBAL_SHIFT = at.SLOT["SHARED_SHIFT"], at.SLOT["GLOBAL_SHIFT"]
PENDING, RAW, WAW, WAR, GPU_SCOPE = at.PENDING, at.RAW, at.WAW, at.WAR, at.GPU_SCOPE
WARP_MASK, SITE_AT, SITE_MASK = at.WARP_MASK, at.SITE_AT, at.SITE_MASK
READERS, ENTRY_BYTES, GLOBAL_CELL_BYTES = at.READERS, at.ENTRY_BYTES, at.GLOBAL_CELL_BYTES
STRONG_WRITER, WARPGROUP_BIT, WARPGROUP_WARPS = at.STRONG_WRITER, at.WARPGROUP_BIT, machine.WARPGROUP_WARPS
MISSING_PROXY_FENCE, NOT_AWAITED = at.MISSING_PROXY_FENCE, at.NOT_AWAITED
BARRIER_BYTES = 8


def shared_cell(state: int, index: int) -> int:
    """Address of a shadow cell of shared memory."""
    return int(load64(state + SHARED_CELLS) + (READERS + ENTRY_BYTES * load64(state + WARPS)) * index)


def begin_mbarrier(state: int, warp: int, lane: int, site: int, offset: int) -> None:
    """`mbarrier.init` is a plain write: users of the barrier have to be ordered after it."""
    note_writer(
        shared_cell(state, offset >> load64(state + SHARED_SHIFT)), warp, lane, site, 0, clock_words.tick(state)
    )


def use_mbarrier(state: int, warp: int, lane: int, site: int, offset: int, releases: int) -> None:
    """A thread arrives, or has observed the completed phase. Lanes of one instruction share one time."""
    note_remote(state, warp, lane, site, offset, BARRIER_BYTES)
    index = offset >> load64(state + SHARED_SHIFT)
    check(
        state, RAW, warp, 1 << lane, site, 0, machine.SHARED_ADDRESS + offset, BARRIER_BYTES, shared_cell(state, index)
    )
    if releases:
        clocks.release(state, warp, lane, clocks.shared_clock(state, load64(state + clocks.PHASE_SYNC), index))
    else:
        clocks.acquire(state, warp, 1 << lane, clocks.shared_clock(state, load64(state + clocks.SHARED_SYNC), index))


def finish_mbarrier_phase(state: int, offset: int) -> None:
    """Release the phase: all arrivals and all bytes are complete."""
    clocks.finish_phase(state, offset >> load64(state + SHARED_SHIFT))


def watch_global_run(
    state: int, warp: int, lane: int, site: int, time: int, address: int, size: int, stores: int, combines: int
) -> None:
    """A copy reads or writes these bytes of global memory, or `combines` with them like an atomic."""
    window = address >> WINDOW_BITS
    if window < FIRST_VARIABLE_WINDOW:
        return
    offset = (address & machine.OFFSET_MASK) - BUFFER_START
    table = load64(state + VARIABLES) + 16 * (window - FIRST_VARIABLE_WINDOW)
    if window >= FIRST_BUFFER_WINDOW:
        table = load64(state + BUFFERS) + 16 * (window - FIRST_BUFFER_WINDOW)
    written = load64(table + 8)
    if written and (combines or not stores) and unwritten_bytes(written + offset, size):
        nobody_wrote(state, site, warp, 1 << lane, address, size)
    if written and stores:
        write_bytes(state, warp, lane, site, address, written + offset, size)
    shift, strength = load64(state + GLOBAL_SHIFT), GPU_SCOPE if combines else 0
    for index in range(offset >> shift, (offset + size + (1 << shift) - 1) >> shift):
        cell = load64(table) + GLOBAL_CELL_BYTES * index
        if stores:
            check(state, WAW, warp, 1 << lane, site, strength, address, size, cell)
            if not combines:
                check(state, WAW, warp, 1 << lane, site, 0, address, size, cell + STRONG_WRITER)
            for reader in range(at.GLOBAL_ENTRIES):
                entry = cell + READERS + ENTRY_BYTES * reader
                check(state, WAR, warp, 1 << lane, site, strength, address, size, entry)
            note_writer(cell, warp, lane, site, strength, time)
        else:
            check_read(state, warp, 1 << lane, site, 0, address, size, cell)


def read_until_landed(state: int, warp: int, lane: int, site: int, time: int, offset: int, size: int) -> None:
    """A store reads these bytes of shared memory at any time until it completes."""
    read_shared(state, warp, 1 << lane, site, 0, time, offset, size)
    shift = load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + size) >> shift):
        check_fence(state, warp, 1 << lane, site, machine.SHARED_ADDRESS + offset, size, shared_cell(state, index))
        entry = shared_cell(state, index) + READERS + ENTRY_BYTES * warp
        note_reader(state, entry, warp, 1 << lane, site, 0, PENDING + time)


def check_fence(state: int, warp: int, lanes: int, site: int, address: int, size: int, cell: int) -> None:
    """Report that the asynchronous proxy reads what a thread wrote without a subsequent proxy fence."""
    for writer in range(cell, cell + 2 * STRONG_WRITER, STRONG_WRITER):
        when, info = load64(writer), load64(writer + 8)
        if not clocks.is_fenced(state, warp, when, info) and clocks.unordered(state, warp, lanes, when, info) < 0:
            thread, author = 32 * warp + clock_words.lowest(lanes), clock_words.lowest((info >> 32) & machine.FULL_MASK)
            other = 32 * (info & WARP_MASK) + author
            report(state, MISSING_PROXY_FENCE, site, thread, address, size, (info >> SITE_AT) & SITE_MASK, when, other)


def read_operand(state: int, warp: int, site: int, time: int, offset: int, size: int) -> None:
    """A warpgroup product reads these bytes of shared memory until the wait that covers it."""
    shift = load64(state + SHARED_SHIFT)
    address, everyone = machine.SHARED_ADDRESS + offset, machine.FULL_MASK
    # The four warps issue it together, so the knowledge of any one lane suffices.
    few = clock_words.few_lanes(state, warp)
    knowing = few if few else everyone
    first = warp & ~(WARPGROUP_WARPS - 1)
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = shared_cell(state, index)
        if max(load64(cell), load64(cell + STRONG_WRITER)) <= load64(state + BLOCK_START):
            nobody_wrote(state, site, warp, everyone, address, size)
        check_read(state, warp, knowing, site, 0, address, size, cell)
        check_fence(state, warp, knowing, site, address, size, cell)
        entry = cell + READERS + ENTRY_BYTES * first
        store64(entry, PENDING + time)
        store64(entry + 8, info_word(everyone, site, 0, first) | WARPGROUP_BIT)


def settle_operand(state: int, warp: int, issued: int, time: int, offset: int, size: int) -> None:
    """The product has finished reading these bytes."""
    shift = load64(state + SHARED_SHIFT)
    first = warp & ~(WARPGROUP_WARPS - 1)
    for index in range(offset >> shift, (offset + size) >> shift):
        settle_entry(shared_cell(state, index) + READERS + ENTRY_BYTES * first, PENDING + issued, time)


def touched_early(state: int, kind: int, thread: int, site: int, product: int, issued: int) -> None:
    """Report that a thread reads or writes a register of a product in flight."""
    report(state, kind, site, thread, 0, 0, product, issued, thread)


def settle_source(state: int, warp: int, issued: int, offset: int, size: int) -> None:
    """A copy to another block has finished reading these bytes of its own block's shared memory."""
    time, shift = clock_words.tick(state), load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + size) >> shift):
        settle_entry(shared_cell(state, index) + READERS + ENTRY_BYTES * warp, PENDING + issued, time)


def end_before_wait(state: int, site: int, thread: int, offset: int, size: int) -> None:
    """Report that a thread's block has ended without a wait for the thread's store."""
    report(state, NOT_AWAITED, site, thread, machine.SHARED_ADDRESS + offset, size, 0, clock_words.tick(state), thread)


def settle_bulk(state: int, thread: int, issued: int, offset: int, size: int, stores: int, barrier: int) -> None:
    """Complete a thread's copy; the mbarrier of a load releases it to waiting threads."""
    time, warp = clock_words.tick(state), thread >> 5
    shift = load64(state + SHARED_SHIFT)
    for index in range(offset >> shift, (offset + size) >> shift):
        entry = shared_cell(state, index)
        settle_entry(entry + READERS + ENTRY_BYTES * warp if stores else entry, PENDING + issued, time)
        if not stores:
            settle_entry(entry + STRONG_WRITER, PENDING + issued, time)
    if not stores:
        clock = clocks.shared_clock(state, load64(state + clocks.PHASE_SYNC), barrier >> shift)
        clock_words.tell(clock, load64(state + WARPS), warp, time, 1 << (thread & 31))
