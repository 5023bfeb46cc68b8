"""Release and acquire through one address of global memory, by scope (PTX ISA, memory consistency model).

A release is a strong write after a fence, or one that has the fence in it. Its scope is the narrower one of the write's
and the fence's: threads outside of it learn nothing. An acquiring read has a scope, too. After a relaxed read, or a
`cas` without acquire order, a fence of the scope has to follow; `volatile` reads and other atomics need none.

What is released at a cell is in its record: for other clusters two grid clocks, and for the releasing cluster, in a
record of its own with the same number, a clock for the releaser's block and one for the cluster. Atomics add to it; a
store replaces it, as later reads no longer see what was stored before. A warp releases and acquires as a whole. If no
record is left, cells share the last one, by which races may be missed.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.sanitizer.clock_words import (
    BLOCK_START,
    TIME,
    WARPS,
    clear_clock,
    clock_bytes,
    clock_of,
    merge,
    raise_to,
)
from harness.emulator.sanitizer.fences import fenced, note_pending, note_pending_grid
from harness.emulator.sanitizer.grid_clock import add_view, clear_grid, release_views, word_of
from harness.emulator.sanitizer.vector_clock import release_until

RECORDS, OWN_RECORDS, RECORD_LIMIT, GRID_WORDS, BLOCK_WARPS, COUNTS = (
    at.SLOT[n] for n in ("RECORDS", "OWN_RECORDS", "RECORD_LIMIT", "GRID_WORDS", "BLOCK_WARPS", "COUNTS")
)
GLOBAL_SYNC, RELEASES, AWAITS_FENCE = at.GLOBAL_SYNC, at.RELEASES, at.AWAITS_FENCE
STRENGTH_IN_ACCESS, STRENGTH_MASK = at.STRENGTH_IN_ACCESS, at.STRENGTH_MASK
BLOCK_SCOPE, CLUSTER_SCOPE, GPU_SCOPE = at.BLOCK_SCOPE, at.CLUSTER_SCOPE, at.GPU_SCOPE
PENDING_BLOCK, PENDING_CLUSTER, PENDING_GRID = at.PENDING_BLOCK, at.PENDING_CLUSTER, at.PENDING_GRID
RECORD_COUNT, GENERATION, RELEASED_IN_GRID, RECORD_HEADER = (
    at.RECORD_COUNT, at.GENERATION, at.RELEASED_IN_GRID, at.RECORD_HEADER
)  # fmt: skip
RELEASED_SINCE, OWN_GENERATION, RELEASED_IN_CLUSTER, RELEASING_BLOCK, OWN_RECORD_HEADER = (
    at.RELEASED_SINCE, at.OWN_GENERATION, at.RELEASED_IN_CLUSTER, at.RELEASING_BLOCK, at.OWN_RECORD_HEADER
)  # fmt: skip
ANY_BLOCK = -1


def record_of(state: int, number: int) -> int:
    """The record with this number, which is at least 1."""
    return int(load64(state + RECORDS) + (RECORD_HEADER + 16 * load64(state + GRID_WORDS)) * (number - 1))


def own_record_of(state: int, number: int) -> int:
    """What the current cluster has released to its own threads at the cells of the record with this number."""
    size = OWN_RECORD_HEADER + 2 * clock_bytes(load64(state + WARPS))
    return int(load64(state + OWN_RECORDS) + size * (number - 1))


def new_record(state: int, cell: int) -> int:
    """The number of the record of a cell, which gets one if it has none."""
    if load64(cell + GLOBAL_SYNC) == 0:
        counts = load64(state + COUNTS)
        count = min(load64(counts + RECORD_COUNT) + 1, load64(state + RECORD_LIMIT))
        store64(counts + RECORD_COUNT, count)
        store64(cell + GLOBAL_SYNC, count)
    return int(load64(cell + GLOBAL_SYNC))


def is_valid(state: int, own: int, record: int) -> bool:
    """Whether a cluster's own record is of the current cluster, and no store has replaced what was released."""
    return bool(
        load64(own + RELEASED_SINCE) == load64(state + BLOCK_START)
        and load64(own + OWN_GENERATION) == load64(record + GENERATION)
    )


def block_clock(own: int) -> int:
    """What was released to the threads of the releasing block."""
    return own + OWN_RECORD_HEADER


def cluster_clock(state: int, own: int) -> int:
    """What was released to the threads of its cluster."""
    return int(block_clock(own) + clock_bytes(load64(state + WARPS)))


def released_clock(record: int) -> int:
    """A grid clock of what clusters released of themselves."""
    return record + RECORD_HEADER


def passed_clock(state: int, record: int) -> int:
    """A grid clock of what clusters released of others."""
    return int(released_clock(record) + 8 * load64(state + GRID_WORDS))


def forget(state: int, cell: int) -> None:
    """A store replaces what was released here. The last record may belong to other cells, too."""
    number = load64(cell + GLOBAL_SYNC)
    if 0 < number < load64(state + RECORD_LIMIT):
        record = record_of(state, number)
        store64(record + GENERATION, load64(record + GENERATION) + 1)
        store64(record + RELEASED_IN_GRID, 0)


def release_global(state: int, warp: int, cell: int, access: int) -> None:
    """A strong write of a warp releases what it did before its fences, or before now if it has a fence itself."""
    scope = (access >> STRENGTH_IN_ACCESS) & STRENGTH_MASK
    now = load64(state + TIME) if access & RELEASES else 0
    until = max(now, load64(fenced(state, warp, BLOCK_SCOPE)))
    if until == 0:
        return
    number, block = new_record(state, cell), warp // load64(state + BLOCK_WARPS)
    record, own = record_of(state, number), own_record_of(state, number)
    if not is_valid(state, own, record):
        clear_clock(block_clock(own), load64(state + WARPS))
        store64(own + RELEASED_SINCE, load64(state + BLOCK_START))
        store64(own + OWN_GENERATION, load64(record + GENERATION))
        store64(own + RELEASED_IN_CLUSTER, 0)
        store64(own + RELEASING_BLOCK, block)
    elif load64(own + RELEASING_BLOCK) != block:
        store64(own + RELEASING_BLOCK, ANY_BLOCK)
    release_until(state, warp, block_clock(own), until)
    until = max(now, load64(fenced(state, warp, CLUSTER_SCOPE)))
    if scope >= CLUSTER_SCOPE and until:
        if load64(own + RELEASED_IN_CLUSTER) == 0:
            clear_clock(cluster_clock(state, own), load64(state + WARPS))
            store64(own + RELEASED_IN_CLUSTER, 1)
        release_until(state, warp, cluster_clock(state, own), until)
    until = max(now, load64(fenced(state, warp, GPU_SCOPE)))
    if scope == GPU_SCOPE and until:
        released, passed = released_clock(record), passed_clock(state, record)
        if load64(record + RELEASED_IN_GRID) == 0:
            clear_grid(state, released)
            clear_grid(state, passed)
            store64(record + RELEASED_IN_GRID, 1)
        release_views(state, warp, until, passed)
        raise_to(released + 8 * word_of(state, load64(state + BLOCK_START)), until)


def acquire_global(state: int, warp: int, cell: int, access: int) -> None:
    """A strong read of a warp acquires what was released here to threads of its scope."""
    number = load64(cell + GLOBAL_SYNC)
    if number == 0:
        return
    record, own = record_of(state, number), own_record_of(state, number)
    scope, waits = (access >> STRENGTH_IN_ACCESS) & STRENGTH_MASK, access & AWAITS_FENCE
    if is_valid(state, own, record):
        warps, block = load64(state + WARPS), load64(own + RELEASING_BLOCK)
        if block == ANY_BLOCK or block == warp // load64(state + BLOCK_WARPS):
            if waits:
                note_pending(state, warp, PENDING_BLOCK, block_clock(own))
            else:
                merge(clock_of(state, warp), block_clock(own), warps)
        if load64(own + RELEASED_IN_CLUSTER) and scope >= CLUSTER_SCOPE:
            if waits:
                note_pending(state, warp, PENDING_CLUSTER, cluster_clock(state, own))
            else:
                merge(clock_of(state, warp), cluster_clock(state, own), warps)
    if load64(record + RELEASED_IN_GRID) and scope == GPU_SCOPE:
        released, passed = released_clock(record), passed_clock(state, record)
        if waits:
            note_pending_grid(state, warp, released, passed)
        else:
            add_view(state, warp, released, passed)
