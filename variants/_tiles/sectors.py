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


def matrix_rows(
    heads: int, kv_len: int, firsts: Integers, ends: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """The rows of matrices of q_len x kv_len, one for each of so many heads behind each other, in fewer than there are.

    `firsts` and `ends` have shape (sequences, q_len): the keys that a row sees, alike for the heads of a sequence.
    Rows that begin at the same element of a sector, or as far behind one, and see the same keys cost the same. Returned
    are, for each of these, that element, first, end, and how many rows are like it.
    """
    sequences, q_len = firsts.shape
    head_starts = np.arange(heads, dtype=np.int64) * (q_len * kv_len) % SECTOR_BYTES
    parts = []
    for of_sequence, first, end in zip(head_starts.reshape(sequences, -1), firsts, ends):
        starts, count = np.unique(of_sequence, return_counts=True)
        begin = (starts[:, None] + np.arange(q_len) * kv_len) % SECTOR_BYTES
        parts.append([each.reshape(-1) for each in np.broadcast_arrays(begin, first, end, count[:, None])])
    start, first, end, count = map(np.concatenate, zip(*parts))
    return start, first, end, count


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
