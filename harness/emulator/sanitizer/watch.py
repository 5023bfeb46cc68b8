"""Entry points of the sanitizer: called once per request of a warp, after its addresses were validated.

Loads are checked after they ran, stores before, with their values in the warp's DATA area.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.cluster_memory import OFFSET_IN_BLOCK, own_place, warp_number
from harness.emulator.abi.context import LOCALS_ORIGIN, SANITIZER, SHARED_ORIGIN, SHARED_SIZE, TAGGED
from harness.emulator.abi.raw_memory import load8, load32, load64, store8, store64
from harness.emulator.sanitizer.block_lifetime import note_remote
from harness.emulator.sanitizer.cluster_barrier import fence_cluster
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.shadow_cell import check, check_written, global_reader, info_word, note_reader
from harness.emulator.sanitizer.vector_clock import (
    FENCED,
    fence_proxy,
    lowest,
    meet_lanes,
    synchronise_global,
    synchronise_shared,
    tick,
)

SHARED_ARRAYS = at.SLOT["SHARED_ARRAYS"]
BLOCK_START, FLOOR, WARPS, SHARED_CELLS, SHARED_SHIFT, GLOBAL_SHIFT, BUFFERS, VARIABLES, LOCAL_MAP = (
    at.SLOT[name]
    for name in (
        "BLOCK_START", "FLOOR", "WARPS", "SHARED_CELLS", "SHARED_SHIFT", "GLOBAL_SHIFT", "BUFFERS", "VARIABLES",
        "LOCAL_MAP",
    )
)  # fmt: skip
LOAD, STORE, ATOMIC = at.LOAD, at.STORE, at.ATOMIC
STRONG, RELEASES, ACQUIRES, OVERWRITES = at.STRONG, at.RELEASES, at.ACQUIRES, at.OVERWRITES
OUTSIDE_ITS_ARRAY = at.OUTSIDE_ITS_ARRAY
UNINITIALISED, RAW, WAR, WAW, INPUT_WRITTEN = at.UNINITIALISED, at.RAW, at.WAR, at.WAW, at.INPUT_WRITTEN
STRONG_WRITER, READERS = at.STRONG_WRITER, at.READERS
ENTRY_BYTES, GLOBAL_CELL_BYTES = at.ENTRY_BYTES, at.GLOBAL_CELL_BYTES
GLOBAL_ENTRIES = at.GLOBAL_READERS + 1
ADDRESSES, HOSTS, STARTED = machine.ADDRESSES, machine.HOSTS, machine.STARTED
SHARED_WINDOW, LOCAL_WINDOW = machine.SHARED_WINDOW, machine.LOCAL_WINDOW
FIRST_VARIABLE_WINDOW, FIRST_BUFFER_WINDOW = machine.FIRST_VARIABLE_WINDOW, machine.FIRST_BUFFER_WINDOW
WINDOW_BITS, BUFFER_START = machine.WINDOW_BITS, machine.BUFFER_START
SPACE_SHARED, SPACE_LOCAL = machine.SPACES["shared"], machine.SPACES["local"]
NEVER_WRITTEN, GIVEN = at.NEVER_WRITTEN, at.GIVEN


def nobody_wrote(state: int, site: int, warp: int, lanes: int, address: int, size: int) -> None:
    """Report a read of unwritten memory."""
    report(state, UNINITIALISED, site, 32 * warp + lowest(lanes), address, size, 0, 0, 0)


def check_read(state: int, warp: int, lanes: int, site: int, strong: int, address: int, size: int, cell: int) -> None:
    """Report races of a load with earlier writes."""
    check(state, RAW, warp, lanes, site, strong, address, size, cell)
    check(state, RAW, warp, lanes, site, strong, address, size, cell + STRONG_WRITER)


def check_write(
    state: int, warp_state: int, warp: int, lane: int, site: int, access: int, time: int, address: int, size: int,
    cell: int, host: int, element: int, item: int,
) -> None:  # fmt: skip
    """Report races of a store or an atomic with earlier writes."""
    if access & 3 == ATOMIC:
        # It combines, so its operand is not the stored value.
        check(state, WAW, warp, 1 << lane, site, STRONG, address, size, cell)
        return
    check_written(state, warp_state, warp, lane, site, access & STRONG, time, address, size, cell, host, element, item)
    if not access & STRONG:
        strong = cell + STRONG_WRITER
        check_written(state, warp_state, warp, lane, site, 0, time, address, size, strong, host, element, item)


def note_writer(cell: int, warp: int, lane: int, site: int, strong: int, time: int) -> None:
    """Record the write."""
    entry = cell + STRONG_WRITER if strong else cell
    store64(entry, time)
    store64(entry + 8, info_word(1 << lane, site, strong, warp))


def read_shared(state: int, warp: int, lanes: int, site: int, access: int, time: int, offset: int, size: int) -> None:
    """`lanes` load `size` bytes at one offset."""
    shift = load64(state + SHARED_SHIFT)
    warps = load64(state + WARPS)
    width = READERS + ENTRY_BYTES * warps
    strong = access & STRONG
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = load64(state + SHARED_CELLS) + width * index
        written = max(load64(cell), load64(cell + STRONG_WRITER))
        if written <= load64(state + BLOCK_START):
            nobody_wrote(state, site, warp, lanes, machine.SHARED_ADDRESS + offset, size)
        elif written > load64(state + FLOOR):
            check_read(state, warp, lanes, site, strong, machine.SHARED_ADDRESS + offset, size, cell)
        note_reader(state, cell + READERS + ENTRY_BYTES * warp, warp, lanes, site, strong, time)
        if access & ACQUIRES:
            synchronise_shared(state, warp, lanes, index, False, True)


def write_shared(
    ctx: int, state: int, warp_state: int, warp: int, lane: int, site: int, access: int, time: int, offset: int,
    element: int, count: int,
) -> None:  # fmt: skip
    """`lane` stores, or combines, `count` elements."""
    shift = load64(state + SHARED_SHIFT)
    warps = load64(state + WARPS)
    width = READERS + ENTRY_BYTES * warps
    strong = access & STRONG
    size = element * count
    start, floor = load64(state + BLOCK_START), load64(state + FLOOR)
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = load64(state + SHARED_CELLS) + width * index
        written = max(load64(cell), load64(cell + STRONG_WRITER))
        if access & (3 | OVERWRITES) == ATOMIC and written <= start:
            nobody_wrote(state, site, warp, 1 << lane, machine.SHARED_ADDRESS + offset, size)
        if written > floor:
            item = ((index << shift) - offset) // element
            host = load64(ctx + SHARED_ORIGIN) + offset + element * item
            check_write(
                state, warp_state, warp, lane, site, access, time, machine.SHARED_ADDRESS + offset, size,
                cell, host, element, item,
            )  # fmt: skip
        for other in range(warps):
            entry = cell + READERS + ENTRY_BYTES * other
            if load64(entry) > floor:
                check(state, WAR, warp, 1 << lane, site, strong, machine.SHARED_ADDRESS + offset, size, entry)
        note_writer(cell, warp, lane, site, strong, time)
        if strong:
            synchronise_shared(state, warp, 1 << lane, index, True, access & ACQUIRES != 0)


def watch_shared(ctx: int, warp_state: int, site: int, mask: int, element: int, count: int, access: int) -> int:
    """Check a request with 32-bit offsets into shared memory in ADDRESSES. Returns 0."""
    state = load64(ctx + SANITIZER)
    time = tick(state)
    warp = warp_number(ctx)
    size = element * count
    limit = load64(ctx + SHARED_SIZE) - size
    if access & 3 == LOAD:
        # Lanes that load the same words, usually neighbours, are handled together.
        lanes = 0
        offset = 0
        for lane in range(32):
            if not (mask >> lane) & 1:
                continue
            here = own_place(ctx, load32(warp_state + ADDRESSES + 4 * lane))
            if lanes and here != offset:
                read_shared(state, warp, lanes, site, access, time, offset, size)
                lanes = 0
            offset = here
            lanes |= 1 << lane
        if lanes:
            read_shared(state, warp, lanes, site, access, time, offset, size)
        return 0
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp_state + ADDRESSES + 4 * lane)
            # The store that follows faults on these.
            if offset > limit or offset & (size - 1):
                return 0
            place = own_place(ctx, offset)
            write_shared(ctx, state, warp_state, warp, lane, site, access, time, place, element, count)
    return 0


def watch_array(ctx: int, warp_state: int, site: int, mask: int, size: int, is_wide: int, array: int) -> int:
    """Check accesses whose addresses, in ADDRESSES, belong to one array in the block's own shared memory. Returns 0."""
    state = load64(ctx + SANITIZER)
    table = load64(state + SHARED_ARRAYS) + 16 * array
    first = load64(table)
    end = load64(table + 8)
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        offset = load32(warp_state + ADDRESSES + 4 * lane)
        if is_wide:
            offset = load64(warp_state + ADDRESSES + 8 * lane) & machine.OFFSET_MASK
            if load64(ctx + TAGGED):
                offset &= OFFSET_IN_BLOCK
        # An access beyond all shared memory is a fault.
        if (offset < first or offset + size > end) and offset + size <= load64(ctx + SHARED_SIZE):
            place = machine.SHARED_ADDRESS + own_place(ctx, offset)
            thread = 32 * warp_number(ctx) + lane
            report(state, OUTSIDE_ITS_ARRAY, site, thread, place, size, array, 0, 0)
    return 0


def unwritten_bytes(written: int, size: int) -> int:
    """Number of unwritten bytes in this range."""
    count = 0
    for byte in range(size):
        count += load8(written + byte) == NEVER_WRITTEN
    return count


def write_bytes(state: int, warp: int, lane: int, site: int, address: int, written: int, size: int) -> None:
    """Mark these bytes as written.

    Those of an input keep their mark, so that every line that stores there is reported.
    """
    given = 0
    for byte in range(size):
        if load8(written + byte) == GIVEN:
            given = 1
        else:
            store8(written + byte, 0)
    if given:
        report(state, INPUT_WRITTEN, site, 32 * warp + lane, address, size, 0, 0, 0)


def touch_global(
    state: int, warp_state: int, warp: int, lane: int, site: int, access: int, time: int, address: int, offset: int,
    cells: int, host: int, element: int, count: int,
) -> None:  # fmt: skip
    """Check one lane's access to global memory."""
    shift = load64(state + GLOBAL_SHIFT)
    strong = access & STRONG
    size = element * count
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = cells + GLOBAL_CELL_BYTES * index
        if access & 3 == LOAD:
            check_read(state, warp, 1 << lane, site, strong, address, size, cell)
            entry = global_reader(state, cell, warp)
            if entry:
                note_reader(state, entry, warp, 1 << lane, site, strong, time)
        else:
            item = ((index << shift) - offset) // element
            check_write(
                state, warp_state, warp, lane, site, access, time, address, size,
                cell, host + element * item, element, item,
            )  # fmt: skip
            for reader in range(GLOBAL_ENTRIES):
                entry = cell + READERS + ENTRY_BYTES * reader
                check(state, WAR, warp, 1 << lane, site, strong, address, size, entry)
            note_writer(cell, warp, lane, site, strong, time)
        if strong:
            releases = access & 3 != LOAD
            synchronise_global(state, warp, cell, releases, access & ACQUIRES != 0, access & RELEASES != 0)


def watch_memory(
    ctx: int, warp_state: int, site: int, space: int, mask: int, element: int, count: int, access: int
) -> int:
    """Check a request whose host addresses `translate` has determined. Returns 0."""
    state = load64(ctx + SANITIZER)
    time = tick(state)
    warp = warp_number(ctx)
    size = element * count
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        address = load64(warp_state + ADDRESSES + 8 * lane)
        host = load64(warp_state + HOSTS + 8 * lane)
        window = address >> WINDOW_BITS
        if space == SPACE_SHARED or (space != SPACE_LOCAL and window == SHARED_WINDOW):
            offset = host - load64(ctx + SHARED_ORIGIN)
            note_remote(state, warp, lane, site, offset, size)
            if access & 3 == LOAD:
                read_shared(state, warp, 1 << lane, site, access, time, offset, size)
            else:
                write_shared(ctx, state, warp_state, warp, lane, site, access, time, offset, element, count)
            continue
        cells = 0
        written = 0
        if space == SPACE_LOCAL or window == LOCAL_WINDOW:
            address = (address & 0xFFFFFFFF) | (LOCAL_WINDOW << WINDOW_BITS)
            written = load64(state + LOCAL_MAP) + host - load64(ctx + LOCALS_ORIGIN)
        elif window >= FIRST_VARIABLE_WINDOW:
            offset = (address & machine.OFFSET_MASK) - BUFFER_START
            table = load64(state + VARIABLES) + 16 * (window - FIRST_VARIABLE_WINDOW)
            if window >= FIRST_BUFFER_WINDOW:
                table = load64(state + BUFFERS) + 16 * (window - FIRST_BUFFER_WINDOW)
            cells = load64(table)
            if load64(table + 8):
                written = load64(table + 8) + offset
        if written:
            if not access & OVERWRITES and access & 3 != STORE and unwritten_bytes(written, size):
                nobody_wrote(state, site, warp, 1 << lane, address, size)
            if access & 3 != LOAD:
                write_bytes(state, warp, lane, site, address, written, size)
        if cells:
            touch_global(
                state, warp_state, warp, lane, site, access, time, address, offset, cells, host, element, count
            )
    return 0


def watch_lanes(ctx: int, warp_state: int, mask: int) -> int:
    """`bar.warp.sync`: the active lanes, with the member masks in ADDRESSES. Returns 0."""
    warp = warp_number(ctx)
    state = load64(ctx + SANITIZER)
    left = mask
    while left:
        lane = lowest(left)
        group = (load32(warp_state + ADDRESSES + 4 * lane) & mask) | (1 << lane)
        meet_lanes(state, warp, group, load32(warp_state + STARTED))
        left &= ~group
    return 0


def watch_fence(ctx: int) -> int:
    """A fence of GPU scope. Returns 0."""
    state = load64(ctx + SANITIZER)
    store64(load64(state + FENCED) + 8 * warp_number(ctx), tick(state))
    return 0


def watch_cluster_fence(ctx: int) -> int:
    """A fence of at least cluster scope. Returns 0."""
    fence_cluster(load64(ctx + SANITIZER), warp_number(ctx))
    return 0


def watch_proxy_fence(ctx: int, mask: int) -> int:
    """`fence.proxy.async` for shared memory. Returns 0."""
    fence_proxy(load64(ctx + SANITIZER), warp_number(ctx), mask)
    return 0
