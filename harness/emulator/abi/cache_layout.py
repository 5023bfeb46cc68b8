"""What Python and the compiled cache model share: constants of the model, and where things lie in its memory.

`launch/cache_hierarchy.py` says what is modelled.
"""

from __future__ import annotations

SECTOR_BYTES = 32
SECTORS_PER_LINE = 4
LINE_BYTES = SECTOR_BYTES * SECTORS_PER_LINE

L1_WAYS = 4
L1_WAYS_DRAWN = 8
"""Of an L1 that draws lots, see `residency.py`."""
L1_SKEW = 13
"""By how many sets a run of lines is shifted against the run before it."""
L2_WAYS = 16
L2_SKEW = 9491
"""The same for L2, whose sets are many."""
L2_USABLE = 29 / 30
"""Of the L2's size. Of a range that all SMs of an H200 read again and again 28 of 30 MiB stay, and 30 do not."""
L2_DIRTY_WAYS = 7
"""Lines of one set that hold what DRAM does not; beyond, the oldest of them is written back early."""
FETCH_SECTORS = 2
"""What DRAM delivers at the least."""
LAUNCH_BYTES = 76 * SECTOR_BYTES
"""What a launch reads from DRAM besides its buffers and its code: parameters, constants, its own description."""
QUANTUM_INSTRUCTIONS = 128
"""How far every resident block runs before the next one has its turn: much less than a tile takes."""

# An access is one 64-bit word: from the highest bit down, line (29 bits), kind (3), sectors of the line (4), and the
# instructions since the block's access before it (28).
DELAY_BITS = 28
MASK_BITS = 4
KIND_BITS = 3
LINE_BITS = 29
LOAD, LOAD_BEYOND_L1, STORE, ATOMIC, REDUCTION, BULK_STORE = range(6)
"""Of an atomic its old value comes back to L1; of a reduction (`red`) nothing does. What TMA stores is not merged."""

COUNTERS = ("l2_read", "l2_write", "dram_read", "dram_write")
"""Sectors, for each buffer."""
