"""The order in which blocks of rows start where what they visit does not simply grow with their rows: longest first.

Under a band the last rows see most keys, and grids.py starts with these. Packed documents end in the middle, and a
long one at the end of the order would have a GPU wait for it: a launch of its own, longest_first.cu, ranks the blocks
of rows by how many tiles of keys they visit (Graham 1969, "Bounds on multiprocessing timing anomalies"), and the kernel
reads which block it owns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import Buffer, Launch, Problem
from variants._tiles import WARPS, blocks
from variants._tiles.band import has_spans, limits
from variants._tiles.schedule import INT32_BYTES, Schedule, Sizes
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers

THREADS = LANES * WARPS
"""Of a block, each of which ranks a block of rows."""
ORDER = "order"
"""(batch, T_r): blocks of rows, those that visit most tiles first."""


def is_ordered(problem: Problem) -> bool:
    """Whether kernels read which block of rows they own: what rows see is read, too, and tiles are not listed."""
    return has_spans(problem) and problem.mask.is_run


def cuda_ordering(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """The kernel that ranks blocks of rows; none where these are not ordered."""
    from variants._tiles.rawkernel import COMMON, raw_kernel, size_options, span_options

    if not is_ordered(problem):
        return ()
    # No row of Q, K or V is touched: their elements are parameters in name alone.
    options = (*size_options(1, tile, "float32"), *span_options(problem))
    return (raw_kernel("_tiles", "longest_first", options, COMMON, file="longest_first.cu"),)


def numba_ordering(problem: Problem, tile: Sizes) -> tuple[Any, ...]:
    """The same in Numba."""
    from variants._tiles.numba_longest_first import longest_first_kernel

    return (longest_first_kernel(tile.Br, tile.Bc),) if is_ordered(problem) else ()


class LongestFirst:
    """The order of a problem: what a plan has of it, and what it costs."""

    def __init__(self, schedule: Schedule) -> None:
        """Of the blocks of rows of this schedule."""
        self._schedule = schedule
        self._problem = schedule.problem
        self._is_there = is_ordered(schedule.problem)

    def launches(self, kernels: Sequence[Any]) -> tuple[Launch, ...]:
        """What comes before the kernel that reads the order; `kernels`: of `cuda_ordering` or `numba_ordering`."""
        if not self._is_there:
            return ()
        p = self._problem
        (longest_first,) = kernels
        args = (ORDER, np.int32(p.q_len), np.int32(p.kv_len), *limits(p))
        return (Launch(longest_first, (self._rankers, 1, p.batch), (THREADS,), args),)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The order."""
        return (Buffer(ORDER, self._shape, "int32"),) if self._is_there else ()

    def arguments(self, always: bool) -> tuple[Any, ...]:
        """What the kernel that reads the order is given; `always`: something in its place, too, as Numba's have."""
        return (ORDER,) if self._is_there else (np.int32(0),) * always

    def traffic(self, warps: int) -> tuple[int, int]:
        """Bytes read, by a kernel whose blocks have so many warps as well, and written, at the `sectors` level."""
        if not self._is_there:
            return 0, 0
        p, s = self._problem, self._schedule
        sequences = np.arange(p.batch)[:, None]
        # All rankers read them all; before that, each reads its own.
        looks = sum(_request_sectors(sequences * p.q_len + rows) for rows in (s.first_rows, self._last_rows))
        written = _request_sectors(sequences * self._shape[1] + self.ranks)
        read = looks * (1 + self._rankers) + s.owners * warps
        return SECTOR_BYTES * int(read), SECTOR_BYTES * int(written)

    @functools.cached_property
    def ranks(self) -> Integers:
        """(S, T_r): how many blocks of rows start before it: those that visit more tiles, and later rows of as many."""
        s = self._schedule
        first, end = self._problem.spans
        visits = blocks(end[:, self._last_rows], s.tile.Bc) - first[:, s.first_rows] // s.tile.Bc
        order = np.argsort(-visits[:, ::-1], axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
        return ranks[:, ::-1]

    @property
    def _last_rows(self) -> Integers:
        """(T_r,): of each block."""
        s = self._schedule
        return np.minimum(s.first_rows + s.tile.Br, self._problem.q_len) - 1

    @property
    def _shape(self) -> tuple[int, int]:
        return self._problem.batch, len(self._schedule.first_rows)

    @property
    def _rankers(self) -> int:
        """Blocks that rank those of a sequence."""
        return int(blocks(self._shape[1], THREADS))


def _request_sectors(elements: Integers) -> int:
    """Sectors that warps touch whose lanes each move one int32 of these, (sequences, lanes), in one request each."""
    sectors = elements * INT32_BYTES // SECTOR_BYTES
    return sum(len(np.unique(row[at : at + LANES])) for row in sectors for at in range(0, len(row), LANES))
