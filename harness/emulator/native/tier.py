"""Defines two tiers of optimization for kernels, like those of just-in-time compilers."""

from __future__ import annotations

from enum import Enum

MOST_OPTIMIZED_STATEMENTS = 7000
"""Maximum PTX statements of a kernel that is optimized. Beyond, as with loops unrolled 64 or 128 times, compile time
grows faster than the length."""


class Tier(Enum):
    """A tier. Both produce the same results, bit by bit, and the same counts."""

    BASELINE = "baseline"
    """Takes a tenth of the time to compile (`codegen.outlining`), and up to twice as long to run."""
    OPTIMIZED = "optimized"

    def of(self, ptx: str) -> Tier:
        """Return this tier, or the baseline if the text is so long that LLVM would take minutes to optimize it."""
        return Tier.BASELINE if ptx.count(";") > MOST_OPTIMIZED_STATEMENTS else self
