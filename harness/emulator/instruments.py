"""What an emulated kernel records beyond bounds and sectors, which it always does. Each instrument costs run time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instruments:
    """Decided when native code is generated: what is off leaves no trace in the code."""

    bank_conflicts: bool = False
    """Count the wavefronts of shared memory, see `memory/banks.py`."""

    sanitizer: bool = False
    """Find races and reads of memory that nobody wrote, see `sanitizer/`. Blocks then run on one core."""

    instructions: bool = False
    """Count how often each basic block is executed, and note the way of one cluster's warps through them, see
    `codegen/block_counts.py`."""


PLAIN = Instruments()
"""Nothing beyond bounds and sectors."""
