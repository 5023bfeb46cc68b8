"""Grids whose blocks start with the longest ones, of several heads at once.

A GPU starts blocks in the order of their indices, x first, whenever another one ends. If later rows see more keys, all
multiprocessors stay busy to the end only if the last rows of several heads start first and the first rows last:
Graham's rule (1969, "Bounds on multiprocessing timing anomalies"), which FlashAttention-3 also uses. With heads one
after the other, all multiprocessors wait for the last rows of the last head.
"""

from __future__ import annotations

import heapq

import numpy as np

from harness import Problem
from variants._features import sequence_extents
from variants._tiles import MOST_BLOCKS_ALONG_Y, blocks
from variants._tiles.sectors import Integers

MOST_BLOCKS_SIMULATED = 4096
"""With more blocks than these, the last ones are a small part of the time."""
LONGEST_IDLE = 0.02
"""Part of the time for which the GPU may wait for its last blocks longer than in the best order."""

L2_BYTES = 32 * 2**20
"""What the heads of running blocks may read: the part of an H200's 50 MB of L2 in which data stays."""


def beyond_y(**blocks_along_y: tuple[int, int]) -> str | None:
    """Return why a grid has too many blocks along y, or None. Arguments are such as q_len=(extent, rows per block)."""
    for name, (extent, size) in blocks_along_y.items():
        if blocks(extent, size) > MOST_BLOCKS_ALONG_Y:
            return f"{name} is {extent}; a grid has at most {MOST_BLOCKS_ALONG_Y:,} blocks along y, of {size} each here"
    return None


def grid_across(problem: Problem, blocks_per_head: int) -> tuple[int, int, int]:
    """Return the grid (heads, blocks_per_head, batch), with all query heads of a sequence side by side.

    With unpadded sequences, `blocks_per_head` are those of the longest one; the others do without some.
    """
    return problem.heads, blocks_per_head, sequence_extents(problem)[0]


def grid_side_by_side(
    problem: Problem,
    heads: int,
    visits: Integers,
    tile_bytes: int,
    by_sequence: bool,
    reach: Integers | None = None,
    running: int | None = None,
    in_order: bool = False,
) -> tuple[int, int, int]:
    """(heads side by side, blocks of a head, groups of so many heads), of as many heads as `heads_side_by_side` says.

    `by_sequence`: all of a sequence's, whose number z is then, and x its head's. `running`: how many blocks run at a
    time, if more heads are to be side by side where the last ones would otherwise leave the GPU idle. `in_order`: a
    head's blocks wait for each other.
    """
    if by_sequence:
        return heads, visits.shape[-1], problem.batch
    at_once = heads_side_by_side(heads, problem.batch, visits, tile_bytes, reach, in_order)
    if running is not None and problem.batch * heads * visits.shape[-1] <= MOST_BLOCKS_SIMULATED:
        at_once = _until_none_idles(heads, problem.batch, visits, at_once, running)
    return at_once, visits.shape[-1], problem.batch * heads // at_once


def heads_side_by_side(
    heads: int,
    batch: int,
    visits: Integers,
    tile_bytes: int,
    reach: Integers | None = None,
    in_order: bool = False,
) -> int:
    """How many heads' blocks start side by side: a divisor of `heads`, which each of `batch` sequences has.

    `visits`: (..., blocks of a head), how many tiles a block visits; `tile_bytes`: of one of them, for each head. One
    head after the other where all blocks visit equally many, unless they wait for each other, `in_order`. Else about as
    many as leave what they visit in L2: that is `reach` many tiles where blocks visit some of so many, each others.
    """
    alike = visits.min() == visits.max() and not in_order
    tiles = max(1, int((visits if reach is None else reach).max()))
    most = 1 if alike else round(L2_BYTES / (tiles * tile_bytes))
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    # A grid has no more groups than it may.
    enough = [n for n in divisors if n >= blocks(batch * heads, MOST_BLOCKS_ALONG_Y)]
    return max((n for n in enough if n <= most), default=enough[0])


def _until_none_idles(heads: int, batch: int, visits: Integers, at_least: int, running: int) -> int:
    """The fewest heads side by side, at least so many, with which blocks end about as soon as with any number."""
    visits = np.broadcast_to(visits, (batch, visits.shape[-1]))
    numbers = [n for n in range(at_least, heads + 1) if heads % n == 0]
    ends = {n: _end([visits[h * n // heads] for h in range(batch * heads // n)], n, running) for n in numbers}
    return next(n for n in numbers if ends[n] <= (1 + LONGEST_IDLE) * min(ends.values()))


def _end(groups: list[Integers], heads: int, running: int) -> int:
    """When the last block ends, in visits, if each starts, in order, when one of `running` has ended."""
    busy_until = [0] * running
    for visits in groups:
        for count in np.repeat(visits, heads).tolist():
            heapq.heapreplace(busy_until, busy_until[0] + count)
    return max(busy_until)
