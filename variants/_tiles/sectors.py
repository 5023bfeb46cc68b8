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


def tiled_run_bytes(start: Integers, first: Integers, end: Integers, step: int, itemsize_bytes: int) -> Integers:
    """Bytes of elements `first` to `end` of rows that start at element `start` of their buffer, copied tile by tile.

    A tile is `step` elements of a row, its warp requests are 32 of those, counted from the tile's own beginning: what
    lies outside of `first` to `end` is left out of them.
    """
    total = np.zeros_like(start)
    for tile in range(int(np.min(first)) // step * step, int(np.max(end)), step):
        for request in range(tile, tile + step, LANES):
            begin = np.maximum(first, request)
            elements = np.minimum(end, min(request + LANES, tile + step)) - begin
            total += run_bytes(start + begin, np.maximum(elements, 0), itemsize_bytes)
    return total


def _sectors(phase: Integers, length_bytes: Any) -> Integers:
    return -(-(phase + length_bytes) // SECTOR_BYTES)
