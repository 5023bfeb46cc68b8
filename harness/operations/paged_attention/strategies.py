"""Hypothesis strategies for paged attention: problems, and cases, which are problem, regime, seed and edits together.

They draw a handful of small numbers and never a tensor, so Hypothesis can steer and shrink them. What is plain comes
first in every draw, and shrinking goes there: one sequence, one key, one head, one row, the first build.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hypothesis import strategies as st

from harness.model.cases.axes import Item
from harness.model.cases.case import Case
from harness.operations.attention.cases.case_values import SCALES, term_edits
from harness.operations.paged_attention.axes import HEAD_COUNTS, POOLS, TABLES, one_edit, with_pool
from harness.operations.paged_attention.build import BUILDS, PagedBuild
from harness.operations.paged_attention.inputs import REGIMES
from harness.operations.paged_attention.problem import PagedProblem

MOST_TILES = 6
"""Times `tile_keys`, over all sequences."""
MOST_SEQUENCES = 6
MOST_PAIRS = 2**14
"""Pairs of a row and a key in all heads of a sequence, where sequences have different numbers of rows."""
ROWS = (1, 1, 1, 2, 3, 5, 17)
_PAIRS = tuple(pair for pairs in HEAD_COUNTS.values() for pair in pairs)

# Strategies are made once and kept: Hypothesis checks each anew, and that takes longer than to draw from it.
_sampled = functools.lru_cache(maxsize=None)(st.sampled_from)
_seeds = functools.cache(lambda: st.integers(0, 2**16 - 1))


@functools.cache
def _lengths(build: PagedBuild, most_tiles: int) -> st.SearchStrategy[list[int]]:
    """Lengths that have no more than so many tiles together, as far as a page each lets them."""
    size, tile = build.page_size, build.tile_keys
    edges = {1, size - 1, size, size + 1, 2 * size, 3 * size + 1, tile - 1, tile, tile + 1, 2 * tile, 2 * tile + 5, 0}
    one = st.one_of(st.sampled_from(sorted(edges)), st.integers(0, 4 * size))

    def within(lengths: list[int]) -> list[int]:
        kept: list[int] = []
        for length in lengths:
            kept.append(length if sum(kept) + length <= most_tiles * tile else length % size)
        return kept

    return st.lists(one, min_size=1, max_size=MOST_SEQUENCES).map(within)


@st.composite
def problems(
    draw: st.DrawFn,
    builds: Sequence[PagedBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    takes: Sequence[str] = ("causal",),
) -> PagedProblem:
    """Problems of a few sequences: lengths at and beside the edges of pages and tiles, empty ones, shared prefixes."""
    build = draw(_sampled(tuple(builds)))
    lengths = draw(_lengths(build, most_tiles))
    heads, kv_heads = draw(_sampled(_PAIRS))
    size = build.page_size
    q_len = draw(_sampled(ROWS if "causal" in takes else (1,)))
    problem = PagedProblem(
        lengths=tuple(lengths),
        heads=heads,
        kv_heads=kv_heads,
        **{"q_len": q_len, **build.drawn_rows(lambda of: draw(_sampled(of)), lengths, q_len, MOST_PAIRS // heads)},
        head_dim=build.head_dim,
        dtype=build.dtype,
        page_size=size,
        prefix=draw(_sampled((0, 0, size, 3 * size + 1))),
        scale=draw(_sampled(tuple(scale for scales in SCALES.values() for scale in scales))),
        **build.drawn_features(lambda values: draw(_sampled(values))),
    )
    return with_pool(problem, POOLS[draw(_sampled(tuple(POOLS)))], TABLES[draw(_sampled(tuple(TABLES)))])


@st.composite
def cases(
    draw: st.DrawFn,
    builds: Sequence[PagedBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    checks: Sequence[str] = (),
    check_share: int = 4,
    takes: Sequence[str] = ("causal",),
) -> Case:
    """Cases: a problem, a regime, a seed, edits and, in one of `check_share` cases, one of `checks`."""
    build = draw(_sampled(tuple(builds)))
    problem = draw(problems((build,), most_tiles, takes))
    check = draw(_sampled((None,) * max(1, (check_share - 1) * len(checks)) + tuple(checks)))
    count = draw(_sampled((*(0,) * 9, 1, 2, 3)))

    def pick(among: Sequence[Item]) -> Item:
        picked: Item = draw(_sampled(among))
        return picked

    edits = (*term_edits(pick, problem), *(one_edit(pick, problem) for _ in range(count)))
    return Case(problem, draw(_sampled(tuple(REGIMES))), draw(_seeds()), edits, build.tile, check)
