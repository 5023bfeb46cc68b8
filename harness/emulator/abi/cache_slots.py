"""State of the cache model: one array of 64-bit slots. Each name is its slot's byte offset, as in `context`."""

from __future__ import annotations

(
    L1_TAGS, L1_VALID, L1_USED, L1_SETS, L1_SET_WAYS, L1_RANDOM,
    L2_TAGS, L2_VALID, L2_DIRTY, L2_USED, L2_SETS, L2_SET_WAYS, L2_PARTITIONS,
    NOW, TICK, COUNTERS, BUFFER_COUNT, FIRST_LINES,
    RESIDENTS, NEXT_ACCESS, END_ACCESS, ACCESS_TIME, SM, PARTITION, STORED_LINE, STORED_MASK,
) = range(0, 8 * 26, 8)  # fmt: skip

SLOT: dict[str, int] = {name: offset // 8 for name, offset in vars().items() if name.isupper()}
"""Slot number by name."""
