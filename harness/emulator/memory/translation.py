"""Translates virtual addresses of a warp's request to host addresses; checks bounds and alignment, and counts sectors.

A copy that bypasses L1 (`cp.async.cg`) is counted as by an H100 (tests/hardware/copies_h100.json), by its destination:
L1 counts each sector of shared memory once for each line of global memory that its bytes come from, and requests a
sector of global memory from L2 once for each sector of shared memory that it goes to.
"""

from __future__ import annotations

from harness.emulator.abi import context
from harness.emulator.abi import layout as at
from harness.emulator.abi.cluster_memory import ENDED, STRAY, place_of, rank_of_place
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.memory.trace import TARGET_AT, is_recorded, record

SPACE_SHARED = at.SPACES["shared"]
SPACE_LOCAL, WRITTEN = at.SPACES["local"], at.SPACES["written"]
ENDED_BLOCK = at.FAULT["ended block"]
OUT_OF_BOUNDS = at.FAULT["out of bounds"]
MISALIGNED, READ_ONLY = at.FAULT["misaligned"], at.FAULT["read-only memory"]
NO_WINDOW = -3
"""In place of a column, for an address at which there is no memory."""
LINES_OF_TARGETS = at.DATA_2 + 128
"""Scratch, 8 bytes per lane: the destination of a copy's bytes, and their source line."""


def row_of(ctx: int, window: int) -> int:
    """The address of the row of a window's variable or buffer, with its base and size; 0 if there is none."""
    if at.FIRST_VARIABLE_WINDOW <= window < at.FIRST_BUFFER_WINDOW:
        variable = window - at.FIRST_VARIABLE_WINDOW
        if variable < load64(ctx + context.VARIABLE_COUNT):
            return load64(ctx + context.VARIABLES) + at.VARIABLE_BYTES * variable
        return 0
    buffer = window - at.FIRST_BUFFER_WINDOW
    if buffer < 0 or buffer >= load64(ctx + context.BUFFER_COUNT):
        return 0
    return load64(ctx + context.BUFFERS) + 16 * buffer


def base_of(ctx: int, window: int) -> int:
    """The host address of a window: of lane 0 for local memory, of the first block of a cluster for shared memory."""
    if window == at.SHARED_WINDOW:
        return load64(ctx + (context.SHARED_ORIGIN if load64(ctx + context.TAGGED) else context.SHARED_BASE))
    if window == at.LOCAL_WINDOW:
        return load64(ctx + context.LOCAL_BASE)
    if window == at.PARAM_WINDOW:
        return load64(ctx + context.PARAMS)
    row = row_of(ctx, window)
    return load64(row) if row else 0


def limit_of(ctx: int, window: int) -> int:
    """The bytes of a window; -1 if an address of shared memory identifies its block, which has to be checked."""
    if window == at.SHARED_WINDOW:
        return -1 if load64(ctx + context.TAGGED) else load64(ctx + context.SHARED_SIZE)
    if window == at.LOCAL_WINDOW:
        return load64(ctx + context.LOCAL_SIZE)
    if window == at.PARAM_WINDOW:
        return load64(ctx + context.PARAMS_SIZE)
    row = row_of(ctx, window)
    return load64(row + 8) if row else 0


def column_of(ctx: int, window: int) -> int:
    """The column of a window's counters; `NOT_COUNTED` or `CONSTANT` if it has none, `NO_WINDOW` without memory."""
    if window == at.SHARED_WINDOW or window == at.PARAM_WINDOW:
        return at.NOT_COUNTED
    if window == at.LOCAL_WINDOW:
        return load64(ctx + context.BUFFER_COUNT)
    row = row_of(ctx, window)
    if row == 0:
        return NO_WINDOW
    return load64(row + 16) if window < at.FIRST_BUFFER_WINDOW else window - at.FIRST_BUFFER_WINDOW


def host_address(ctx: int, lane: int, address: int, size: int) -> int:
    """The host address of `size` bytes at a generic address of a lane; 0 if there is no such memory."""
    window = address >> at.WINDOW_BITS
    limit = limit_of(ctx, window)
    offset = address & at.OFFSET_MASK
    if limit == -1:
        offset = place_of(ctx, address, size)
        return base_of(ctx, window) + offset if offset >= 0 else 0
    if window >= at.FIRST_VARIABLE_WINDOW:
        offset -= at.BUFFER_START
    if offset < 0 or offset + size > limit:
        return 0
    return base_of(ctx, window) + offset + (lane * limit if window == at.LOCAL_WINDOW else 0)


def count(ctx: int, site: int, column: int, requests: int, requested: int, sectors: int, distinct: int) -> None:
    """Add to the counters of one memory instruction and one buffer. `distinct` determines the minimum of sectors."""
    entry = load64(ctx + context.COUNTERS) + 8 * at.COUNTERS_PER_ENTRY * (
        site * load64(ctx + context.COUNTER_COLUMNS) + column
    )
    store64(entry, load64(entry) + requests)
    store64(entry + 8, load64(entry + 8) + requested)
    store64(entry + 16, load64(entry + 16) + sectors)
    store64(entry + 24, load64(entry + 24) + ((distinct + 31) >> 5))


def insert_sector(seen: int, count: int, sector: int) -> int:
    """Add a sector number to the `count` distinct ones at address `seen`, and return the new count.

    Lanes mostly access the previous lane's sector, so the search runs backwards.
    """
    index = count - 1
    while index >= 0:
        if load64(seen + 8 * index) == sector:
            return count
        index -= 1
    store64(seen + 8 * count, sector)
    return count + 1


def is_new(warp: int, mask: int, lane: int, host: int) -> bool:
    """Whether no lane of `mask` below `lane` has this host address."""
    for other in range(lane - 1, -1, -1):
        if (mask >> other) & 1 and load64(warp + at.HOSTS + 8 * other) == host:
            return False
    return True


def translate_lanes(ctx: int, warp: int, site: int, space: int, mask: int, size: int, sizes: int, targets: int) -> int:
    """Translate the active lanes' virtual addresses to host addresses, checked and counted. Returns 1 on a fault.

    Most requests of global memory do not come here: see `codegen.functions.global_accesses`.

    `sizes` is the address of 32 words, the bytes that each lane reads; 0 if all read `size`. `targets` is the address
    of 32 words, the offsets in shared memory to which a copy past L1 goes; 0 for other accesses. Alignment is that of
    `size`.
    """
    words = 1 if size < 4 else size >> 2
    requests = 1
    # Usually all lanes are in one window. Otherwise each window is processed separately.
    while mask:
        window = -1
        others = 0
        base = 0
        limit = 0
        start = 0
        buffer = -1
        stride = 0
        distinct = 0
        fetched = 0
        highest = 0
        requested = 0
        unique_bytes = 0
        for lane in range(32):
            if not (mask >> lane) & 1:
                continue
            address = load64(warp + at.ADDRESSES + 8 * lane)
            if space == SPACE_SHARED:
                address = (address & 0xFFFFFFFF) | at.SHARED_ADDRESS
            elif space == SPACE_LOCAL:
                address = (address & 0xFFFFFFFF) | (at.LOCAL_WINDOW << at.WINDOW_BITS)
            here = address >> at.WINDOW_BITS
            if here != window:
                if window != -1:
                    others |= 1 << lane
                    continue
                window = here
                base, limit, buffer = base_of(ctx, here), limit_of(ctx, here), column_of(ctx, here)
                start = 0 if here < at.FIRST_VARIABLE_WINDOW else at.BUFFER_START
                stride = limit if here == at.LOCAL_WINDOW else 0
                if buffer == NO_WINDOW:
                    set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
                    return 1
                if space == WRITTEN and (buffer == at.CONSTANT or here == at.PARAM_WINDOW):
                    set_fault(ctx, READ_ONLY, site, lane, address, size)
                    return 1
                if requests and buffer >= 0:
                    count(ctx, site, buffer, 1, 0, 0, 0)
            wanted = load32(sizes + 4 * lane) if sizes else size
            offset = (address & at.OFFSET_MASK) - start
            if offset < 0 or offset + wanted > limit:
                place = place_of(ctx, address, wanted) if limit == -1 else STRAY
                if place < 0 or (
                    space == SPACE_SHARED and rank_of_place(ctx, place) != load64(ctx + context.CLUSTER_RANK)
                ):
                    set_fault(ctx, ENDED_BLOCK if place == ENDED else OUT_OF_BOUNDS, site, lane, address, wanted)
                    return 1
                offset = place
            if address & (size - 1):
                set_fault(ctx, MISALIGNED, site, lane, address, size)
                return 1
            host = base + offset + lane * stride
            store64(warp + at.HOSTS + 8 * lane, host)
            if buffer >= 0:
                # Addresses usually ascend from lane to lane; a search is only needed otherwise.
                if host > highest:
                    highest = host
                    unique_bytes += wanted
                elif is_new(warp, mask & ~others, lane, host):
                    unique_bytes += wanted
                # Local memory is interleaved by word: the same offset in all lanes is one row of 128 bytes.
                sector = (offset >> 2) * 4 + (lane >> 3) if stride else offset >> 5
                if targets:
                    target = load32(targets + 4 * lane) >> 5 << TARGET_AT
                    before = distinct
                    distinct = insert_sector(warp + LINES_OF_TARGETS, distinct, target | sector >> 2)
                    # Events need what is counted here; the cache model needs more.
                    if distinct > before or load64(ctx + context.EVENT_CLOCKS) == 0:
                        fetched = insert_sector(warp + at.DATA_3, fetched, target | sector)
                else:
                    distinct = insert_sector(warp + at.DATA_3, distinct, sector)
            requested += wanted
        if buffer >= 0:
            count(ctx, site, buffer, 0, requested, distinct * words if stride else distinct, unique_bytes)
            if is_recorded(ctx, buffer):
                record(ctx, warp, site, buffer, fetched if targets else distinct)
            requests = 0
        mask = others
    return 0
