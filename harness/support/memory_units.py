"""Units of memory: binary multiples of a byte, and the sectors and cache lines of a GPU."""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30
SECTOR_BYTES = 32
SECTORS_PER_LINE = 4
LINE_BYTES = SECTOR_BYTES * SECTORS_PER_LINE
