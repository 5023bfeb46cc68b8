"""Values that cases of attention take, however they are drawn: edges of tiles, masks, scales, edits.

A function that chooses takes a `Pick`, so that both the axes of a campaign and Hypothesis's strategies draw from here.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.model.cases.axes import Pick
from harness.model.cases.case import Case, Edit
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.masks import NO_MASK, Mask, band_limits, mask_kinds
from harness.operations.attention.masks.varlen import Varlen
from harness.operations.attention.masks.window import Window
from harness.operations.attention.problem import Problem
from harness.operations.attention.properties import SCORE_SHIFT

CAUSAL, TWO_KINDS = "causal", "two kinds"
SCALES: Mapping[str, tuple[float | None, ...]] = {
    "default": (None,),
    "other": (1.0, 0.25),
    "negative": (-0.25,),
    "0": (0.0,),
}
PRODUCT_ROWS = 32
"""Rows of a warp, 16 or 32 on tensor cores: those all before a key, or all behind it, may be taken together."""
BESIDE_EDGES = (None, -2, 2, 2, -2, 2, -2, 2)
"""How far from such an edge keys turn from before to behind; None: wherever it is."""
ONE_KEY_LESS = 2
"""Distance of a diagonal from an edge for which rows of a product see a whole tile, except for one key of one row."""
BESIDE_SQUARES = ((0, 0), (0, 2), (2, 0), (2, 0), (0, 2))
"""How many rows and keys less."""
SPECIAL_VALUES = (0.0, 1.0, -1.0, -0.0, 1e-40, 6e-8, 1e-3, 60.0, -60.0)
"""Nothing, signs, subnormal in float32 and in float16, and what stands out of a normal draw."""
LARGE_VALUES = (6e4, -6e4)
"""For V: O stays below them. Scores that overflow would have no answer."""


def fewer_keys_beside_edges(pick: Pick, build: AttentionBuild, kv_len: int, q_len: int) -> int:
    """Up to 31 keys less, if any, where scores depend on distances.

    Keys are before a row, then behind it; where they turn mostly lies close to edges of matrix products then.
    """
    return _fewer(pick, build, kv_len, lambda beside: kv_len - q_len - beside)


def fewer_rows_beside_edges(pick: Pick, build: AttentionBuild, q_len: int, kv_len: int) -> int:
    """Up to 31 rows less, if any, where scores depend on distances and the number of keys is fixed."""
    return _fewer(pick, build, q_len, lambda beside: q_len - kv_len + beside)


def about_square(pick: Pick, build: AttentionBuild, length: int) -> tuple[int, int]:
    """As many rows as keys, or two less of one of them where scores depend on distances."""
    fewer_rows, fewer_keys = pick(BESIDE_SQUARES) if build.depends_on_distance else (0, 0)
    return max(1, length - fewer_rows), max(1, length - fewer_keys)


def depends_on_distances(build: AttentionBuild, mask: Mask) -> bool:
    """Whether a key before a row's own place is treated differently from one behind it: by a term, or by the mask."""
    return build.depends_on_distance or (mask.is_band and band_limits(mask)[1] == 0)


def differs_by_tiles(mask: Mask, q_len: int, kv_len: int, tile_keys: int) -> bool:
    """Whether the first or last key that a row sees lies in another tile than that of the same row of sequence 0."""
    if kv_len <= tile_keys:
        return False
    rows = np.arange(q_len)
    own, *others = dict.fromkeys(mask.runs.of_sequence(number) for number in range(mask.sequences))
    first, end = own.span(rows, q_len, kv_len)
    for other in others:
        other_first, other_end = other.span(rows, q_len, kv_len)
        differs = (other_first // tile_keys != first // tile_keys) | (
            (other_end - 1) // tile_keys != (end - 1) // tile_keys
        )
        if (differs & (other_first < other_end)).any():
            return True
    return False


def window_beside_edges(mask: Mask, q_len: int, kv_len: int) -> Mask:
    """The mask with changed limits of its window: rows of a product see a tile except for its last, or first, key.

    That key is hidden from one of the rows. Limits change by less than `PRODUCT_ROWS`.
    """
    window = next(part for part in mask.parts if isinstance(part, Window))
    place = kv_len - q_len
    return mask.without(Window.kind) & Window(
        _moved(window.left, (place - ONE_KEY_LESS) % PRODUCT_ROWS),
        _moved(window.right, (-place - ONE_KEY_LESS) % PRODUCT_ROWS),
    )


def _moved(limit: int, remainder: int) -> int:
    """The nearest limit, preferably not a larger one, with this remainder modulo `PRODUCT_ROWS`."""
    less = (limit - remainder) % PRODUCT_ROWS
    return limit - less if less <= limit else limit - less + PRODUCT_ROWS


def ends_lie_apart(mask: Mask, build: AttentionBuild, q_len: int, kv_len: int) -> bool:
    """Whether a tile of rows sees several tiles of keys, but no `PRODUCT_ROWS` rows see both the first and the last."""
    before, after = band_limits(mask)
    place, size = kv_len - q_len, build.tile_keys

    def tiles(begin: int, rows: int) -> tuple[int, int]:
        last = min(begin + rows, q_len) - 1
        first = 0 if before is None else min(max(begin + place - before, 0), kv_len)
        end = kv_len if after is None else min(max(last + place + after + 1, 0), kv_len)
        return first // size, (end - 1) // size

    for begin in range(0, q_len, max(build.tile_rows, PRODUCT_ROWS)):
        first, last = of_tile = tiles(begin, max(build.tile_rows, PRODUCT_ROWS))
        products = range(begin, min(begin + build.tile_rows, q_len), PRODUCT_ROWS)
        if first < last and all(tiles(row, PRODUCT_ROWS) != of_tile for row in products):
            return True
    return False


def _fewer(pick: Pick, build: AttentionBuild, length: int, beyond: Callable[[int], int]) -> int:
    beside = pick(BESIDE_EDGES) if build.depends_on_distance else None
    less = 0 if beside is None else beyond(beside) % PRODUCT_ROWS
    return length - less if less < length else length


@functools.cache
def masks_by_kind(tile_keys: int, takes: frozenset[str]) -> Mapping[str, tuple[Mask, ...]]:
    """Masks of each kind that is taken, and of each two kinds together that say more, such as `causal+window`.

    Two kinds of which neither is causal are one kind, and so are unpadded sequences, and what is no run, with all that
    they go together with: more kinds than that would keep the others from being met.
    """
    drawn = {name: kind.drawn(tile_keys) for name, kind in mask_kinds().items() if name in takes}
    runs = {name: masks for name, masks in drawn.items() if masks[0].is_run and name != Varlen.kind}
    pairs: dict[str, tuple[Mask, ...]] = {}
    for one, other in itertools.combinations(runs, 2):
        if one not in mask_kinds()[other].implied_by and other not in mask_kinds()[one].implied_by:
            name = f"{one}+{other}" if CAUSAL in (one, other) else TWO_KINDS
            pairs[name] = pairs.get(name, ()) + tuple(dict.fromkeys(a & b for a in runs[one] for b in runs[other]))
    others = [mask for masks in runs.values() for mask in masks]
    bands = [masks for masks in runs.values() if masks[0].is_band]
    # Of unpadded sequences: each kind of band as often as another.
    within = [mask for masks in bands for mask in filled(masks, max(map(len, bands)))]
    each = {name: within if name == Varlen.kind else others for name in drawn}
    return {name: masks if name in runs else _with_each(masks, each[name]) for name, masks in drawn.items()} | pairs


def _with_each(masks: tuple[Mask, ...], others: Sequence[Mask]) -> tuple[Mask, ...]:
    """Those alone, and as often one of them in turn with each of the others."""
    together = [mask & other for mask, other in zip(itertools.cycle(masks), others)]
    return (*filled(masks, len(together)), *together)


def filled(masks: tuple[Mask, ...], length: int) -> Iterator[Mask]:
    """These masks, from the first on again until there are `length`; each once, if they are more."""
    return itertools.islice(itertools.cycle(masks), max(length, len(masks)))


def tile_edges(size: int) -> list[int]:
    """Fillings of a tile at which kernels go wrong."""
    return [n for n in (1, size, size - 1, _largest_prime_below(size - 1), 2) if 1 <= n <= size]


def _largest_prime_below(limit: int) -> int:
    """The largest prime under `limit`, 1 where there is none."""
    candidates = range(limit - 1, 1, -1)
    return next((n for n in candidates if all(n % d for d in range(2, math.isqrt(n) + 1))), 1)


def term_edits(pick: Pick, problem: Any) -> tuple[Edit, ...]:
    """The edits that score terms make."""
    return tuple(edit for term in problem.terms for edit in term.edits(pick, problem))


def one_edit(pick: Pick, problem: Problem) -> Edit:
    """One element of Q, K or V, or of an input of a score term or sinks, with a special value."""
    shapes = {tensor.name: tensor.shape for tensor in problem.inputs}
    of_terms = {tensor.name: (term, tensor) for term in problem.terms for tensor in term.inputs(problem)}
    # What a mask hides is V above all: scores are hidden by what stands in their place.
    array = pick((*(("V", "V") if problem.mask != NO_MASK else ("V",)), "K", "Q", *of_terms))
    index = tuple(pick(range(extent)) for extent in shapes[array])
    values: tuple[float, ...] = SPECIAL_VALUES
    key_axis: int | None = None
    sequence, rows = 0, range(problem.q_len)
    if array in "KV":
        values, key_axis, sequence = values + (LARGE_VALUES if array == "V" else ()), 2, index[0]
    elif array in of_terms:
        term, tensor = of_terms[array]
        values, key_axis = values + term.special_values, tensor.axis("key")
        if (row_axis := tensor.axis("row")) is not None:
            rows = range(index[row_axis], index[row_axis] + 1)
    is_masked = problem.mask != NO_MASK and key_axis is not None
    if key_axis is not None and is_masked and pick((False, True)):
        key = _key_beside_run(pick, problem, sequence, rows, index[key_axis])
        index = (*index[:key_axis], key, *index[key_axis + 1 :])
    # Behind a mask a NaN must not reach the rows that do not see it; without one it hides all else.
    nans = len(values) if is_masked else 1
    return Edit(array, index, pick(values + (math.nan,) * nans))


def _key_beside_run(pick: Pick, problem: Problem, sequence: int, rows: Sequence[int], otherwise: int) -> int:
    """A key next to those that one of these rows sees: in the same tile, mostly, as keys that it does see."""
    row = pick(rows)
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
