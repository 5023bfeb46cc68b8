"""How X is drawn: the regimes of softmax. A new one is a function and a line at the end."""

from __future__ import annotations

import functools

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.regime import Regime, by_name
from harness.operations.softmax.problem import SoftmaxProblem

Drawn = tuple[Float64Array]

STEEPEST = 20.0
"""|x| where x rises or falls along a row: exp of it is far from overflow."""
NEEDLE = 40.0
"""How far one value stands above the others: all of the weight, in 16 bits and in float32."""
REPEATS = 8
"""Values that there are to choose from per row, where they are repeated."""
DEPTHS = {"float32": (80.0, 110.0), "float16": (8.0, 20.0), "bfloat16": (80.0, 110.0)}
"""How far below the maximum the weights are around the smallest normal number of a dtype: exp(-87.3), exp(-9.7)."""


def _gaussian(rng: np.random.Generator, problem: SoftmaxProblem, mean: float, deviation: float) -> Drawn:
    return (mean + deviation * rng.standard_normal(problem.shape),)


def _between(rng: np.random.Generator, problem: SoftmaxProblem, low: float, high: float) -> Drawn:
    return (rng.uniform(low, high, problem.shape),)


_normal = functools.partial(_gaussian, mean=0.0, deviation=1.0)
_hot = functools.partial(_gaussian, mean=0.0, deviation=100.0)
_offset = functools.partial(_gaussian, mean=100.0, deviation=1.0)
_uniform = functools.partial(_between, low=0.0, high=1.0)
_negative = functools.partial(_between, low=-400.0, high=-120.0)
_far_negative = functools.partial(_between, low=-60_000.0, high=-50_000.0)


def _constant(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    return (np.broadcast_to(rng.standard_normal((problem.rows, 1)), problem.shape),)


def _rising(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    steepness = rng.uniform(0.5, 1.0, (problem.rows, 1))
    return (steepness * np.linspace(-STEEPEST, STEEPEST, problem.columns),)


def _falling(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    (x,) = _rising(rng, problem)
    return (x[:, ::-1],)


def _needle(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    x = rng.standard_normal(problem.shape)
    x[np.arange(problem.rows), rng.integers(problem.columns, size=problem.rows)] = NEEDLE
    return (x,)


def _exact(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    # Whole numbers that every dtype holds, so that those of a row stay equal.
    x = np.repeat(rng.integers(-8, 9, (problem.rows, 1)).astype(np.float64), problem.columns, axis=1)
    needles = rng.integers(problem.columns, size=problem.rows)
    alone = rng.random(problem.rows) < 0.5
    x[alone, needles[alone]] += NEEDLE
    return (x,)


def _repeated(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    values = rng.standard_normal((problem.rows, REPEATS))
    return (np.take_along_axis(values, rng.integers(REPEATS, size=problem.shape), axis=1),)


def _subnormal(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    least, most = DEPTHS[problem.dtype]
    x = rng.uniform(-most, -least, problem.shape)
    x[np.arange(problem.rows), rng.integers(problem.columns, size=problem.rows)] = 0.0
    return (x,)


def _non_finite(rng: np.random.Generator, problem: SoftmaxProblem) -> Drawn:
    x = rng.standard_normal(problem.shape)
    columns = rng.integers(problem.columns, size=problem.rows)
    # Every other row, the first one among them, in turns: so each kind is met in the smallest problem that has room.
    for place, row in enumerate(range(0, problem.rows, 2)):
        kind = place % 4
        if kind == 3:
            x[row] = -np.inf
        else:
            x[row, columns[row]] = (np.inf, np.nan, -np.inf)[kind]
    return (x,)


REGIMES = by_name(
    Regime("normal", "X from N(0, 1)", _normal, standard_normal=True),
    Regime("uniform", "X from [0, 1): the weights are nearly equal", _uniform),
    Regime("hot", "X from N(0, 100^2): exp overflows unless the maximum is subtracted", _hot),
    Regime(
        "negative", "every value is between -400 and -120: exp underflows unless the maximum is subtracted", _negative
    ),
    Regime(
        "far-negative",
        "every value is below -50,000, and so below a finite stand-in for -inf such as -10,000",
        _far_negative,
    ),
    Regime("offset", "X around 100: exp overflows in float32, though the values are close together", _offset),
    Regime("constant", "one value per row: every weight is 1 / columns", _constant),
    Regime("rising", "values rise along the row: the running maximum changes at every column", _rising),
    Regime("falling", "values fall along the row: the running maximum never changes", _falling),
    Regime("needle", "one column per row carries nearly all the weight", _needle),
    Regime("exact", "equal whole numbers, or one far above the others: often the result must be exact", _exact),
    Regime("repeated", "eight values per row, so the largest recurs", _repeated),
    Regime("subnormal", "weights around the smallest normal number of the dtype and below", _subnormal),
    Regime("non-finite", "every other row has NaN, inf or -inf in it, or is all -inf", _non_finite),
)
"""Every regime by name; what is drawn is X in float64. The same sizes, regime and seed give the same values before
rounding whatever the dtype; `subnormal`, whose depth is the dtype's, aside."""

BEYOND_EXP = ("hot", "negative", "far-negative", "offset", "non-finite")
"""Regimes in which exp leaves float32 unless the maximum is subtracted first."""
