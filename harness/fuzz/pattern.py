"""A guess at the kind of mistake: where the wrong elements lie, and what number stands between them and the answer."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.problem import Problem

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ALIKE = 1e-3
"""Ratios, or differences, that agree within this share of each other are one number."""
LEAST_ALIKE = 0.95
"""Share of the wrong elements that has to agree."""


def describe_pattern(
    problem: Problem, output: str, got: Float64Array, expected: Float64Array, wrong: Mask, unwritten: Mask
) -> str:
    """What the wrong elements look like, in a few words: `got 2 x the answer; rows 64 to 66, the last ones`.

    All arrays have the output's shape: (batch, heads, q_len, head_dim), or without the last for lse.
    """
    assert wrong.any()
    relation = _relation(problem, output, got, expected, wrong, unwritten)
    return f"{relation}; {_where(problem, wrong)}" if relation else _where(problem, wrong)


def _relation(
    problem: Problem, output: str, got: Float64Array, expected: Float64Array, wrong: Mask, unwritten: Mask
) -> str | None:
    """What stands where the answer should."""
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
        return "rows that see no key are not empty" if problem.causal else "something where nothing should be"
    usable = np.isfinite(e) & (e != 0)
    if usable.sum() < max(2, LEAST_ALIKE * len(g)):
        return None
    if output == "lse":
        difference = _one_number(g[usable] - e[usable])
        if difference is not None:
            return f"the answer {difference:+.6g}{_named(abs(difference), ADDENDS)}"
    factor = _one_number(g[usable] / e[usable])
    return None if factor is None else f"{factor:.6g} x the answer{_named(factor, FACTORS)}"


FACTORS = {
    1 / math.log(2): "1 / ln 2: a logarithm to base 2",
    math.log(2): "ln 2: a base of 2 where it should be e, or the other way round",
    -1.0: "the sign is wrong",
}
ADDENDS = {math.log(2): "ln 2: counted twice, or half"}


def _named(number: float, names: dict[float, str]) -> str:
    return next((f" ({name})" for known, name in names.items() if abs(number - known) <= ALIKE * abs(known)), "")


def _one_number(values: Float64Array) -> float | None:
    """What nearly all of `values` are, or None."""
    middle = float(np.median(values))
    alike = np.abs(values - middle) <= ALIKE * abs(middle)
    return middle if len(values) > 1 and alike.mean() >= LEAST_ALIKE else None


def _where(problem: Problem, wrong: Mask) -> str:
    """Which batch entries, heads, rows and columns hold wrong elements."""
    if wrong.all():
        return "every element"
    names = ("batch entries", "heads", "rows", "columns")
    parts = []
    for axis, name in zip(range(wrong.ndim), names):
        others = tuple(other for other in range(wrong.ndim) if other != axis)
        touched = wrong.any(axis=others)
        if not touched.all():
            parts.append(f"{name} {_indices(touched)}")
    # Whole rows, or scattered over the box that the parts describe.
    box = np.ix_(*(np.flatnonzero(wrong.any(axis=tuple(o for o in range(wrong.ndim) if o != a))) for a in range(wrong.ndim)))
    filled = wrong[box].mean()
    if filled < 1:
        if wrong.ndim == 4 and np.array_equal(wrong.any(axis=3), wrong.all(axis=3)):
            parts.append("whole rows, some of them")
        else:
            parts.append(f"{100 * filled:.0f} % of the elements there")
    return ", ".join(parts)


def _indices(touched: Mask) -> str:
    """`64 to 66 (the last 3)`, `only 1`, `every 2nd from 1 on`, `0, 5, 9`."""
    indices = np.flatnonzero(touched)
    first, last, size = int(indices[0]), int(indices[-1]), len(touched)
    if len(indices) == 1:
        return f"{first} alone" + (f" (the last of {size})" if first == size - 1 else "")
    steps = set(np.diff(indices).tolist())
    if steps == {1}:
        end = f" (the last {len(indices)} of {size})" if last == size - 1 else ""
        return f"{first} to {last}{end}"
    if len(steps) == 1 and len(indices) > 2:
        return f"{first}, {int(indices[1])}, ... {last} (every {steps.pop()})"
    if len(indices) <= 4:
        return ", ".join(str(int(i)) for i in indices)
    return f"{len(indices)} of {size} between {first} and {last}"
