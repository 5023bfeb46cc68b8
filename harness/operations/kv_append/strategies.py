"""Hypothesis strategies for appending: problems, and cases, which are problem, regime, seed and edits together.

They draw a handful of small numbers and never a tensor, so Hypothesis can steer and shrink them. What is plain comes
first in every draw, and shrinking goes there: one sequence, no keys before, one new token, one head, the first build.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hypothesis import strategies as st

from harness.model.cases.axes import Item
from harness.model.cases.case import Case
from harness.operations.kv_append.cases import HEAD_COUNTS, AppendBuild, one_edit, posed
from harness.operations.kv_append.inputs import REGIMES
from harness.operations.paged_attention.axes import POOLS, TABLES

MOST_TILES = 6
"""Sequences of a problem."""
MOST_KEYS, MOST_NEW = 4, 3
"""Pages of keys before the append, and of new tokens, that a sequence has at most."""
_HEADS = tuple(count for counts in HEAD_COUNTS.values() for count in counts)

# Strategies are made once and kept: Hypothesis checks each anew, and that takes longer than to draw from it.
_sampled = functools.lru_cache(maxsize=None)(st.sampled_from)
_seeds = functools.cache(lambda: st.integers(0, 2**16 - 1))


@functools.cache
def _pairs(size: int, most: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Keys before the append and new tokens of each sequence, at and beside the edges of pages."""
    edges = st.sampled_from((0, 1, size - 1, size, size + 1, 2 * size))
    old, new = (st.one_of(edges, st.integers(0, pages * size)) for pages in (MOST_KEYS, MOST_NEW))
    return st.lists(st.tuples(old, new), min_size=1, max_size=most)


@st.composite
def cases(
    draw: st.DrawFn,
    builds: Sequence[AppendBuild],
    most_tiles: int = MOST_TILES,
    checks: Sequence[str] = (),
    check_share: int = 4,
    takes: Sequence[str] = (),
) -> Case:
    """Cases: a problem, a regime, a seed, edits and, in one of `check_share` cases, one of `checks`; no features."""
    build = draw(_sampled(tuple(builds)))
    old, new = zip(*draw(_pairs(build.page_size, max(1, min(most_tiles, MOST_TILES)))))
    pool, table = (names[draw(_sampled(tuple(names)))] for names in (POOLS, TABLES))
    prefix = draw(_sampled((0, 0, build.page_size, 3 * build.page_size + 1)))
    problem = posed(build, old, new, pool, table, kv_heads=draw(_sampled(_HEADS)), prefix=prefix)
    check = draw(_sampled((None,) * max(1, (check_share - 1) * len(checks)) + tuple(checks)))

    def pick(among: Sequence[Item]) -> Item:
        picked: Item = draw(_sampled(among))
        return picked

    edits = tuple(one_edit(pick, problem) for _ in range(draw(_sampled((*(0,) * 9, 1, 2, 3)))))
    return Case(problem, draw(_sampled(tuple(REGIMES))), draw(_seeds()), edits, build.tile, check)
