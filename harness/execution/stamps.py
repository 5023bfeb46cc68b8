"""Times that the warps of a run on a GPU noted themselves: plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STAMP = np.dtype([("time", "u8"), ("sm", "u4"), ("kind", "u4")])
"""Nanoseconds of the GPU's own clock; the multiprocessor; what was noted, a number of `harness.ptx.timestamps`, 0 where
nothing was."""


@dataclass(frozen=True)
class StampedLaunch:
    """One launch."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stamps: npt.NDArray[np.void]
    """(blocks, warps, places), of `STAMP`; the last place is for a warp's end."""


@dataclass(frozen=True)
class StampedRun:
    """A run of a variant's plan."""

    variant: str
    problem: str
    """In one line."""
    device: str
    """The GPU."""
    launches: tuple[StampedLaunch, ...]
