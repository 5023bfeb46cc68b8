"""Constants and memory layout of the cache model, shared by Python and compiled code.

`launch/cache_hierarchy.py` describes the model.
"""

from __future__ import annotations

from harness.support.memory_units import SECTOR_BYTES

L1_WAYS = 4
L1_WAYS_DRAWN = 8
"""Number of ways of an L1 with random replacement; see `residency.py`."""
L1_SKEW = 13
"""Number of sets by which each run of lines is shifted against the previous run."""
L2_WAYS = 16
L2_SKEW = 9491
"""Number of sets of L2, which has many more than L1, by which each run of lines is shifted against the previous run."""
L2_USABLE = 29 / 30
"""Usable fraction of the L2's size. On an H200, 28 of 30 MiB that all SMs read repeatedly stay in L2, but 30 MiB do
not."""
L2_DIRTY_WAYS = 7
"""Maximum dirty lines per set; beyond it, the oldest is written back early."""
LAUNCH_BYTES = 76 * SECTOR_BYTES
"""Bytes that a launch reads from DRAM besides its buffers and its code: parameters, constants, launch descriptor."""
QUANTUM_INSTRUCTIONS = 128
"""Number of instructions that every resident block runs before the next one has a turn: far less than a tile takes."""

# An access is one 64-bit word, from the highest bit down: line (29 bits), kind (3), mask of sectors (4), and the number
# of instructions since the block's previous access (28).
DELAY_BITS = 28
MASK_BITS = 4
KIND_BITS = 3
LINE_BITS = 29
LOAD, LOAD_BEYOND_L1, STORE, ATOMIC, REDUCTION, BULK_STORE = range(6)
"""Kinds of access. An atomic returns the old value to L1; a reduction (`red`) returns nothing. TMA stores are not
merged."""

COUNTERS = ("l2_read", "l2_write", "dram_read", "dram_write")
"""Counted sectors, for each buffer."""
