"""Distinct 32-byte sectors of one warp request: the unit in which a GPU moves bytes between L1 and L2."""

from __future__ import annotations

from harness.emulator.abi.raw_memory import load64, store64


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
