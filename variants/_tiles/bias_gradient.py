"""The gradient of a bias in kernels whose blocks own keys: how it is computed, and the bytes that it and the bias move.

A thread has TM keys and TN rows of dS, and a warp 4 keys and 8 rows for each of its elements: bias_gradient.cuh.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness import Problem
from variants._features import Feature
from variants._tiles import THREADS_X, THREADS_Y, WARPS, blocks
from variants._tiles.backward import BackwardSchedule
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers, run_bytes

PER_SECTOR = SECTOR_BYTES // FLOAT32_BYTES
KEYS_PER_REQUEST, ROWS_PER_REQUEST = THREADS_Y // WARPS, THREADS_X
Booleans = npt.NDArray[np.bool_]


def added_bias(problem: Problem) -> Feature:
    """Return whether blocks add to the gradient of the bias in memory."""
    if problem.bias is None:
        return Feature("DBias", "NoBias", (), ())
    elements = np.int64(np.prod(problem.bias_shape))
    return Feature("DBias", "AddedBias", ("dbias", *map(np.int32, problem.bias_strides), elements), ())


def bias_elsewhere(problem: Problem) -> Feature:
    """Return whether there is a bias, whose gradient another kernel computes."""
    return Feature("DBias", "NoBias" if problem.bias is None else "BiasElsewhere", (), ())


def numba_kind(problem: Problem, added: bool) -> str:
    """Return what `numba_bias_gradient` takes for these two."""
    from variants._tiles.numba_bias_gradient import ADDED, ELSEWHERE, NOTHING

    return NOTHING if problem.bias is None else ADDED if added else ELSEWHERE


def added_bias_bytes(schedule: BackwardSchedule) -> tuple[int, int, int]:
    """Return bytes of reading the bias, of adding to its gradient, and of setting it to 0; 0 without a bias.

    At the `sectors` level. A block reads the bias of each score that its keys' rows see, and adds dS of all pairs of a
    tile that exist: of each, or of their sums over rows or keys.
    """
    p = schedule.problem
    if p.bias is None:
        return 0, 0, 0
    zeroed = int(run_bytes(0, int(np.prod(p.bias_shape)), FLOAT32_BYTES))
    return mirrored_bias_bytes(schedule), _of_all(schedule, _added), zeroed


def mirrored_bias_bytes(schedule: BackwardSchedule) -> int:
    """Return bytes of reading the bias by blocks that own keys; 0 without a bias."""
    return 0 if schedule.problem.bias is None else _of_all(schedule, _read)


def row_bias_bytes(schedule: BackwardSchedule) -> int:
    """Return bytes of reading the bias by blocks that own rows; 0 without a bias."""
    return 0 if schedule.problem.bias is None else _of_all(schedule, _read_by_rows)


def stored_bias_bytes(schedule: BackwardSchedule) -> int:
    """Return bytes of writing the gradient of the bias once by blocks that own rows and keys of it."""
    p, tile = schedule.problem, schedule.tile
    heads, row_stride, key_stride = p.bias_strides
    starts, alike = np.unique(np.arange(p.bias_shape[0]) * heads % PER_SECTOR, return_counts=True)
    if not row_stride and not key_stride:
        return SECTOR_BYTES * p.bias_shape[0]
    if not (row_stride and key_stride):
        length, step = (p.q_len, tile.Br) if row_stride else (p.kv_len, tile.Bc)
        first = np.arange(0, length, step)
        runs = run_bytes(starts[:, None] + first, np.minimum(step, length - first), FLOAT32_BYTES).sum(axis=1)
        return int((alike * runs).sum())
    sectors = 0
    for start, count in zip(starts, alike):
        for first_row in schedule.first_rows:
            rows = first_row + np.arange(blocks(tile.Br, THREADS_Y) * THREADS_Y)
            keys = np.arange(blocks(tile.Bc, THREADS_X) * THREADS_X)
            keys = np.where(keys < tile.Bc, schedule.first_keys[:, None] + keys, p.kv_len)[:, None, :]
            exist = (rows < min(first_row + tile.Br, p.q_len))[:, None] & (keys < p.kv_len)
            elements = np.where(exist, start + rows[:, None] * row_stride + keys, -1)
            sectors += int(count) * sum(distinct_sectors(_requests(each)) for each in elements)
    return SECTOR_BYTES * sectors


def _of_all(schedule: BackwardSchedule, sectors_of_tile: Callable[..., int]) -> int:
    """Sum the sectors of all tiles that are visited."""
    p, tile = schedule.problem, schedule.tile
    starts, heads = np.unique(np.arange(p.heads) * p.bias_strides[0] % PER_SECTOR, return_counts=True)
    alike = p.batch // len(schedule.first_tiles)
    sectors = 0
    for sequence, row_block in np.ndindex(schedule.first_tiles.shape):
        first_row = int(schedule.first_rows[row_block])
        for j in np.flatnonzero(schedule.visited[sequence, row_block]):
            pairs = Pairs.of(schedule, sequence, first_row, int(j) * tile.Bc)
            sectors += alike * sum(int(n) * sectors_of_tile(p, pairs, int(start)) for start, n in zip(starts, heads))
    return SECTOR_BYTES * sectors


class Pairs(NamedTuple):
    """The rows and keys of a tile, with those that it only has room for."""

    rows: Integers
    keys: Integers
    has_row: Booleans
    has_key: Booleans
    seen: Booleans
    """(keys, rows)."""

    @classmethod
    def of(cls, schedule: BackwardSchedule, sequence: int, first_row: int, first_key: int) -> Pairs:
        """Return those of a tile of a sequence."""
        p, tile = schedule.problem, schedule.tile
        keys = first_key + np.arange(blocks(tile.Bc, THREADS_Y) * THREADS_Y)
        rows = first_row + np.arange(blocks(tile.Br, THREADS_X) * THREADS_X)
        has_key, has_row = keys < min(first_key + tile.Bc, p.kv_len), rows < min(first_row + tile.Br, p.q_len)
        first, end = (each[sequence][np.minimum(rows, p.q_len - 1)] for each in p.spans)
        seen = has_row & has_key[:, None] & (first <= keys[:, None]) & (keys[:, None] < end)
        if not p.mask.is_run:
            seen &= p.seen(sequence)[np.ix_(np.minimum(rows, p.q_len - 1), np.minimum(keys, p.kv_len - 1))].T
        return cls(rows, keys, has_row, has_key, seen)

    def elements(self, problem: Problem, start: int) -> Integers:
        """Return which element of the bias each pair has, (keys, rows)."""
        _, row_stride, key_stride = problem.bias_strides
        elements: Integers = start + self.rows * row_stride + self.keys[:, None] * key_stride
        return elements


def _read(problem: Problem, pairs: Pairs, start: int) -> int:
    return distinct_sectors(_requests(np.where(pairs.seen, pairs.elements(problem, start), -1)))


def _read_by_rows(problem: Problem, pairs: Pairs, start: int) -> int:
    rows, keys = (
        np.arange(blocks(len(each), of) * of) for each, of in ((pairs.rows, THREADS_Y), (pairs.keys, THREADS_X))
    )
    elements = np.where(pairs.seen, pairs.elements(problem, start), -1).T
    padded = np.full((len(rows), len(keys)), -1)
    padded[: elements.shape[0], : elements.shape[1]] = elements
    return distinct_sectors(_requests(padded))


def _added(problem: Problem, pairs: Pairs, start: int) -> int:
    _, row_stride, key_stride = problem.bias_strides
    if not row_stride and not key_stride:
        return WARPS
    if not key_stride:
        return WARPS * distinct_sectors(np.where(pairs.has_row, start + pairs.rows, -1).reshape(-1, ROWS_PER_REQUEST))
    if not row_stride:
        return distinct_sectors(np.where(pairs.has_key, start + pairs.keys, -1).reshape(-1, KEYS_PER_REQUEST))
    exist = pairs.has_row & pairs.has_key[:, None]
    return distinct_sectors(_requests(np.where(exist, pairs.elements(problem, start), -1)))


def _requests(elements: Integers) -> Integers:
    """Return what the lanes of each warp request have, (requests, 32): 4 x 8 of the pairs."""
    owned, others = elements.shape
    shape = (owned // KEYS_PER_REQUEST, KEYS_PER_REQUEST, others // ROWS_PER_REQUEST, ROWS_PER_REQUEST)
    return elements.reshape(shape).swapaxes(1, 2).reshape(-1, LANES)


def distinct_sectors(elements: Integers) -> int:
    """Return the number of distinct sectors in each row of `elements`, together; -1 stands for no element."""
    found = np.sort(np.where(elements < 0, -1, elements // PER_SECTOR), axis=1)
    return int(((np.diff(found, axis=1, prepend=-1) != 0) & (found >= 0)).sum())
