"""How much of LLVM a kernel goes through: two compilers in one, as just-in-time compilers have them."""

from __future__ import annotations

from enum import Enum


class Tier(Enum):
    """Both give the same bits and the same counts."""

    BASELINE = "baseline"
    """Compiled in two fifths of the time, runs two to three times as long: for kernels that run briefly."""
    OPTIMIZED = "optimized"
