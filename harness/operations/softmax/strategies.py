"""Hypothesis strategies for softmax: problems, edits, and cases, which are all of it together.

They draw a handful of small numbers and never a tensor, so Hypothesis can steer and shrink them. What is plain comes
first in every draw, and shrinking goes there: one row, one column, the first build, regime `normal`, seed 0, no edits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hypothesis import strategies as st

from harness.model.cases.case import Case, Edit
from harness.operations.softmax.cases import BLOCK_COLUMNS, BUILDS, EDGES, LONGEST, SoftmaxBuild, special_values
from harness.operations.softmax.inputs import REGIMES
from harness.operations.softmax.problem import SoftmaxProblem

MOST_TILES = 48
"""Rows times runs of `BLOCK_COLUMNS` columns."""


# Strategies are made once and kept: Hypothesis checks each anew, and that takes longer than to draw from it.
_sampled = functools.lru_cache(maxsize=None)(st.sampled_from)
_index_below = functools.lru_cache(maxsize=None)(lambda extent: st.integers(0, extent - 1))
_seeds = functools.cache(lambda: st.integers(0, 2**16 - 1))


@functools.cache
def _columns(most: int) -> st.SearchStrategy[int]:
    """An edge, anything up to three blocks of threads, or a long row beside a multiple of a block."""
    edges = [edge for edge in EDGES if edge <= most]
    long = [
        columns
        for blocks in (3, 5, 8, 17, LONGEST)
        for columns in (blocks * BLOCK_COLUMNS - 1, blocks * BLOCK_COLUMNS, blocks * BLOCK_COLUMNS + 1)
        if columns <= most
    ]
    # sampled_from for the edges, so that each is as likely as the other; ranges for the rest.
    ways = [st.sampled_from(edges), st.integers(1, min(most, 3 * BLOCK_COLUMNS))]
    return st.one_of(*ways, *([st.sampled_from(long)] if long else []))


@functools.cache
def _rows(most: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(1, min(most, 5)), st.integers(1, most))


@st.composite
def problems(draw: st.DrawFn, builds: Sequence[SoftmaxBuild] = BUILDS, most_tiles: int = MOST_TILES) -> SoftmaxProblem:
    """Problems of a few rows: lengths at and beside the edges of warps and blocks, and now and then long rows."""
    build = draw(_sampled(tuple(builds)))
    columns = draw(_columns(min(most_tiles, LONGEST) * BLOCK_COLUMNS + 1))
    runs = -(-columns // BLOCK_COLUMNS)
    return SoftmaxProblem(rows=draw(_rows(max(1, most_tiles // runs))), columns=columns, dtype=build.dtype)


@st.composite
def cases(
    draw: st.DrawFn,
    builds: Sequence[SoftmaxBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    checks: Sequence[str] = (),
    check_share: int = 4,
    takes: Sequence[str] = (),
) -> Case:
    """Cases: a problem, a regime, a seed, edits and, in one of `check_share` cases, one of `checks`; no features."""
    build = draw(_sampled(tuple(builds)))
    problem = draw(problems((build,), most_tiles))
    check = draw(_sampled((None,) * max(1, (check_share - 1) * len(checks)) + tuple(checks)))
    regime = draw(_sampled(tuple(REGIMES)))
    edits = tuple(
        Edit(
            "X",
            (draw(_index_below(problem.rows)), draw(_index_below(problem.columns))),
            draw(_sampled(special_values(regime))),
        )
        for _ in range(draw(_sampled((*(0,) * 6, 1, 2, 3))))
    )
    return Case(problem, regime, draw(_seeds()), edits, build.tile, check)
