"""Virtual addresses of a warp's request -> host addresses: checked for bounds and alignment, counted in sectors."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import (
    BUFFER_COUNT,
    BUFFERS,
    COUNTER_COLUMNS,
    COUNTERS,
    LOCAL_BASE,
    LOCAL_SIZE,
    PARAMS,
    PARAMS_SIZE,
    SHARED_BASE,
    SHARED_SIZE,
    VARIABLE_COUNT,
    VARIABLES,
)
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load32, load64, store64
from harness.emulator.memory.sectors import insert_sector
from harness.emulator.memory.trace import is_traced, record

SPACE_SHARED = at.SPACES["shared"]
SPACE_LOCAL = at.SPACES["local"]
OUT_OF_BOUNDS = at.FAULT["out of bounds"]
MISALIGNED = at.FAULT["misaligned"]
OFFSET_MASK = (1 << at.WINDOW_BITS) - 1


def count(ctx: int, site: int, column: int, requests: int, requested: int, sectors: int, distinct: int) -> None:
    """Add to the counters of one memory instruction and one buffer. `distinct` bytes need so many sectors at least."""
    entry = load64(ctx + COUNTERS) + 8 * at.COUNTERS_PER_ENTRY * (site * load64(ctx + COUNTER_COLUMNS) + column)
    store64(entry, load64(entry) + requests)
    store64(entry + 8, load64(entry + 8) + requested)
    store64(entry + 16, load64(entry + 16) + sectors)
    store64(entry + 24, load64(entry + 24) + ((distinct + 31) >> 5))


def is_new(warp: int, mask: int, first: int, lane: int, host: int) -> bool:
    """Whether no active lane from `first` up to, not including, `lane` has this host address."""
    for other in range(lane - 1, first - 1, -1):
        if (mask >> other) & 1 and load64(warp + at.HOSTS + 8 * other) == host:
            return False
    return True


def translate_lanes(ctx: int, warp: int, site: int, space: int, mask: int, size: int, sizes: int) -> int:
    """As `translate`. `sizes`: address of 32 words, the bytes that each lane reads; 0 where all read `size`.

    Alignment is that of `size`.
    """
    window = -1
    base = 0
    limit = 0
    start = 0
    buffer = -1
    stride = 0
    distinct = 0
    lanes = 0
    first = 0
    highest = 0
    requested = 0
    unique_bytes = 0
    words = 1 if size < 4 else size >> 2
    for lane in range(32):
        if not (mask >> lane) & 1:
            continue
        address = load64(warp + at.ADDRESSES + 8 * lane)
        if space == SPACE_SHARED:
            address = (address & 0xFFFFFFFF) | (at.SHARED_WINDOW << at.WINDOW_BITS)
        elif space == SPACE_LOCAL:
            address = (address & 0xFFFFFFFF) | (at.LOCAL_WINDOW << at.WINDOW_BITS)
        here = address >> at.WINDOW_BITS
        if here != window:
            if lanes > 0 and buffer >= 0:
                sectors = distinct * words if stride else distinct
                count(ctx, site, buffer, 0, requested, sectors, unique_bytes)
                if is_traced(ctx) and buffer < load64(ctx + BUFFER_COUNT):
                    record(ctx, warp, site, buffer, distinct)
            distinct = 0
            first = lane
            highest = 0
            requested = 0
            unique_bytes = 0
            stride = 0
            start = 0
            window = here
            fresh = lanes == 0
            lanes = 0
            if here == at.SHARED_WINDOW:
                base, limit, buffer = load64(ctx + SHARED_BASE), load64(ctx + SHARED_SIZE), -1
            elif here == at.LOCAL_WINDOW:
                base, limit = load64(ctx + LOCAL_BASE), load64(ctx + LOCAL_SIZE)
                buffer = load64(ctx + BUFFER_COUNT)
                stride = limit
            elif here == at.PARAM_WINDOW:
                base, limit, buffer = load64(ctx + PARAMS), load64(ctx + PARAMS_SIZE), -1
            elif at.FIRST_VARIABLE_WINDOW <= here < at.FIRST_BUFFER_WINDOW:
                variable = here - at.FIRST_VARIABLE_WINDOW
                if variable >= load64(ctx + VARIABLE_COUNT):
                    set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
                    return 1
                row = load64(ctx + VARIABLES) + at.VARIABLE_BYTES * variable
                base, limit, buffer = load64(row), load64(row + 8), load64(row + 16)
                start = at.BUFFER_START
            else:
                buffer = here - at.FIRST_BUFFER_WINDOW
                if buffer < 0 or buffer >= load64(ctx + BUFFER_COUNT):
                    set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, size)
                    return 1
                base = load64(load64(ctx + BUFFERS) + 16 * buffer)
                limit = load64(load64(ctx + BUFFERS) + 16 * buffer + 8)
                start = at.BUFFER_START
            if fresh and buffer >= 0:
                count(ctx, site, buffer, 1, 0, 0, 0)
        wanted = load32(sizes + 4 * lane) if sizes else size
        offset = (address & OFFSET_MASK) - start
        if offset < 0 or offset + wanted > limit:
            set_fault(ctx, OUT_OF_BOUNDS, site, lane, address, wanted)
            return 1
        if address & (size - 1):
            set_fault(ctx, MISALIGNED, site, lane, address, size)
            return 1
        host = base + offset + lane * stride
        store64(warp + at.HOSTS + 8 * lane, host)
        if buffer >= 0:
            # Addresses mostly rise from lane to lane; only where they do not is there something to look up.
            if host > highest:
                highest = host
                unique_bytes += wanted
            elif is_new(warp, mask, first, lane, host):
                unique_bytes += wanted
            # Local memory is interleaved by word: the same offset in all lanes is one row of 128 bytes.
            sector = (offset >> 2) * 4 + (lane >> 3) if stride else offset >> 5
            distinct = insert_sector(warp + at.DATA_3, distinct, sector)
        lanes += 1
        requested += wanted
    if lanes > 0 and buffer >= 0:
        count(ctx, site, buffer, 0, requested, distinct * words if stride else distinct, unique_bytes)
        if is_traced(ctx) and buffer < load64(ctx + BUFFER_COUNT):
            record(ctx, warp, site, buffer, distinct)
    return 0


def translate(ctx: int, warp: int, site: int, space: int, mask: int, size: int) -> int:
    """Virtual addresses of the active lanes -> host addresses, checked and counted. 1 on a fault, else 0."""
    return int(translate_lanes(ctx, warp, site, space, mask, size, 0))
