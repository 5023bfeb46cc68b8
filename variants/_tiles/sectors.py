"""How many bytes a copy between global memory and a tile moves: 32 x distinct 32-byte sectors per warp request.

All copies here are runs: consecutive elements, as many per lane as the copy says, 32 lanes per warp request. A request
that does not start at a sector's first byte touches one sector more, and so does each end of a run; buffers themselves
start at a sector's first byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

SECTOR_BYTES = 32
LANES = 32

Integers = npt.NDArray[np.int64]


def run_bytes(
    first: npt.ArrayLike, elements: npt.ArrayLike, itemsize_bytes: int, elements_per_lane: int = 1
) -> Integers:
    """Bytes of runs that start at element `first` of their buffer; arrays broadcast. No elements, no bytes."""
    count = np.asarray(elements, dtype=np.int64)
    # A full request is a multiple of 64 bytes long, so all requests of a run begin at the same byte of a sector.
    phase = np.asarray(first, dtype=np.int64) * itemsize_bytes % SECTOR_BYTES
    requests, tail = np.divmod(count, LANES * elements_per_lane)
    sectors = requests * _sectors(phase, LANES * elements_per_lane * itemsize_bytes)
    sectors = sectors + np.where(tail > 0, _sectors(phase, tail * itemsize_bytes), 0)
    return SECTOR_BYTES * sectors


def tiled_run_bytes(first: Integers, elements: Integers, step: int, itemsize_bytes: int) -> Integers:
    """Bytes of runs that are copied `step` elements at a time, each time as a run of its own."""
    total = np.zeros_like(first)
    for offset in range(0, int(np.max(elements, initial=0)), step):
        total += run_bytes(first + offset, np.clip(elements - offset, 0, step), itemsize_bytes)
    return total


def _sectors(phase: Integers, length_bytes: Any) -> Integers:
    return -(-(phase + length_bytes) // SECTOR_BYTES)
