"""Hypothesis strategies for attention: problems, regimes, seeds, edits, and cases, which are all of them together.

They draw a handful of small numbers and never a tensor, so Hypothesis can steer and shrink them. In a test of your
own, for whatever computes attention:

    from hypothesis import given, settings

    from harness.execution.question import Question
    from harness.operations.attention.strategies import cases


    @settings(deadline=None)
    @given(cases())
    def test_my_attention(case):
        inputs = case.inputs()  # Q, K and V as NumPy arrays
        accuracy = Question.pose(case.problem, inputs).hold({"O": my_attention(case.problem, **inputs)})
        assert accuracy.passed, accuracy.reason

What is plain comes first in every draw, and shrinking goes there: one tile, one head, batch 1, the first build, regime
`normal`, seed 0, no edits.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from harness.model.axes import Item, Pick
from harness.model.case import Case, Edit
from harness.operations.attention.build import BUILDS, AttentionBuild
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.masks import NO_MASK, Mask, mask_kinds
from harness.operations.attention.problem import SINKS, SLOPES, Problem
from harness.operations.attention.properties import SCORE_SHIFT

MOST_TILES = 6
"""Tiles of rows times tiles of keys, per head: enough for a first, a middle and a last one both ways."""
MOST_TILES_ONE_WAY = 4
CAUSAL, TWO_KINDS = "causal", "two kinds"
ALIBI = "alibi"
"""The feature, of `SCORE_FEATURES`, by which scores depend on distances."""
SOFTCAPS = (1.0, 30.0)
DROPOUTS = ((0.5, 0), (0.1, 2**32 + 7), (0.75, 1), (0.5, 2**63))
"""Shares and seeds. 1 / (1 - P) is a power of two for most, so that some answers are exact."""
PRODUCT_ROWS = 32
"""Of a warp, 16 or 32 on tensor cores: rows that are all before a key, or all behind it, may be taken together."""
BESIDE_EDGES = (None, -2, 2, 2, -2, 2, -1, 1)
"""How far from such an edge keys turn from before to behind; None: wherever it is."""
BESIDE_SQUARES = ((0, 0), (0, 0), (2, 0), (2, 0), (0, 2))
"""How many rows and keys less."""
STEEP_SLOPES = (1.0, 0.5)
"""Of ALiBi: the paper's for few heads take 1 / 256 or 1 / 16 off a score from key to key, which roundings hide."""
CROWD = 23
"""Heads, or sequences, in a few problems that are tiny otherwise."""


def problems(
    builds: Sequence[AttentionBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    scales: Sequence[float | None] = (None, None, None, None, 1.0, 0.25, -0.25, 0.0),
    takes: Sequence[str] | None = None,
) -> st.SearchStrategy[Problem]:
    """Problems of a few tiles: lengths at and beside the edges of tiles, groups, batches, masks, any scale.

    `q_len` and `kv_len` are drawn on their own, so causal problems with rows that see nothing come along.
    """
    return _problems(_sampled(tuple(builds)), most_tiles, tuple(scales), _kinds(takes))


@functools.cache
def regimes() -> st.SearchStrategy[str]:
    """The name of a regime; `normal` is the plainest."""
    return st.sampled_from(tuple(REGIMES))


@functools.cache
def seeds() -> st.SearchStrategy[int]:
    """A seed for the inputs."""
    return st.integers(0, 2**16 - 1)


SPECIAL_VALUES = (0.0, 1.0, -1.0, -0.0, 1e-40, 6e-8, 1e-3, 60.0, -60.0)
"""Nothing, signs, subnormal in float32 and in float16, and what stands out of a normal draw."""
LARGE_VALUES = (6e4, -6e4)
"""For V: O stays below them. Scores that overflow would have no answer."""


def edits(problem: Problem, most: int = 3) -> st.SearchStrategy[tuple[Edit, ...]]:
    """Up to `most` elements of Q, K and V with a special value each; mostly none, for a NaN hides all else."""
    return _edits(problem, most)


def cases(
    builds: Sequence[AttentionBuild] = BUILDS,
    most_tiles: int = MOST_TILES,
    checks: Sequence[str] = (),
    check_share: int = 4,
    takes: Sequence[str] | None = None,
) -> st.SearchStrategy[Case]:
    """Cases: a problem, a regime, a seed, edits and, in one of `check_share` cases, one of `checks`.

    `takes`: the kinds of masks that problems may have; None: all.
    """
    return _cases(tuple(builds), most_tiles, tuple(checks), check_share, _kinds(takes))


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
def _problems(
    draw: st.DrawFn,
    of_builds: st.SearchStrategy[AttentionBuild],
    most_tiles: int,
    scales: tuple[float | None, ...],
    takes: frozenset[str],
) -> Problem:
    build = draw(of_builds)
    row_tiles, key_tiles = draw(_sampled(_tilings(most_tiles)))
    crowds = _CROWDS if row_tiles * key_tiles <= 2 else ()
    batch, kv_heads, group = draw(_sampled(_BATCH_KV_HEADS_GROUP + crowds))
    masked, scale = draw(_sampled(tuple(itertools.product((False, True) if takes else (False,), scales))))
    q_len = (row_tiles - 1) * build.tile_rows + draw(_last_tile(build.tile_rows))
    kv_len = (key_tiles - 1) * build.tile_keys + draw(_last_tile(build.tile_keys))
    if key_tiles > 1:
        kv_len = fewer_keys_beside_edges(lambda among: draw(_sampled(among)), build, kv_len, q_len)
    mask = draw(_masks(build.tile_keys, takes)) if masked else NO_MASK
    return Problem(
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=build.head_dim,
        dtype=build.dtype,
        mask=mask.fitted(batch, kv_len),
        scale=scale,
        **build.fields_of_features(draw(_sampled(SOFTCAPS)), draw(_sampled(DROPOUTS))) if build.features else {},
    )


def fewer_keys_beside_edges(pick: Pick, build: AttentionBuild, kv_len: int, q_len: int) -> int:
    """Up to 31 keys less, if any, where scores depend on distances.

    Keys are before a row, then behind it; where they turn mostly lies close to edges of matrix products then.
    """
    return _fewer(pick, build, kv_len, lambda beside: kv_len - q_len - beside)


def fewer_rows_beside_edges(pick: Pick, build: AttentionBuild, q_len: int, kv_len: int) -> int:
    """The same, of rows, where the number of keys is what it is for a reason."""
    return _fewer(pick, build, q_len, lambda beside: q_len - kv_len + beside)


def about_square(pick: Pick, build: AttentionBuild, length: int) -> tuple[int, int]:
    """As many rows as keys, or two less of one of them where scores depend on distances."""
    fewer_rows, fewer_keys = pick(BESIDE_SQUARES) if ALIBI in build.features else (0, 0)
    return max(1, length - fewer_rows), max(1, length - fewer_keys)


def _fewer(pick: Pick, build: AttentionBuild, length: int, beyond: Callable[[int], int]) -> int:
    beside = pick(BESIDE_EDGES) if ALIBI in build.features else None
    less = 0 if beside is None else beyond(beside) % PRODUCT_ROWS
    return length - less if less < length else length


@functools.cache
def _masks(tile_keys: int, takes: frozenset[str]) -> st.SearchStrategy[Mask]:
    """Each kind of mask that is taken, and each two of them together, as often as any other."""
    groups = list(masks_by_kind(tile_keys, takes).values())
    longest = max(map(len, groups))
    return st.sampled_from([mask for group in groups for mask in _filled(group, longest if len(groups) > 1 else 1)])


@functools.cache
def masks_by_kind(tile_keys: int, takes: frozenset[str]) -> Mapping[str, tuple[Mask, ...]]:
    """Masks of each kind that is taken, and of each two kinds together that say more, such as `causal+window`.

    Two kinds of which neither is causal are one kind, and so is what is no run with all that it goes together with:
    more kinds than that would keep the others from being met.
    """
    drawn = {name: kind.drawn(tile_keys) for name, kind in mask_kinds().items() if name in takes}
    runs = {name: masks for name, masks in drawn.items() if masks[0].is_run}
    pairs: dict[str, tuple[Mask, ...]] = {}
    for one, other in itertools.combinations(runs, 2):
        if one not in mask_kinds()[other].implied_by and other not in mask_kinds()[one].implied_by:
            name = f"{one}+{other}" if CAUSAL in (one, other) else TWO_KINDS
            pairs[name] = pairs.get(name, ()) + tuple(dict.fromkeys(a & b for a in runs[one] for b in runs[other]))
    others = [mask for masks in runs.values() for mask in masks]
    return {name: masks if name in runs else _with_each(masks, others) for name, masks in drawn.items()} | pairs


def _with_each(masks: tuple[Mask, ...], others: Sequence[Mask]) -> tuple[Mask, ...]:
    """Those alone, and as often one of them in turn with each of the others."""
    together = [mask & other for mask, other in zip(itertools.cycle(masks), others)]
    return (*_filled(masks, len(together)), *together)


def _filled(masks: tuple[Mask, ...], length: int) -> Iterator[Mask]:
    return itertools.islice(itertools.cycle(masks), max(length, len(masks)))


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


def tile_edges(size: int) -> list[int]:
    """Fillings of a tile at which kernels go wrong."""
    return [n for n in (1, size, size - 1, _largest_prime_below(size - 1), 2) if 1 <= n <= size]


EDGES_TO_ANY = 2
"""Each of the few edges of a tile is drawn half as often as all other fillings together."""


def _largest_prime_below(limit: int) -> int:
    """The largest prime under `limit`, 1 where there is none."""
    candidates = range(limit - 1, 1, -1)
    return next((n for n in candidates if all(n % d for d in range(2, math.isqrt(n) + 1))), 1)


@st.composite
def _edits(draw: st.DrawFn, problem: Problem, most: int) -> tuple[Edit, ...]:
    def pick(among: Sequence[Item]) -> Item:
        picked: Item = draw(_sampled(among))
        return picked

    count = draw(_sampled((*(0,) * 9, *range(1, most + 1))))
    return (*steep_slopes(pick, problem), *(one_edit(pick, problem) for _ in range(count)))


def steep_slopes(pick: Pick, problem: Problem) -> tuple[Edit, ...]:
    """In half of the problems with ALiBi, one head's slope is as steep as those of many heads are."""
    if not problem.alibi or not pick((False, True)):
        return ()
    return (Edit(SLOPES, (pick(range(problem.heads)),), pick(STEEP_SLOPES)),)


def one_edit(pick: Pick, problem: Problem) -> Edit:
    """One element of Q, K or V with a special value, or of slopes or sinks."""
    shapes = {tensor.name: tensor.shape for tensor in problem.inputs}
    others = [name for name in (SLOPES, SINKS) if name in shapes]
    # What a mask hides is V above all: scores are hidden by what stands in their place.
    array = pick((*(("V", "V") if problem.mask != NO_MASK else ("V",)), "K", "Q", *others))
    index = tuple(pick(range(extent)) for extent in shapes[array])
    values = SPECIAL_VALUES + (LARGE_VALUES if array == "V" else ())
    is_masked = problem.mask != NO_MASK and array in "KV"
    if is_masked and pick((False, True)):
        sequence, head, key, column = index
        index = (sequence, head, _key_beside_run(pick, problem, sequence, key), column)
    # Behind a mask a NaN must not reach the rows that do not see it; without one it hides all else.
    nans = len(values) if is_masked else 1
    return Edit(array, index, pick(values + (math.nan,) * nans))


def _key_beside_run(pick: Pick, problem: Problem, sequence: int, otherwise: int) -> int:
    """A key next to those that some row sees: in the same tile, mostly, as keys that it does see."""
    row = pick(range(problem.q_len))
    (first,), (end,) = problem.span(np.array([row]), sequence)
    beside = tuple(int(key) for key in (first - 1, end) if first < end and 0 <= key < problem.kv_len)
    return pick(beside) if beside else otherwise


LARGEST_ORDINARY = 1.0
"""An element of Q or K that stands out of no regime."""


def raises_scores(case: Case) -> bool:
    """Whether its scale, edits of Q or K, or its property may give larger scores than its regime has by default."""
    scale = abs(case.problem.tau) * math.sqrt(case.problem.head_dim)
    stands_out = any(edit.array != "V" and abs(edit.value) > LARGEST_ORDINARY for edit in case.edits)
    return scale > 1.01 or stands_out or case.check == SCORE_SHIFT


@functools.cache
def _problems_of(build: AttentionBuild, most_tiles: int, takes: frozenset[str]) -> st.SearchStrategy[Problem]:
    return problems((build,), most_tiles, takes=tuple(sorted(takes)))


@st.composite
def _cases(
    draw: st.DrawFn,
    builds: tuple[AttentionBuild, ...],
    most_tiles: int,
    checks: tuple[str, ...],
    share: int,
    takes: frozenset[str],
) -> Case:
    build = draw(_sampled(builds))
    problem = draw(_problems_of(build, most_tiles, takes))
    check = draw(_sampled((None,) * max(1, (share - 1) * len(checks)) + checks))
    return Case(problem, draw(regimes()), draw(seeds()), draw(edits(problem)), build.tile, check)
