"""Release and acquire through one address of global memory, by scope (PTX ISA, memory consistency model).

A release is a strong write after a fence, or one that has the fence in it. Its scope is the narrower one of the write's
and the fence's: threads outside of it learn nothing. An acquiring read has a scope, too. After a relaxed read, or a
`cas` without acquire order, a fence of the scope has to follow; `volatile` reads and other atomics need none.

What is released at a cell is in its record: a clock of the releasing cluster for the releaser's block, one for the
cluster, and a grid clock for others. Atomics add to it; a store replaces it, as later reads no longer see what was
stored before. A warp releases and acquires as a whole. If no record is left, cells share the last one, by which races
may be missed.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock_words import TIME, WARPS, clear_clock, clock_bytes, clock_of, merge, raise_to
from harness.emulator.sanitizer.fences import fenced, note_pending
from harness.emulator.sanitizer.grid_clock import add_view, clear_grid, release_views, word_of
from harness.emulator.sanitizer.vector_clock import release_until

RECORDS, RECORD_COUNT, RECORD_LIMIT, GRID_WORDS, BLOCK_START, BLOCK_WARPS = (
    at.SLOT[n] for n in ("RECORDS", "RECORD_COUNT", "RECORD_LIMIT", "GRID_WORDS", "BLOCK_START", "BLOCK_WARPS")
)
GLOBAL_SYNC, RELEASES, AWAITS_FENCE = at.GLOBAL_SYNC, at.RELEASES, at.AWAITS_FENCE
STRENGTH_IN_ACCESS, STRENGTH_MASK = at.STRENGTH_IN_ACCESS, at.STRENGTH_MASK
BLOCK_SCOPE, CLUSTER_SCOPE, GPU_SCOPE = at.BLOCK_SCOPE, at.CLUSTER_SCOPE, at.GPU_SCOPE
PENDING_BLOCK, PENDING_CLUSTER, PENDING_GRID = at.PENDING_BLOCK, at.PENDING_CLUSTER, at.PENDING_GRID
RELEASED_IN_BLOCK, RELEASED_IN_CLUSTER, RELEASED_IN_GRID, RELEASING_BLOCK, RECORD_HEADER = (
    at.RELEASED_IN_BLOCK, at.RELEASED_IN_CLUSTER, at.RELEASED_IN_GRID, at.RELEASING_BLOCK, at.RECORD_HEADER
)  # fmt: skip
ANY_BLOCK = -1


def record_bytes(state: int) -> int:
    """Bytes of one record."""
    return int(RECORD_HEADER + 2 * clock_bytes(load64(state + WARPS)) + 8 * load64(state + GRID_WORDS))


def record_of(state: int, cell: int) -> int:
    """The record of a cell; 0 if nothing was released there."""
    number = load64(cell + GLOBAL_SYNC)
    return int(load64(state + RECORDS) + record_bytes(state) * (number - 1) if number else 0)


def new_record(state: int, cell: int) -> int:
    """The record of a cell, which gets one if it has none."""
    if load64(cell + GLOBAL_SYNC) == 0:
        count = min(load64(state + RECORD_COUNT) + 1, load64(state + RECORD_LIMIT))
        store64(state + RECORD_COUNT, count)
        store64(cell + GLOBAL_SYNC, count)
    return record_of(state, cell)


def block_clock(record: int) -> int:
    """What was released to the threads of the releasing block."""
    return record + RECORD_HEADER


def cluster_clock(state: int, record: int) -> int:
    """What was released to the threads of its cluster."""
    return int(block_clock(record) + clock_bytes(load64(state + WARPS)))


def grid_clock(state: int, record: int) -> int:
    """What was released to other clusters."""
    return int(cluster_clock(state, record) + clock_bytes(load64(state + WARPS)))


def forget(state: int, cell: int) -> None:
    """A store replaces what was released here. The last record may belong to other cells, too."""
    record = record_of(state, cell)
    if record and load64(cell + GLOBAL_SYNC) < load64(state + RECORD_LIMIT):
        store64(record + RELEASED_IN_BLOCK, 0)
        store64(record + RELEASED_IN_CLUSTER, 0)
        store64(record + RELEASED_IN_GRID, 0)


def release_global(state: int, warp: int, cell: int, access: int) -> None:
    """A strong write of a warp releases what it did before its fences, or before now if it has a fence itself."""
    scope = (access >> STRENGTH_IN_ACCESS) & STRENGTH_MASK
    now = load64(state + TIME) if access & RELEASES else 0
    until = max(now, load64(fenced(state, warp, BLOCK_SCOPE)))
    if until == 0:
        return
    record, start, own = new_record(state, cell), load64(state + BLOCK_START), warp // load64(state + BLOCK_WARPS)
    if load64(record + RELEASED_IN_BLOCK) != start:
        clear_clock(block_clock(record), load64(state + WARPS))
        store64(record + RELEASED_IN_BLOCK, start)
        store64(record + RELEASING_BLOCK, own)
    elif load64(record + RELEASING_BLOCK) != own:
        store64(record + RELEASING_BLOCK, ANY_BLOCK)
    release_until(state, warp, block_clock(record), until)
    until = max(now, load64(fenced(state, warp, CLUSTER_SCOPE)))
    if scope >= CLUSTER_SCOPE and until:
        if load64(record + RELEASED_IN_CLUSTER) != start:
            clear_clock(cluster_clock(state, record), load64(state + WARPS))
            store64(record + RELEASED_IN_CLUSTER, start)
        release_until(state, warp, cluster_clock(state, record), until)
    until = max(now, load64(fenced(state, warp, GPU_SCOPE)))
    if scope == GPU_SCOPE and until:
        grid = grid_clock(state, record)
        if load64(record + RELEASED_IN_GRID) == 0:
            clear_grid(state, grid)
            store64(record + RELEASED_IN_GRID, 1)
        release_views(state, warp, grid)
        raise_to(grid + 8 * word_of(state, start), until)


def acquire_global(state: int, warp: int, cell: int, access: int) -> None:
    """A strong read of a warp acquires what was released here to threads of its scope."""
    record = record_of(state, cell)
    if record == 0:
        return
    scope = (access >> STRENGTH_IN_ACCESS) & STRENGTH_MASK
    warps, start = load64(state + WARPS), load64(state + BLOCK_START)
    block = load64(record + RELEASING_BLOCK)
    waits = access & AWAITS_FENCE
    if load64(record + RELEASED_IN_BLOCK) == start and (
        block == ANY_BLOCK or block == warp // load64(state + BLOCK_WARPS)
    ):
        if waits:
            note_pending(state, warp, PENDING_BLOCK, block_clock(record))
        else:
            merge(clock_of(state, warp), block_clock(record), warps)
    if load64(record + RELEASED_IN_CLUSTER) == start and scope >= CLUSTER_SCOPE:
        if waits:
            note_pending(state, warp, PENDING_CLUSTER, cluster_clock(state, record))
        else:
            merge(clock_of(state, warp), cluster_clock(state, record), warps)
    if load64(record + RELEASED_IN_GRID) and scope == GPU_SCOPE:
        if waits:
            note_pending(state, warp, PENDING_GRID, grid_clock(state, record))
        else:
            add_view(state, warp, grid_clock(state, record))
