"""Bytes of an additive bias in kernels whose threads each read the elements of their scores (Bias in scores.cuh)."""

from __future__ import annotations

import numpy as np

from variants._features import band, has_spans
from variants._tiles import THREADS_X, blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers
from variants._tiles.visits import Visits

PER_SECTOR = SECTOR_BYTES // 4
ROWS_PER_REQUEST, KEYS_PER_REQUEST = 4, THREADS_X
"""A warp holds 4 rows and 8 neighbouring keys of S for each element that a thread has, and asks for them at once."""


def bias_bytes(visits: Visits) -> int:
    """Return bytes of reading the bias of every score once, at the `sectors` level; 0 without a bias.

    A score is read if its key lies before the end of what its row sees, in a tile that the block visits. Rows that a
    tile has room for after the last read the bias of the last.
    """
    schedule, p = visits.schedule, visits.schedule.problem
    if p.bias is None:
        return 0
    head_stride, row_stride, key_stride = p.bias_strides
    tiles = len(schedule.first_keys)
    keys = np.arange(int(blocks(schedule.tile.Bc, KEYS_PER_REQUEST)) * KEYS_PER_REQUEST)
    keys = np.where(keys < schedule.tile.Bc, schedule.first_keys[:, None] + keys, p.kv_len)
    visited = visits.visited
    # Heads whose biases begin at the same element of a sector cost the same.
    starts = np.arange(p.heads) * head_stride % PER_SECTOR
    alike = p.batch // len(visited)
    sectors = 0
    for sequence, of_sequence in enumerate(visited):
        for head, of_head in enumerate(of_sequence):
            heads = starts if len(of_sequence) == 1 else starts[head : head + 1]
            for start, count in zip(*np.unique(heads, return_counts=True)):
                for block, first_row in enumerate(schedule.first_rows):
                    rows = first_row + np.arange(int(blocks(schedule.tile.Br, 16)) * 16)
                    ends = _ends(visits, sequence, rows, int(first_row))
                    read = (keys < ends[:, None, None]) & of_head[block][:, None]
                    element = start + np.minimum(rows, p.q_len - 1)[:, None, None] * row_stride + keys * key_stride
                    sector = np.where(read, element // PER_SECTOR, -1)
                    of_request = sector.reshape(-1, ROWS_PER_REQUEST, tiles, keys.shape[1] // 8, 8).swapaxes(1, 3)
                    found = np.sort(of_request.reshape(-1, ROWS_PER_REQUEST * 8), axis=1)
                    new = np.diff(found, axis=1, prepend=-1) != 0
                    sectors += alike * int(count) * int((new & (found >= 0)).sum())
    return SECTOR_BYTES * sectors


def _ends(visits: Visits, sequence: int, rows: Integers, first_row: int) -> Integers:
    """The end of what each row of a block sees, as the kernel works it out."""
    p = visits.schedule.problem
    last = min(first_row + visits.schedule.tile.Br, p.q_len) - 1
    if has_spans(p):
        return np.where(rows <= last, p.spans[1][sequence][np.minimum(rows, last)], p.kv_len)
    _, after = band(p)
    return np.minimum(rows + p.kv_len - p.q_len + after + 1, p.kv_len)
