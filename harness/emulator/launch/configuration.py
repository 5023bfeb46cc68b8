"""What a kernel is launched with: its grid and block, and how the emulator is to run them."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """Grid and block, padded to three dimensions, and dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int

    @property
    def blocks(self) -> int:
        """Thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


@dataclass(frozen=True)
class LaunchOptions:
    """How to run, as opposed to what."""

    step_limit: int
    """Instructions that one warp may execute."""
    threads: int
    """CPU cores to use."""
    seed: int
    """0: warps take turns in order; other values permute them."""
    shuffle: bool = False
    """The seed permutes the blocks, too, and warps have turns of drawn lengths. Blocks then run on one core."""


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
