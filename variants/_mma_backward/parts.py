"""Which parts of a tile of rows and keys are scored by blocks that own keys: some rows and a warp's keys at a time.

The sizes are those of shares.cuh, and the conditions those of seen.cuh and scoring.cuh.
"""

from __future__ import annotations

import numpy as np

from variants._features import band, has_spans
from variants._mma import FRAGMENT, LINE_ELEMENTS
from variants._mma_backward import MmaBackwardSchedule
from variants._mma_backward.tile import PRODUCT_REGISTERS, BackwardMmaTile
from variants._tiles.sectors import Integers


def part_sizes(tile: BackwardMmaTile, head_dim: int, caps: bool) -> tuple[int, int]:
    """Return the rows and keys that a warp scores at once; `caps`: with a cap."""
    groups = max(tile.Bc // 32, FRAGMENT * tile.warps // tile.Br) if tile.hands_weights else tile.warps
    keys, rows = tile.Bc // groups, tile.Br // (tile.warps // groups)
    halves = caps or (tile.hands_weights and head_dim % LINE_ELEMENTS)
    registers = PRODUCT_REGISTERS // 2 if halves else PRODUCT_REGISTERS
    return min(rows, registers // (keys // FRAGMENT)), keys


def scored_parts(schedule: MmaBackwardSchedule) -> int:
    """Return how many parts are scored, of all heads and sequences: those in which some row has a key in its run.

    A tile of which every row sees every key is scored whole.
    """
    p, tile = schedule.problem, schedule.tile
    part_rows, part_keys = part_sizes(tile, p.head_dim, p.softcap is not None)
    total = 0
    for sequence, row_block in np.ndindex(schedule.first_tiles.shape):
        first_row = int(schedule.first_rows[row_block])
        rows = first_row + np.arange(0, tile.Br, part_rows)[:, None]
        for j in np.flatnonzero(schedule.visited[sequence, row_block]).tolist():
            first_key = j * tile.Bc
            if not schedule.mixed[sequence, row_block, j] and _all_see(schedule, sequence, first_row, first_key):
                total += rows.size * (tile.Bc // part_keys)
            else:
                keys = first_key + np.arange(0, tile.Bc, part_keys)
                last_rows = np.minimum(rows + part_rows, schedule.q_len) - 1
                seen = _some_see(schedule, sequence, (rows, last_rows), (keys, part_keys))
                total += int(((rows < schedule.q_len) & seen).sum())
    return total * (p.batch * p.heads // len(schedule.first_tiles))


def _run_of_row(schedule: MmaBackwardSchedule, row: Integers | int) -> tuple[Integers, Integers]:
    before, after = band(schedule.problem)
    own = np.asarray(row) + schedule.kv_len - schedule.q_len
    return np.maximum(own - int(before), 0), np.minimum(np.maximum(own + int(after) + 1, 0), schedule.kv_len)


def _run_of_key(schedule: MmaBackwardSchedule, sequence: int, keys: Integers | int) -> tuple[Integers, Integers]:
    """Rows from first to end - 1 see a key; what lies beyond the last key has the empty run after all rows."""
    p, keys = schedule.problem, np.asarray(keys)
    first, end = (each[sequence] for each in p.spans)
    # Runs of rows never move backwards. That of a row that sees no key ends at its start.
    runs = (np.searchsorted(each, keys, side="right") for each in (np.maximum(first, end), first))
    first_rows, end_rows = (np.where(keys < p.kv_len, each, p.q_len) for each in runs)
    return first_rows, end_rows


def _all_see(schedule: MmaBackwardSchedule, sequence: int, first_row: int, first_key: int) -> bool:
    p, tile = schedule.problem, schedule.tile
    last_row = min(first_row + tile.Br, schedule.q_len) - 1
    if has_spans(p):
        first, end = _run_of_key(schedule, sequence, np.array([first_key + tile.Bc - 1, first_key]))
        return bool(first[0] <= first_row and last_row < end[1])
    return bool(
        first_key >= _run_of_row(schedule, last_row)[0] and first_key + tile.Bc <= _run_of_row(schedule, first_row)[1]
    )


def _some_see(
    schedule: MmaBackwardSchedule, sequence: int, rows: tuple[Integers, Integers], keys: tuple[Integers, int]
) -> Integers:
    (first_rows, last_rows), (first_keys, count) = rows, keys
    if has_spans(schedule.problem):
        first = _run_of_key(schedule, sequence, first_keys)[0]
        end = _run_of_key(schedule, sequence, first_keys + count - 1)[1]
        return (first <= last_rows) & (first_rows < end)
    return (first_keys < _run_of_row(schedule, last_rows)[1]) & (
        first_keys + count > _run_of_row(schedule, first_rows)[0]
    )
