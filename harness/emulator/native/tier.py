"""Defines two tiers of optimization for kernels, like those of just-in-time compilers."""

from __future__ import annotations

from enum import Enum

MOST_OPTIMIZED_STATEMENTS = 7000
"""Maximum PTX statements of a kernel that is optimized. Beyond, as with loops unrolled 64 or 128 times, compile time
grows faster than the length."""

SHORT_STATEMENTS = 300
"""Kernels of at most so many PTX statements are optimized at once, which takes about 0.1 s."""
_OPTIMIZING_SECONDS = 4e-4
"""Time that it takes to optimize a statement."""


class Tier(Enum):
    """A tier. Both produce the same results, bit by bit, and the same counts."""

    BASELINE = "baseline"
    """Takes a tenth of the time to compile (`codegen.outlining`), and up to three times as long to run."""
    OPTIMIZED = "optimized"

    def of(self, ptx: str) -> Tier:
        """Return this tier, or the baseline if the text is so long that LLVM would take minutes to optimize it."""
        return Tier.BASELINE if ptx.count(";") > MOST_OPTIMIZED_STATEMENTS else self

    @classmethod
    def after(cls, seconds: float, ptx: str, short: int = SHORT_STATEMENTS) -> Tier:
        """Return the tier for a kernel whose launches have taken so many seconds.

        A kernel of more than `short` statements is optimized when they have taken as long as that will take.
        """
        statements = ptx.count(";")
        return cls.OPTIMIZED if statements <= short or seconds > _OPTIMIZING_SECONDS * statements else cls.BASELINE
