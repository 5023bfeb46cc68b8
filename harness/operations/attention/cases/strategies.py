"""Hypothesis strategies for attention: problems, regimes, seeds, edits, and cases, which are all of them together.

They draw a handful of small numbers and never a tensor, so Hypothesis can steer and shrink them. In a test of your
own, for whatever computes attention:

    from hypothesis import given, settings

    from harness import Question, cases


    @settings(deadline=None)
    @given(cases())
    def test_my_attention(case):
        inputs = case.inputs()  # Q, K and V as NumPy arrays
        accuracy = Question.pose(case.problem, inputs).check({"O": my_attention(case.problem, **inputs)})
        assert accuracy.passed, accuracy.reason

What is plain comes first in every draw, and shrinking goes there: one tile, one head, batch 1, the first build, regime
`normal`, seed 0, no edits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from hypothesis import strategies as st

from harness.model.cases.axes import Item
from harness.model.cases.case import Case, Edit
from harness.operations.attention.cases.build import BUILDS, AttentionBuild, fitted
from harness.operations.attention.cases.case_values import (
    SCALES,
    fewer_keys_beside_edges,
    filled,
    masks_by_kind,
    one_edit,
    term_edits,
    tile_edges,
)
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import NO_MASK, Mask, mask_kinds
from harness.operations.attention.problem import Problem

MOST_TILES = 6
"""Tiles of rows times tiles of keys, per head: enough for a first, a middle and a last one both ways."""
MOST_TILES_ONE_WAY = 4
MOSTLY_DEFAULT_SCALES = (*SCALES["default"] * 3, *itertools.chain(*SCALES.values()))
CROWD = 23
"""Heads, or sequences, in a few problems that are tiny otherwise."""


@functools.cache
def regimes() -> st.SearchStrategy[str]:
    """The name of a regime; `normal` is the plainest."""
    return st.sampled_from(tuple(REGIMES))


@functools.cache
def seeds() -> st.SearchStrategy[int]:
    """A seed for the inputs."""
    return st.integers(0, 2**16 - 1)


def _kinds(takes: Sequence[str] | None) -> frozenset[str]:
    return frozenset(mask_kinds()).intersection(mask_kinds() if takes is None else takes)


# Strategies are made once and kept: Hypothesis checks each anew, and that takes longer than to draw from it. For the
# same reason what goes together is one draw: the search spends a millisecond or two on a case, besides running it.
_sampled = functools.lru_cache(maxsize=None)(st.sampled_from)

_BATCH_KV_HEADS_GROUP = tuple(
    sorted(itertools.product((1, 1, 2), (1, 1, 2), (1, 1, 2, 3)), key=lambda c: (math.prod(c), c))
)
_CROWDS = ((5, 2, 2), (1, 1, CROWD), (CROWD, 1, 1)) * 2


@st.composite
def problems(
    draw: st.DrawFn,
    builds: Sequence[AttentionBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    scales: Sequence[float | None] = MOSTLY_DEFAULT_SCALES,
    takes: Sequence[str] | None = None,
) -> Problem:
    """Problems of a few tiles: lengths at and beside the edges of tiles, groups, batches, masks, any scale.

    `q_len` and `kv_len` are drawn on their own, so causal problems with rows that see nothing come along. `takes`: the
    kinds of masks that problems may have; None: all.
    """
    build, kinds = draw(_sampled(tuple(builds))), _kinds(takes)
    row_tiles, key_tiles = draw(_sampled(_tilings(most_tiles)))
    crowds = _CROWDS if row_tiles * key_tiles <= 2 else ()
    batch, kv_heads, group = draw(_sampled(_BATCH_KV_HEADS_GROUP + crowds))
    masked, scale = draw(_sampled(tuple(itertools.product((False, True) if kinds else (False,), scales))))
    q_len = (row_tiles - 1) * build.tile_rows + draw(_last_tile(build.tile_rows))
    kv_len = (key_tiles - 1) * build.tile_keys + draw(_last_tile(build.tile_keys))
    if key_tiles > 1:
        kv_len = fewer_keys_beside_edges(lambda among: draw(_sampled(among)), build, kv_len, q_len)
    mask = draw(_masks(build.tile_keys, kinds)) if masked else NO_MASK
    return fitted(
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=build.head_dim,
        dtype=build.dtype,
        mask=mask.clipped_to(batch, q_len, kv_len),
        scale=scale,
        **build.drawn_features(lambda values: draw(_sampled(values))),
    )


@functools.cache
def _masks(tile_keys: int, takes: frozenset[str]) -> st.SearchStrategy[Mask]:
    """Each kind of mask that is taken, and each two of them together, as often as any other."""
    groups = list(masks_by_kind(tile_keys, takes).values())
    longest = max(map(len, groups))
    return st.sampled_from([mask for group in groups for mask in filled(group, longest if len(groups) > 1 else 1)])


@functools.cache
def _tilings(most_tiles: int) -> tuple[tuple[int, int], ...]:
    """(tiles of rows, tiles of keys), the fewest first."""
    ways = range(1, MOST_TILES_ONE_WAY + 1)
    pairs = [(rows, keys) for rows in ways for keys in ways if rows * keys <= most_tiles]
    return tuple(sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)))


@functools.cache
def _last_tile(size: int) -> st.SearchStrategy[int]:
    """How full the last tile is: barely, wholly, one less, a prime; or, as often as one of these, anything."""
    edges = tile_edges(size)
    return st.sampled_from((*edges * math.ceil(size / EDGES_TO_ANY), *range(1, size + 1)))


EDGES_TO_ANY = 2
"""Each of the few edges of a tile is drawn half as often as all other fillings together."""


@st.composite
def edits(draw: st.DrawFn, problem: Problem, most: int = 3) -> tuple[Edit, ...]:
    """Up to `most` elements of Q, K and V with a special value each; mostly none, for a NaN hides all else."""

    def pick(among: Sequence[Item]) -> Item:
        picked: Item = draw(_sampled(among))
        return picked

    count = draw(_sampled((*(0,) * 9, *range(1, most + 1))))
    return (*term_edits(pick, problem), *(one_edit(pick, problem) for _ in range(count)))


_problems_of = functools.cache(problems)


@st.composite
def cases(
    draw: st.DrawFn,
    builds: Sequence[AttentionBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    checks: Sequence[str] = (),
    check_share: int = 4,
    takes: Sequence[str] | None = None,
) -> Case:
    """Cases: a problem, a regime, a seed, edits and, in one of `check_share` cases, one of `checks`.

    `takes`: the kinds of masks that problems may have; None: all.
    """
    build = draw(_sampled(tuple(builds)))
    problem = draw(_problems_of((build,), most_tiles, takes=None if takes is None else tuple(takes)))
    check = draw(_sampled((None,) * max(1, (check_share - 1) * len(checks)) + tuple(checks)))
    return Case(problem, draw(regimes()), draw(seeds()), draw(edits(problem)), build.tile, check)
