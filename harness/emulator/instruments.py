"""What an emulated kernel records in addition to bounds and sectors. Each instrument costs run time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Instruments:
    """Chosen when native code is generated: the code contains no trace of instruments that are off."""

    bank_conflicts: bool = False
    """Count the wavefronts of shared memory requests, see `memory/banks.py`."""

    sanitizer: bool = False
    """Detect races and reads of unwritten memory, see `sanitizer/`. Blocks then run on one core."""

    instructions: bool = False
    """Count executions of basic blocks, and record the path of one cluster's warps through them, see
    `codegen/instrumentation/block_counts.py`."""

    lenient: bool = False
    """Record a note, in place of a fault, for what is undefined and yet accepted by an H100: a `bar.warp.sync` that
    names lanes on another path, a barrier of the block after lanes or whole warps have returned and, without the
    sanitizer, loads beyond shared memory and arrivals at an mbarrier of a block that has ended."""


PLAIN = Instruments()
"""Nothing but bounds and sectors."""
