"""Rows of ldmatrix and stmatrix: 16 bytes of shared memory each, consecutive in the warp's DATA area."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SHARED_BASE, SHARED_SIZE
from harness.emulator.abi.fault_record import set_fault
from harness.emulator.abi.raw_memory import load64, store64
from harness.emulator.memory.banks import shared_offset
from harness.emulator.memory.copies import OUT_OF_BOUNDS, shared_fault

ROW_BYTES = 16


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
