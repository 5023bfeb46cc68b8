"""Guesses the kind of error from the positions of wrong elements and their numerical relation to the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from harness.model.array_types import Float64Array, Mask
from harness.model.operation import Hints

ALIKE = 1e-3
"""Ratios or differences that agree within this relative tolerance count as one number."""
LEAST_ALIKE = 0.95
"""Share of the wrong elements that has to agree."""

MOST_RUNS = 3
"""Maximum number of runs of rows or columns that are listed."""


def describe_pattern(
    hints: Hints,
    axes: tuple[str, ...],
    got: Float64Array,
    expected: Float64Array,
    wrong: Mask,
    unwritten: Mask,
    tile_rows: int | None = None,
    *,
    is_main: bool = True,
    has_features: bool = False,
) -> str:
    """Describe the wrong elements briefly, such as `2 x the answer; rows 64 to 66 (the last 3 of 67)`.

    All arrays have the output's shape, whose axes are named `axes`. `hints` are numbers typical of wrong answers.
    `tile_rows` is the variant's rows per tile, if declared. `is_main` marks the operation's main output. `has_features`
    means that the problem is not the plainest, so rows may be empty.
    """
    assert wrong.any()
    relation = _relation(hints, got, expected, wrong, unwritten, is_main, has_features)
    where = _where(axes, wrong, tile_rows)
    return f"{relation}; {where}" if relation else f"beyond the budget in {where}"


def _relation(
    hints: Hints,
    got: Float64Array,
    expected: Float64Array,
    wrong: Mask,
    unwritten: Mask,
    is_main: bool,
    has_features: bool,
) -> str | None:
    """The numerical relation of the wrong elements to the answer; None if there is no simple one."""
    if (unwritten & wrong).any():
        return "never written" if unwritten[wrong].all() else "partly never written"
    g, e = got[wrong], expected[wrong]
    if np.isnan(g).all():
        return "NaN"
    if not np.isfinite(g).all():
        return "partly NaN or infinite"
    if (g == 0).all():
        return "zero"
    if np.isneginf(e).all() or (e == 0).all():
        return "rows that see no key are not empty" if has_features else "nonzero where the answer is zero"
    usable = np.isfinite(e) & (e != 0)
    if usable.sum() < max(1, LEAST_ALIKE * len(g)):
        return None
    if hints.addends:
        difference = _one_number(g[usable] - e[usable])
        if difference is not None:
            return f"the answer {difference:+.6g}{_named(abs(difference), hints.addends)}"
    ratios = g[usable] / e[usable]
    factor = _one_number(ratios)
    if factor is None and len(ratios) == 1 and _named(float(ratios[0]), hints.factors):
        factor = float(ratios[0])  # a single number is a factor only if it is a known one
    if factor is None:
        return (
            "each row multiplied by a different factor"
            if is_main and _one_number_per_row(got, expected, wrong)
            else None
        )
    return f"{factor:.6g} x the answer{_named(factor, hints.factors)}"


def _named(number: float, names: Mapping[float, str]) -> str:
    return next((f" ({name})" for known, name in names.items() if abs(number - known) <= ALIKE * abs(known)), "")


def _one_number(values: Float64Array) -> float | None:
    """The number that nearly all of `values` equal; None if there is none."""
    middle = float(np.median(values))
    alike = np.abs(values - middle) <= ALIKE * abs(middle)
    return middle if len(values) > 1 and alike.mean() >= LEAST_ALIKE else None


def _one_number_per_row(got: Float64Array, expected: Float64Array, wrong: Mask) -> bool:
    """Whether the error of nearly every row is a constant factor, so that a scale or divisor is wrong."""
    rows = [(got[at][here], expected[at][here]) for at in np.ndindex(wrong.shape[:-1]) if (here := wrong[at]).sum() > 1]
    with np.errstate(divide="ignore", invalid="ignore"):
        alike = [_one_number(g / e) is not None for g, e in rows]
    return len(alike) > 1 and float(np.mean(alike)) >= LEAST_ALIKE


def _where(names: tuple[str, ...], wrong: Mask, tile_rows: int | None) -> str:
    """The batch entries, heads, rows and columns that contain wrong elements."""
    if wrong.all():
        return "every element"
    axes = tuple(range(wrong.ndim))
    touched: list[Mask] = [np.asarray(wrong.any(axis=tuple(o for o in axes if o != axis))) for axis in axes]
    parts = []
    for axis, (one, many) in zip(axes, map(_in_words, names)):
        if not touched[axis].all():
            tile = tile_rows if many == "rows" else None
            parts.append(_indices(touched[axis], one, many, tile))
    filled = wrong[np.ix_(*(np.flatnonzero(indices) for indices in touched))].mean()
    if filled < 1:
        whole_rows = names[-1] == "column" and np.array_equal(wrong.any(axis=-1), wrong.all(axis=-1))
        share = "nearly all" if filled > 0.99 else f"{100 * filled:.0f} %" if filled > 0.01 else "few"
        parts.append(f"{share} of the {'rows' if whole_rows else 'elements'}{' there' if parts else ''}")
    return ", ".join(parts)


def _in_words(axis: str) -> tuple[str, str]:
    """The singular and plural of an axis' index; `batch` is not countable by itself."""
    return ("batch entry", "batch entries") if axis == "batch" else (axis, f"{axis}s")


def _indices(touched: Mask, one: str, many: str, tile: int | None) -> str:
    """`rows 64 to 66 (the last 3 of 67)`, `head 1 only`, `columns 1, 3, ... 15 (every 2nd)`, `rows 0, 5, 9`."""
    indices = np.flatnonzero(touched)
    first, last, size = int(indices[0]), int(indices[-1]), len(touched)
    if len(indices) == 1:
        return f"{one} {first} only" + (f" (the last of {size})" if first == size - 1 else "")
    steps = set(np.diff(indices).tolist())
    if steps == {1}:
        if tile is not None and first % tile == 0 and last == min(first + tile, size) - 1:
            return f"{many} {first} to {last} (tile {first // tile} of {-(-size // tile)}, counted from 0)"
        end = f" (the last {len(indices)} of {size})" if last == size - 1 else ""
        return f"{many} {first} to {last}{end}"
    if len(steps) == 1 and len(indices) > 2:
        return f"{many} {first}, {int(indices[1])}, ... {last} (every {steps.pop()})"
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    if len(runs) <= MOST_RUNS < len(indices):
        return f"{many} {', '.join(str(int(run[0])) if len(run) == 1 else f'{run[0]} to {run[-1]}' for run in runs)}"
    if len(indices) <= 4:
        return f"{many} {', '.join(str(int(i)) for i in indices)}"
    return f"{len(indices)} of {size} {many}, from {one} {first} to {one} {last}"


MOST_FLOPS = 1e7
"""Largest problem in FLOP for which known errors are evaluated, each of which takes about as long as the answer:
milliseconds."""
MUCH_NEARER = 0.1
"""Maximum mean distance of the wrong elements from a known error, relative to their distance from the answer. Without
it, a budget as wide as the error is large would match anything."""
MOST_NAMED = 3
"""Maximum number of matching errors that are listed: several coincide in a small problem."""


def recognised(
    output: str,
    axes: tuple[str, ...],
    got: Float64Array,
    answer: Float64Array,
    allowed: Float64Array,
    wrong: Mask,
    mistakes: Iterable[tuple[str, Mapping[str, Float64Array]]],
) -> str | None:
    """Such as `equals the answer without the last key`; None if no known error matches.

    All arrays have the shape of `output`, whose axes are named `axes`; `allowed` is its budget. Only the wrong elements
    are compared: the others may be right for other reasons.
    """
    found = []
    for name, outputs in mistakes:
        if output in outputs and _fits(got, outputs[output], answer, allowed, wrong):
            found.append(name)
    if not found:
        found = [
            name
            for name, other, known in _neighbours(axes, answer)
            # Elements at the edge have no neighbour.
            if 2 * (wrong & known).sum() > wrong.sum() and _fits(got, other, answer, allowed, wrong & known)
        ]
    if not found or len(found) > MOST_NAMED:
        return None
    return f"equals {', or '.join(found)}"


def _fits(got: Float64Array, other: Float64Array, answer: Float64Array, allowed: Float64Array, wrong: Mask) -> bool:
    """Whether the wrong elements are within their budget of another answer, and much closer to it than to the answer.

    Elements that are zero or NaN there are not counted. Where the answer is exact, the largest budget applies. If the
    other answer overflows, nearly the same elements have to be infinite or NaN.
    """
    overflows = ~np.isfinite(other) & np.isfinite(answer)
    if overflows.any():
        return float((overflows == ~np.isfinite(got))[wrong].mean()) >= LEAST_ALIKE and bool(wrong[overflows].all())
    g, o, e, a = got[wrong], other[wrong], answer[wrong], allowed[wrong]
    numbers = np.isfinite(g) & np.isfinite(o) & np.isfinite(e)
    if not numbers.all() or not o.any():
        return False
    off = np.abs(g - o)
    return bool((off <= np.where(a > 0, a, a.max())).all() and off.mean() <= MUCH_NEARER * np.abs(g - e).mean())


def _neighbours(axes: tuple[str, ...], answer: Float64Array) -> Iterator[tuple[str, Float64Array, Mask]]:
    """The right answer shifted by one along each axis: name, array, and a mask of elements with such a neighbour."""
    for axis, name in enumerate(axes):
        size = answer.shape[axis]
        if size > 1:
            word = "batch entry" if name == "batch" else name
            place = np.arange(size).reshape([-1 if each == axis else 1 for each in range(answer.ndim)])
            for which, step, known in (("previous", 1, place > 0), ("next", -1, place < size - 1)):
                there = np.broadcast_to(known, answer.shape)
                yield f"the answer of the {which} {word}", np.roll(answer, step, axis), there
