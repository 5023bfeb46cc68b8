"""Copies between memory and the warp's DATA area, in which each element of a vector access has a row of 32 lanes."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import LENIENT, LENIENT_LOAD, SHARED_BASE, SHARED_SIZE, SHARED_TAG
from harness.emulator.abi.fault_record import note_first, set_fault
from harness.emulator.abi.raw_memory import (
    fill_ones,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from harness.emulator.memory.banks import shared_offset

OUT_OF_BOUNDS = at.FAULT["out of bounds"]
MISALIGNED = at.FAULT["misaligned"]


def copy_in(host: int, out: int, lane: int, element_bytes: int, count: int) -> None:
    """Copy one lane's `count` elements to DATA, where each element has a row of 32 lanes."""
    for item in range(count):
        if element_bytes == 4:
            store32(out + 128 * item + 4 * lane, load32(host + 4 * item))
        elif element_bytes == 8:
            store64(out + 256 * item + 8 * lane, load64(host + 8 * item))
        elif element_bytes == 2:
            store16(out + 64 * item + 2 * lane, load16(host + 2 * item))
        else:
            store8(out + 32 * item + lane, load8(host + item))


def copy_out(host: int, source: int, lane: int, element_bytes: int, count: int) -> None:
    """Copy one lane's `count` elements from DATA to memory."""
    for item in range(count):
        if element_bytes == 4:
            store32(host + 4 * item, load32(source + 128 * item + 4 * lane))
        elif element_bytes == 8:
            store64(host + 8 * item, load64(source + 256 * item + 8 * lane))
        elif element_bytes == 2:
            store16(host + 2 * item, load16(source + 64 * item + 2 * lane))
        else:
            store8(host + item, load8(source + 32 * item + lane))


def gather(warp: int, mask: int, element_bytes: int, count: int) -> int:
    """Copy `count` elements of each active lane from its host address to the warp's DATA area."""
    if mask == at.FULL_MASK and element_bytes == 4:  # the common case
        for item in range(count):
            for lane in range(32):
                word = load32(load64(warp + at.HOSTS + 8 * lane) + 4 * item)
                store32(warp + at.DATA + 128 * item + 4 * lane, word)
        return 0
    for lane in range(32):
        if (mask >> lane) & 1:
            copy_in(load64(warp + at.HOSTS + 8 * lane), warp + at.DATA, lane, element_bytes, count)
    return 0


def scatter(warp: int, mask: int, element_bytes: int, count: int) -> int:
    """Copy each active lane's elements from DATA to its host address; where two overlap, the higher lane wins."""
    for lane in range(32):
        if (mask >> lane) & 1:
            copy_out(load64(warp + at.HOSTS + 8 * lane), warp + at.DATA, lane, element_bytes, count)
    return 0


def shared_fault(ctx: int, site: int, lane: int, offset: int, limit: int, size: int) -> None:
    """Record an out-of-bounds or misaligned access to the block's own shared memory."""
    kind = OUT_OF_BOUNDS if offset > limit else MISALIGNED
    address = (offset + load64(ctx + SHARED_TAG)) & 0xFFFFFFFF
    set_fault(ctx, kind, site, lane, address | at.SHARED_ADDRESS, size)


def shared_load(ctx: int, warp: int, site: int, mask: int, element_bytes: int, count: int) -> int:
    """`translate` and `gather` in one step for 32-bit shared offsets in ADDRESSES. Returns 1 on a fault, else 0.

    Loads of the common shapes come here only if an offset is invalid: see `codegen.functions.shared_loads`.
    """
    size = element_bytes * count
    base = load64(ctx + SHARED_BASE)
    limit = load64(ctx + SHARED_SIZE) - size
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit and not offset & (size - 1) and load64(ctx + LENIENT):
                note_first(ctx + LENIENT_LOAD, site)
                for item in range(count):
                    fill_ones(warp + at.DATA + element_bytes * (32 * item + lane), element_bytes)
                continue
            if offset > limit or offset & (size - 1):
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            copy_in(base + offset, warp + at.DATA, lane, element_bytes, count)
    return 0


def shared_store(ctx: int, warp: int, site: int, mask: int, element_bytes: int, count: int) -> int:
    """Store DATA to 32-bit shared offsets in ADDRESSES. Returns 1 on a fault, else 0."""
    # Inner loops use this: invariants are loaded once, and the common case has a loop of its own.
    size = element_bytes * count
    base = load64(ctx + SHARED_BASE)
    limit = load64(ctx + SHARED_SIZE) - size
    if mask == at.FULL_MASK and size == 4 and element_bytes == 4:
        for lane in range(32):
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit or offset & 3:
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            store32(base + offset, load32(warp + at.DATA + 4 * lane))
        return 0
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = load32(warp + at.ADDRESSES + 4 * lane)
            if offset > limit or offset & (size - 1):
                shared_fault(ctx, site, lane, offset, limit, size)
                return 1
            copy_out(base + offset, warp + at.DATA, lane, element_bytes, count)
    return 0


def permute(warp: int) -> int:
    """DATA[lane] = DATA_2[ADDRESSES[lane]] on 32-bit words: a shuffle with variable source lanes."""
    for lane in range(32):
        source = load32(warp + at.ADDRESSES + 4 * lane) & 31
        store32(warp + at.DATA + 4 * lane, load32(warp + at.DATA_2 + 4 * source))
    return 0


ROW_BYTES = 16
"""Bytes of a row of ldmatrix and stmatrix. A warp's rows are consecutive in its DATA area."""


def checked_offset(ctx: int, warp: int, site: int, lane: int, generic: int) -> int:
    """Offset in shared memory of the lane's row; -1, with a fault recorded, if it is invalid."""
    offset = int(shared_offset(warp, lane, generic))
    limit = load64(ctx + SHARED_SIZE) - ROW_BYTES
    if offset < 0:
        set_fault(ctx, OUT_OF_BOUNDS, site, lane, load64(warp + at.ADDRESSES + 8 * lane), ROW_BYTES)
        return -1
    if offset > limit or offset & (ROW_BYTES - 1):
        shared_fault(ctx, site, lane, offset, limit, ROW_BYTES)
        return -1
    return offset


def load_rows(ctx: int, warp: int, site: int, mask: int, generic: int) -> int:
    """Load a row for each lane in `mask` from shared memory to DATA.

    Returns 1 on a fault, else 0. ADDRESSES as in `count_shared`.
    """
    base = load64(ctx + SHARED_BASE)
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = checked_offset(ctx, warp, site, lane, generic)
            if offset < 0:
                return 1
            row = warp + at.DATA + ROW_BYTES * lane
            store64(row, load64(base + offset))
            store64(row + 8, load64(base + offset + 8))
    return 0


def store_rows(ctx: int, warp: int, site: int, mask: int, generic: int) -> int:
    """Store a row for each lane in `mask`.

    Of overlapping rows, the highest lane's remains. Returns 1 on a fault, else 0.
    """
    base = load64(ctx + SHARED_BASE)
    for lane in range(32):
        if (mask >> lane) & 1:
            offset = checked_offset(ctx, warp, site, lane, generic)
            if offset < 0:
                return 1
            row = warp + at.DATA + ROW_BYTES * lane
            store64(base + offset, load64(row))
            store64(base + offset + 8, load64(row + 8))
    return 0
