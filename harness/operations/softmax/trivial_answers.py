"""Answers that are wrong in a trivial way, for `Operation.trivial_answers`: X ignored, or half of the columns."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.softmax.oracle import asked_rows, blocks_of
from harness.operations.softmax.problem import SoftmaxProblem

Float64Array = npt.NDArray[np.float64]


def trivial_answers(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """Y of each trivial mistake, shape (rows, columns) of a part."""
    return {
        "equal probabilities": functools.partial(_equal_probabilities, problem),
        "half of the columns": functools.partial(_half_of_the_columns, problem, inputs["X"]),
    }


def _equal_probabilities(problem: SoftmaxProblem, part: Part) -> dict[str, Float64Array]:
    asked = asked_rows(problem, part)
    return {"Y": np.full((asked.stop - asked.start, problem.columns), 1 / problem.columns)}


def _half_of_the_columns(problem: SoftmaxProblem, X: np.ndarray, part: Part) -> dict[str, Float64Array]:
    asked, half = asked_rows(problem, part), (problem.columns + 1) // 2
    Y = np.zeros((asked.stop - asked.start, problem.columns))
    for where, x in blocks_of(problem, X, part):
        with np.errstate(invalid="ignore"):
            weights = np.exp(x[:, :half] - np.max(x[:, :half], axis=1, keepdims=True))
            Y[where, :half] = weights / np.sum(weights, axis=1, keepdims=True)
    return {"Y": Y}
