"""Entry points of the sanitizer: called once per request of a warp, after its addresses were validated.

Loads are checked after they ran, stores before, with their values in the warp's DATA area.
"""

from __future__ import annotations

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.abi.cluster_memory import OFFSET_IN_BLOCK, own_place, warp_number
from harness.emulator.abi.context import LOCALS_ORIGIN, SANITIZER, SHARED_ORIGIN, SHARED_SIZE, TAGGED
from harness.emulator.abi.raw_memory import load8, load32, load64, store8, store64
from harness.emulator.sanitizer import clock_words
from harness.emulator.sanitizer import vector_clock as clocks
from harness.emulator.sanitizer.block_lifetime import note_remote
from harness.emulator.sanitizer.cluster_barrier import fence_cluster
from harness.emulator.sanitizer.fences import fence
from harness.emulator.sanitizer.finding_table import report
from harness.emulator.sanitizer.global_sync import acquire_global, forget, release_global
from harness.emulator.sanitizer.grid_clock import add_view
from harness.emulator.sanitizer.shadow_cell import check, check_written, global_reader, info_word, note_reader

SHARED_ARRAYS, COUNTS, ENDED_LAUNCHES = at.SLOT["SHARED_ARRAYS"], at.SLOT["COUNTS"], at.SLOT["ENDED_LAUNCHES"]
GRID_WAITS = at.GRID_WAITS
BLOCK_START, FLOOR, WARPS, SHARED_CELLS, SHARED_SHIFT, GLOBAL_SHIFT, BUFFERS, VARIABLES, LOCAL_MAP = (
    at.SLOT[name]
    for name in (
        "BLOCK_START", "FLOOR", "WARPS", "SHARED_CELLS", "SHARED_SHIFT", "GLOBAL_SHIFT", "BUFFERS", "VARIABLES",
        "LOCAL_MAP",
    )
)  # fmt: skip
LOAD, STORE, ATOMIC = at.LOAD, at.STORE, at.ATOMIC
ACQUIRES, OVERWRITES, GPU_SCOPE = at.ACQUIRES, at.OVERWRITES, at.GPU_SCOPE
STRENGTH_IN_ACCESS, STRENGTH_MASK = at.STRENGTH_IN_ACCESS, at.STRENGTH_MASK
OUTSIDE_ITS_ARRAY = at.OUTSIDE_ITS_ARRAY
UNINITIALISED, RAW, WAR, WAW, INPUT_WRITTEN = at.UNINITIALISED, at.RAW, at.WAR, at.WAW, at.INPUT_WRITTEN
STRONG_WRITER, READERS = at.STRONG_WRITER, at.READERS
ENTRY_BYTES, GLOBAL_CELL_BYTES, GLOBAL_ENTRIES = at.ENTRY_BYTES, at.GLOBAL_CELL_BYTES, at.GLOBAL_ENTRIES
ADDRESSES, HOSTS, STARTED = machine.ADDRESSES, machine.HOSTS, machine.STARTED
SHARED_WINDOW, LOCAL_WINDOW = machine.SHARED_WINDOW, machine.LOCAL_WINDOW
FIRST_VARIABLE_WINDOW, FIRST_BUFFER_WINDOW = machine.FIRST_VARIABLE_WINDOW, machine.FIRST_BUFFER_WINDOW
WINDOW_BITS, BUFFER_START = machine.WINDOW_BITS, machine.BUFFER_START
SPACE_SHARED, SPACE_LOCAL = machine.SPACES["shared"], machine.SPACES["local"]
NEVER_WRITTEN, GIVEN = at.NEVER_WRITTEN, at.GIVEN


def nobody_wrote(state: int, site: int, warp: int, lanes: int, address: int, size: int) -> None:
    """Report a read of unwritten memory."""
    report(state, UNINITIALISED, site, 32 * warp + clock_words.lowest(lanes), address, size, 0, 0, 0)


def strength_in(access: int) -> int:
    """The scope of a strong access; 0 if it is not strong."""
    return (access >> STRENGTH_IN_ACCESS) & STRENGTH_MASK


def check_read(state: int, warp: int, lanes: int, site: int, strength: int, address: int, size: int, cell: int) -> None:
    """Report races of a load with earlier writes."""
    check(state, RAW, warp, lanes, site, strength, address, size, cell)
    check(state, RAW, warp, lanes, site, strength, address, size, cell + STRONG_WRITER)


def check_write(
    state: int, warp_state: int, warp: int, lane: int, site: int, access: int, time: int, address: int, size: int,
    cell: int, host: int, element: int, item: int,
) -> None:  # fmt: skip
    """Report races of a store or an atomic with earlier writes."""
    strength, strong = strength_in(access), cell + STRONG_WRITER
    if access & 3 == ATOMIC:
        # It combines, so its operand is not the stored value.
        check(state, WAW, warp, 1 << lane, site, strength, address, size, cell)
        check(state, WAW, warp, 1 << lane, site, strength, address, size, strong)
        return
    check_written(state, warp_state, warp, lane, site, strength, time, address, size, cell, host, element, item)
    if strength < GPU_SCOPE:
        check_written(state, warp_state, warp, lane, site, strength, time, address, size, strong, host, element, item)


def note_writer(cell: int, warp: int, lane: int, site: int, strength: int, time: int) -> None:
    """Record the write."""
    entry = cell + STRONG_WRITER if strength == GPU_SCOPE else cell
    store64(entry, time)
    store64(entry + 8, info_word(1 << lane, site, strength, warp))


def read_shared(state: int, warp: int, lanes: int, site: int, access: int, time: int, offset: int, size: int) -> None:
    """`lanes` load `size` bytes at one offset."""
    shift = load64(state + SHARED_SHIFT)
    warps = load64(state + WARPS)
    width = READERS + ENTRY_BYTES * warps
    strength = strength_in(access)
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = load64(state + SHARED_CELLS) + width * index
        written = max(load64(cell), load64(cell + STRONG_WRITER))
        if written <= load64(state + BLOCK_START):
            nobody_wrote(state, site, warp, lanes, machine.SHARED_ADDRESS + offset, size)
        elif written > load64(state + FLOOR):
            check_read(state, warp, lanes, site, strength, machine.SHARED_ADDRESS + offset, size, cell)
        note_reader(state, cell + READERS + ENTRY_BYTES * warp, warp, lanes, site, strength, time)
        if access & ACQUIRES:
            clocks.synchronise_shared(state, warp, lanes, index, False, access)


def write_shared(
    ctx: int, state: int, warp_state: int, warp: int, lane: int, site: int, access: int, time: int, offset: int,
    element: int, count: int,
) -> None:  # fmt: skip
    """`lane` stores, or combines, `count` elements."""
    shift = load64(state + SHARED_SHIFT)
    warps = load64(state + WARPS)
    width = READERS + ENTRY_BYTES * warps
    strength = strength_in(access)
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
                check(state, WAR, warp, 1 << lane, site, strength, machine.SHARED_ADDRESS + offset, size, entry)
        note_writer(cell, warp, lane, site, strength, time)
        if strength:
            clocks.synchronise_shared(state, warp, 1 << lane, index, True, access)


def watch_shared(ctx: int, warp_state: int, site: int, mask: int, element: int, count: int, access: int) -> int:
    """Check a request with 32-bit offsets into shared memory in ADDRESSES. Returns 0."""
    state = load64(ctx + SANITIZER)
    time = clock_words.tick(state)
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
    strength = strength_in(access)
    size = element * count
    for index in range(offset >> shift, (offset + size) >> shift):
        cell = cells + GLOBAL_CELL_BYTES * index
        if access & 3 == LOAD:
            check_read(state, warp, 1 << lane, site, strength, address, size, cell)
            entry = global_reader(state, cell, warp)
            if entry:
                note_reader(state, entry, warp, 1 << lane, site, strength, time)
        else:
            item = ((index << shift) - offset) // element
            check_write(
                state, warp_state, warp, lane, site, access, time, address, size,
                cell, host + element * item, element, item,
            )  # fmt: skip
            for reader in range(GLOBAL_ENTRIES):
                entry = cell + READERS + ENTRY_BYTES * reader
                check(state, WAR, warp, 1 << lane, site, strength, address, size, entry)
            note_writer(cell, warp, lane, site, strength, time)
        if access & ACQUIRES:
            acquire_global(state, warp, cell, access)
        if strength and access & 3 != LOAD:
            if access & 3 == STORE:
                forget(state, cell)
            release_global(state, warp, cell, access)


def watch_memory(
    ctx: int, warp_state: int, site: int, space: int, mask: int, element: int, count: int, access: int
) -> int:
    """Check a request whose host addresses `translate` has determined. Returns 0."""
    state = load64(ctx + SANITIZER)
    time = clock_words.tick(state)
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
        lane = clock_words.lowest(left)
        group = (load32(warp_state + ADDRESSES + 4 * lane) & mask) | (1 << lane)
        clocks.meet_lanes(state, warp, group, load32(warp_state + STARTED))
        left &= ~group
    return 0


def watch_fence(ctx: int, scope: int) -> int:
    """A fence. Returns 0."""
    state = load64(ctx + SANITIZER)
    clock_words.tick(state)
    fence(state, warp_number(ctx), scope)
    return 0


def watch_cluster_fence(ctx: int) -> int:
    """A fence of at least cluster scope. Returns 0."""
    fence_cluster(load64(ctx + SANITIZER), warp_number(ctx))
    return 0


def watch_grid_wait(ctx: int) -> int:
    """`griddepcontrol.wait`: the warp acquires what the launches did that have ended by then. Returns 0."""
    state = load64(ctx + SANITIZER)
    clock_words.tick(state)
    counts = load64(state + COUNTS) + GRID_WAITS
    store64(counts, load64(counts) + 1)
    ended = load64(state + ENDED_LAUNCHES)
    add_view(state, warp_number(ctx), ended, ended)
    return 0


def watch_proxy_fence(ctx: int, mask: int) -> int:
    """`fence.proxy.async` for shared memory. Returns 0."""
    clocks.fence_proxy(load64(ctx + SANITIZER), warp_number(ctx), mask)
    return 0


UNDEFINED_SHUFFLE, MASKS_DIFFER, UNDEFINED_REGISTER = at.UNDEFINED_SHUFFLE, at.MASKS_DIFFER, at.UNDEFINED_REGISTER
SOURCES, MASKS = machine.ADDRESSES, machine.HOSTS
LANES = machine.LANES


# Undefined behaviour between lanes (PTX ISA 9.7.9.6, 9.7.13.3 ff.). A lane waits for all lanes in its mask until they
# reach the same instruction with the same mask; a shuffle reads one of those. A lane that is not in its own mask, or a
# mask with a lane on another path, is a fault even without the sanitizer.
def watch_members(ctx: int, warp_state: int, site: int, mask: int) -> int:
    """The lanes `mask` execute an operation with the member masks in HOSTS. Returns 0."""
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    clock_words.tick(state)
    for lane in range(LANES):
        if not (mask >> lane) & 1:
            continue
        members = load32(warp_state + MASKS + 4 * lane)
        for other in range(LANES):
            theirs = load32(warp_state + MASKS + 4 * other)
            if ((members & mask) >> other) & 1 and theirs != members:
                report(state, MASKS_DIFFER, site, first + lane, members, theirs, 0, 0, first + other)
                break
    return 0


def watch_sources(ctx: int, warp_state: int, site: int, mask: int) -> int:
    """The lanes `mask` read the lanes in ADDRESSES, with the member masks in HOSTS. Returns 0."""
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    clock_words.tick(state)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            source = load32(warp_state + SOURCES + 4 * lane)
            members = load32(warp_state + MASKS + 4 * lane)
            if not ((members & mask) >> source) & 1:
                report(state, UNDEFINED_SHUFFLE, site, first + lane, members, source, 0, 0, 0)
    return 0


def watch_undefined(ctx: int, site: int, role: int, mask: int) -> int:
    """The lanes `mask` use an undefined register. Returns 0."""
    if mask == 0:
        return 0
    state = load64(ctx + SANITIZER)
    first = LANES * warp_number(ctx)
    clock_words.tick(state)
    for lane in range(LANES):
        if (mask >> lane) & 1:
            report(state, UNDEFINED_REGISTER, site, first + lane, role, 0, role, 0, 0)
    return 0
