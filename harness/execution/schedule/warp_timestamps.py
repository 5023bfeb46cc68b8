"""Timestamps that the warps of a run on a GPU recorded: plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

STAMP = np.dtype([("time", "u8"), ("sm", "u4"), ("kind", "u4")])
"""One timestamp: nanoseconds of the GPU's clock; multiprocessor; event of `harness.ptx.timestamps`, 0 for unused."""


@dataclass(frozen=True)
class StampedLaunch:
    """The timestamps of one launch."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    warp_timestamps: npt.NDArray[np.void]
    """Array (blocks, warps, places) of `STAMP`; the last place is for a warp's end."""


@dataclass(frozen=True)
class StampedRun:
    """The timestamps of a run of a variant's plan."""

    variant: str
    problem: str
    """One-line description of the problem."""
    device: str
    """Name of the GPU."""
    launches: tuple[StampedLaunch, ...]
