"""How many bytes asynchronous copies of a tile move, as an H100 counts them at L1.

A lane copies 4, 8 or 16 bytes (`cp.async`), and a warp request is 32 lanes that copy neighbouring units of a tile, the
rows of which lie one after the other in global memory. Copies of up to 8 bytes pass L1: a request costs the distinct
sectors that it reads, as any load. Copies of 16 bytes do not. L1 knows these by where they go: a request costs the
distinct pairs of a sector of shared memory and the line of 128 bytes of global memory that its bytes are from. Where
rows begin in the middle of a sector on one side and not on the other, that is more than there are sectors.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers

LINE_BYTES = 128
PAST_L1_BYTES = 16
"""What a lane copies at once where the copy does not pass L1."""


@dataclass(frozen=True)
class TileCopy:
    """How the lanes of a block bring a tile of rows on chip, each some neighbouring elements at once."""

    row_elements: int
    """Elements of a row."""
    itemsize_bytes: int
    elements_per_lane: int
    """Elements that a lane copies at once; a divisor of `row_elements`."""
    pitch_bytes: int
    """From the beginning of a row in shared memory to that of the next one."""
    swizzled: bool = False
    """Whether the pieces of 16 bytes of row r are exchanged: piece c lies where piece c XOR (r mod 8) would."""
    row_stride_bytes: int | None = None
    """From the beginning of a row in global memory to that of the next one; None if rows lie one after the other."""
    asynchronous: bool = True
    """Whether lanes copy with `cp.async`; else they load, or store, and every request passes L1."""

    def bytes(self, start: npt.ArrayLike, end: npt.ArrayLike, begin: npt.ArrayLike = 0) -> Integers:
        """Bytes of copying elements `begin` to `end` of tiles whose first row begins at element `start` of its buffer.

        The arrays broadcast. Lanes have the same places in a tile whether they copy or not.
        """
        start, begin, end = np.broadcast_arrays(*(np.asarray(each, np.int64) for each in (start, begin, end)))
        phase = start * self.itemsize_bytes % LINE_BYTES
        cases, of_case = np.unique(np.stack([phase, begin, end]).reshape(3, -1), axis=1, return_inverse=True)
        sectors = np.array([_sectors(self, *case) for case in cases.T.tolist()], dtype=np.int64)
        return SECTOR_BYTES * sectors[of_case.reshape(-1)].reshape(start.shape)


@functools.lru_cache(maxsize=1 << 14)
def _sectors(copy: TileCopy, phase_bytes: int, begin: int, end: int) -> int:
    """Sectors of one tile that starts `phase_bytes` after the start of a line."""
    if end <= begin:
        return 0
    lane_bytes = copy.elements_per_lane * copy.itemsize_bytes
    unit = np.arange(begin // copy.elements_per_lane, end // copy.elements_per_lane, dtype=np.int64)
    row, column = np.divmod(unit, copy.row_elements // copy.elements_per_lane)
    stride_bytes = copy.row_stride_bytes
    if stride_bytes is None:
        stride_bytes = copy.row_elements * copy.itemsize_bytes
    source = phase_bytes + row * stride_bytes + column * lane_bytes
    request = unit // LANES
    if lane_bytes != PAST_L1_BYTES or not copy.asynchronous:
        return _distinct(request, source // SECTOR_BYTES)
    piece = column ^ row % 8 if copy.swizzled else column
    target = row * copy.pitch_bytes + piece * PAST_L1_BYTES
    return _distinct(request, target // SECTOR_BYTES, source // LINE_BYTES)


def _distinct(*keys: Integers) -> int:
    return np.unique(np.stack(keys), axis=1).shape[1]
