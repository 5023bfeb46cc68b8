"""The order in which blocks of rows start where what they visit does not simply grow with their rows: longest first.

Under a band the last rows see most keys, and grids.py starts with these. Packed documents end in the middle, blocks of
a mask are on or off, and a long one at the end of the order would have a GPU wait for it: a launch of its own,
longest_first.cu, ranks the blocks of rows by how many tiles of keys they visit (Graham 1969, "Bounds on multiprocessing
timing anomalies"), and the kernel reads which block it owns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import Buffer, Launch, Problem
from variants import _features as features
from variants._features import FOLDER, Feature, declarations, has_spans
from variants._tiles import WARPS, blocks
from variants._tiles.schedule import INT32_BYTES, Schedule, Sizes
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers
from variants._tiles.visits import LISTS, Visits

THREADS = LANES * WARPS
"""Threads per block, each of which ranks one block of rows."""
ORDER = "order"
"""Name of the order of row blocks, longest first: (batch, T_r), or (sequences, lists, T_r) if tiles are listed."""


def is_ordered(problem: Problem) -> bool:
    """Whether kernels read from memory which block of rows they own: if tiles are listed, or runs are read."""
    return has_spans(problem) or not problem.mask.is_run


def cuda_ordering(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """Return the CUDA kernel that ranks blocks of rows; none if these are not ordered."""
    from variants._tiles.rawkernel import raw_kernel, tile_sizes

    if not is_ordered(problem):
        return ()
    files, using = declarations((features.limits(problem),))
    name = "longest_first" if problem.mask.is_run else "longest_list_first"
    return (raw_kernel("_tiles", name, tile_sizes(tile), files, using, file="longest_first.cu"),)


def numba_ordering(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """Return the Numba kernel that ranks blocks of rows; none if these are not ordered."""
    from variants._tiles.numba_longest_first import longest_first_kernel

    return (longest_first_kernel(tile.Br, tile.Bc),) if is_ordered(problem) else ()


def row_order(problem: Problem, tile: Sizes) -> Feature:
    """Return which block of rows starts first, as a type of kernels."""
    files = ((FOLDER, "row_order.cuh"),)
    if not is_ordered(problem):
        return Feature("RowOrder", "LastFirst", (), files)
    sequences, lists, _ = LongestFirst(Schedule(problem, tile)).shape
    argument = (ORDER, np.int32(lists * (sequences > 1)), np.int32(lists > 1))
    return Feature("RowOrder", "LongestFirst", argument, files)


class LongestFirst:
    """The order of a problem's row blocks: its launches, buffers and bytes."""

    def __init__(self, schedule: Schedule) -> None:
        """`schedule`: its blocks of rows are those that are ordered."""
        self._schedule = schedule
        self._problem = schedule.problem
        self._visits = Visits(schedule)
        self._is_there = is_ordered(schedule.problem)

    def launches(self, kernels: Sequence[Any]) -> tuple[Launch, ...]:
        """Return the launches before the kernel that reads the order, with kernels of `cuda_ordering` or its twin."""
        if not self._is_there:
            return ()
        p = self._problem
        (longest_first,) = kernels
        sequences, lists, _ = self.shape
        visited = features.limits(p).argument if p.mask.is_run else LISTS
        args = (ORDER, np.int32(p.q_len), np.int32(p.kv_len), visited)
        return (Launch(longest_first, (self._rankers, lists, sequences), (THREADS,), args),)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The order."""
        sequences, lists, row_blocks = self.shape
        shape = (sequences, row_blocks) if self._problem.mask.is_run else (sequences, lists, row_blocks)
        return (Buffer(ORDER, shape, "int32"),) if self._is_there else ()

    def traffic(self, warps: int) -> tuple[int, int]:
        """Return bytes read and written, including reads by a kernel with this many warps, at the `sectors` level."""
        if not self._is_there:
            return 0, 0
        s, (sequences, lists, row_blocks) = self._schedule, self.shape
        number = np.arange(sequences * lists)[:, None]
        # Each ranker reads of its own, and then all read of all.
        looks = sum(_request_sectors(elements) for elements in self._elements_read(number))
        ranks = np.broadcast_to(self.ranks, self.shape).reshape(-1, row_blocks)
        written = _request_sectors(number * row_blocks + ranks)
        read = looks * (1 + self._rankers) + s.owners * warps
        return SECTOR_BYTES * int(read), SECTOR_BYTES * int(written)

    def _elements_read(self, number: Integers) -> tuple[Integers, ...]:
        """(lists of all sequences, T_r) each: where that is read from which it is known how many tiles are visited."""
        s, (_, _, row_blocks) = self._schedule, self.shape
        if self._problem.mask.is_run:
            return tuple(number * self._problem.q_len + rows for rows in (s.first_rows, self._last_rows))
        return ((number * row_blocks + np.arange(row_blocks)) * self._visits.shape[-1],)

    @functools.cached_property
    def ranks(self) -> Integers:
        """(S, L, T_r): how many blocks of rows start before it: those that visit more tiles, and later of as many."""
        counts = self._counts
        order = np.argsort(-counts[..., ::-1], axis=-1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[-1]), axis=-1)
        return ranks[..., ::-1]

    @property
    def _counts(self) -> Integers:
        """(S, L, T_r): tiles that a block visits, where its rows see nothing as the kernel works it out."""
        if not self._problem.mask.is_run:
            return self._visits.counts
        s, (first, end) = self._schedule, self._problem.spans
        visits: Integers = blocks(end[:, self._last_rows], s.tile.Bc) - first[:, s.first_rows] // s.tile.Bc
        return visits[:, None]

    @property
    def _last_rows(self) -> Integers:
        """(T_r,): of each block."""
        s = self._schedule
        return np.minimum(s.first_rows + s.tile.Br, self._problem.q_len) - 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the order: sequences with their own lists, lists per sequence, blocks of rows."""
        if self._problem.mask.is_run:
            return self._problem.batch, 1, len(self._schedule.first_rows)
        return self._visits.shape[:3]

    @property
    def _rankers(self) -> int:
        """Blocks that rank those of a list."""
        return int(blocks(self.shape[-1], THREADS))


def _request_sectors(elements: Integers) -> int:
    """Sectors that warps touch whose lanes each move one int32 of these, (lists, lanes), in one request each."""
    sectors = elements * INT32_BYTES // SECTOR_BYTES
    return sum(len(np.unique(row[at : at + LANES])) for row in sectors for at in range(0, len(row), LANES))
