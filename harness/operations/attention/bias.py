"""The additive bias of scores: the axes that it varies over, its shape, and how regimes draw it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array
from harness.operations.attention.masks import NO_MASK
from harness.support.errors import ProblemError

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

Axes = tuple[str, ...]

BIAS = "bias"
"""Name of the field, of the feature, and of the input: float32, (heads or 1, q_len or 1, kv_len or 1)."""
AXES: Axes = ("heads", "q_len", "kv_len")
"""Every axis that a bias may vary over, in the order of its array. Each is named as the field with its extent."""


def parse_axes(text: str) -> Axes | None:
    """Convert `heads,kv_len` to a tuple, and `none` to None. Raises `ProblemError`.

    `+` separates axes as well, because a sweep separates its values by commas.
    """
    return None if text == "none" else checked_axes(text)


def checked_axes(value: object) -> Axes | None:
    """Return axes in the order of `AXES`, given as text or as a sequence; None for None. Raises `ProblemError`."""
    if value is None:
        return None
    names = value.replace("+", ",").split(",") if isinstance(value, str) else value
    axes = [each.strip() if isinstance(each, str) else each for each in names] if isinstance(names, Iterable) else []
    if not axes or any(axis not in AXES for axis in axes) or len({*axes}) < len(axes):
        raise ProblemError(f"bias is {value!r}; list the axes that it varies over: one or more of {', '.join(AXES)}")
    return tuple(axis for axis in AXES if axis in axes)


def axes_of_array(array: np.ndarray) -> Axes:
    """Return the axes that a bias of this shape varies over; all if it does not have three axes."""
    if array.ndim != len(AXES):
        return AXES
    return tuple(axis for axis, extent in zip(AXES, array.shape) if extent != 1) or AXES[-1:]


# Drawing --------------------------------------------------------------------------------------------------------------


LARGE_16_BIT_SCORE = 4000.0
"""Largest bias in regimes whose scores are up to 60,000: their sum is within float16."""
HIDDEN_SHARE, BLIND_SHARE = 1 / 4, 1 / 8
"""Shares of keys and of rows with a bias of -inf in the regime `non-finite`."""


def drawn_bias(regime: str, rng: np.random.Generator, problem: Problem) -> Float64Array:
    """Draw the bias of a problem that has one.

    Its size is about that of the regime's scores, and what the regime states of scores also holds for their sum.
    """
    draw = _OF_REGIMES.get(regime, _standard_normal)
    return draw(rng, problem)


def _standard_normal(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return rng.standard_normal(problem.bias_shape)


def _hot(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return 40 * _standard_normal(rng, problem)


def _offset(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return 50 + _standard_normal(rng, problem)


def _between(rng: np.random.Generator, problem: Problem, low: float, high: float) -> Float64Array:
    return rng.uniform(low, high, problem.bias_shape)


def _constant(rng: np.random.Generator, problem: Problem) -> Float64Array:
    """The same for all keys of a row, so that their weights stay equal."""
    bias = _standard_normal(rng, problem)
    return np.broadcast_to(bias[..., :1], bias.shape)


def _rising(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return np.sort(_between(rng, problem, -20, 20), axis=-1)


def _falling(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return _rising(rng, problem)[..., ::-1]


def _repeated(rng: np.random.Generator, problem: Problem) -> Float64Array:
    return rng.integers(-1, 2, problem.bias_shape).astype(np.float64)


def _power_of_two_keys(rng: np.random.Generator, problem: Problem) -> Float64Array:
    """0 for the first 2^m keys of a row, -inf for the others, so that results stay exact."""
    *rest, keys = problem.bias_shape
    shown = 2 ** rng.integers(0, int(math.log2(keys)) + 1, (*rest, 1))
    return np.where(np.arange(keys) < shown, 0.0, -np.inf)


def _non_finite(rng: np.random.Generator, problem: Problem) -> Float64Array:
    """-inf for some keys and for all keys of some rows, and NaN and infinities where the mask hides what they apply to.

    Without an axis of keys, or of rows, only the other axis has -inf.
    """
    assert problem.bias is not None
    bias = _standard_normal(rng, problem)
    if "kv_len" in problem.bias:
        bias[rng.random(bias.shape) < HIDDEN_SHARE] = -np.inf
    if "q_len" in problem.bias:
        bias[rng.random((*bias.shape[:2], 1))[..., 0] < BLIND_SHARE] = -np.inf
    if problem.mask != NO_MASK:
        hidden = _hidden_by_mask(problem)
        bias[hidden] = rng.choice([np.nan, np.inf], np.count_nonzero(hidden))
    return bias


def _hidden_by_mask(problem: Problem) -> npt.NDArray[np.bool_]:
    """Return which elements of the bias apply only to keys that the mask hides from the row, in its shape."""
    heads, rows, keys = problem.bias_shape
    shown = np.zeros((heads, rows, keys), np.bool_)
    reduced = tuple(axis for axis, extent in enumerate((rows, keys)) if extent == 1)
    for sequence in range(problem.mask.sequences):
        for head in range(problem.heads if problem.mask.tells_heads_apart else 1):
            seen = problem.seen(sequence, head).any(axis=reduced, keepdims=True)
            shown[head if heads > 1 and problem.mask.tells_heads_apart else slice(None)] |= seen
    return ~shown


_OF_REGIMES: Mapping[str, Callable[[np.random.Generator, Problem], Float64Array]] = {
    "uniform": functools.partial(_between, low=0.0, high=1.0),
    "hot": _hot,
    "overflow": functools.partial(_between, low=-LARGE_16_BIT_SCORE, high=LARGE_16_BIT_SCORE),
    "negative": functools.partial(_between, low=-100.0, high=0.0),
    "far-negative": functools.partial(_between, low=-LARGE_16_BIT_SCORE, high=0.0),
    "constant": _constant,
    "rising": _rising,
    "falling": _falling,
    "offset": _offset,
    "exact": _power_of_two_keys,
    "repeated": _repeated,
    "non-finite": _non_finite,
}
"""How each regime draws a bias; N(0, 1) in all others."""
