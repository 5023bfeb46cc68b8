"""How much of LLVM a kernel goes through: two compilers in one, as just-in-time compilers have them."""

from __future__ import annotations

from enum import Enum

MOST_OPTIMIZED_STATEMENTS = 7000
"""Of PTX. What takes longer than in proportion is code that a loop of 64 or 128 steps was unrolled to."""


class Tier(Enum):
    """Both give the same bits and the same counts."""

    BASELINE = "baseline"
    """Compiled in a tenth of the time, see `codegen.outlining`; runs up to twice as long."""
    OPTIMIZED = "optimized"

    def of(self, ptx: str) -> Tier:
        """The same tier, or the other one where the text is so long that LLVM would take minutes to optimize it."""
        return Tier.BASELINE if ptx.count(";") > MOST_OPTIMIZED_STATEMENTS else self
