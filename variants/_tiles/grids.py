"""A grid whose blocks start with the longest ones, of several heads at once.

A GPU starts blocks by their numbers, x first, each as another one ends. Where rows see the more keys the further back
they are, it has work for all of its multiprocessors to the end only if the last rows of several heads start first and
the first rows last: Graham's rule (1969, "Bounds on multiprocessing timing anomalies"), as in FlashAttention-3's own
code. The other way round, heads one after the other, all wait for the last rows of the last head.
"""

from __future__ import annotations

from harness import Problem
from variants._tiles import blocks
from variants._tiles.band import has_spans
from variants._tiles.schedule import Schedule

L2_BYTES = 32 * 2**20
"""Of K and V of the heads that blocks are at work on at once, where a mask makes some rows longer than others: what
stays in the 50 MB of L2 of an H200 beside Q and O."""
MOST_BLOCKS = 65_535
"""Along y and z."""


def grid_across(problem: Problem, blocks_per_head: int) -> tuple[int, int, int]:
    """(heads, blocks_per_head, batch): all query heads of a sequence side by side."""
    return problem.heads, blocks_per_head, problem.batch


def grid_side_by_side(schedule: Schedule) -> tuple[int, int, int]:
    """(heads side by side, blocks of a head, groups of so many heads); blocks of a head are counted from the last on."""
    p, heads = schedule.problem, heads_side_by_side(schedule)
    return heads, len(schedule.first_rows), p.batch * p.heads // heads


def heads_side_by_side(schedule: Schedule) -> int:
    """How many query heads' blocks start side by side: a divisor of `heads`.

    One head after the other where all blocks visit equally many tiles. Else as many as leave K and V in L2, of those
    keys that a block meets at a time. All heads of a sequence where arrays tell what its rows see: z is the sequence.
    """
    p, visits = schedule.problem, schedule.visits
    if has_spans(p):
        return p.heads
    kv_bytes = 2 * max(1, int(visits.max())) * schedule.tile.Bc * p.head_dim * p.itemsize_bytes
    most = max(L2_BYTES // kv_bytes, 1) * p.group
    if p.mask.is_run and visits.min() == visits.max():
        most = 1
    return _divisor(p, most)


def _divisor(problem: Problem, most: int) -> int:
    """The largest divisor of `heads` up to `most`, or the next one with which a grid has no more groups than it may."""
    heads = problem.heads
    divisors = [n for n in range(1, heads + 1) if heads % n == 0]
    fewest = blocks(problem.batch * heads, MOST_BLOCKS)
    return max((n for n in divisors if fewest <= n <= most), default=next(n for n in divisors if n >= fewest))
