"""Wrong answers: of mistakes that softmax kernels are known to make, and of trivial ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import Part, TrivialAnswer
from harness.operations.softmax.oracle import blocks_of, rows_of_part, softmax
from harness.operations.softmax.problem import SoftmaxProblem

Float64Array = npt.NDArray[np.float64]


def known_mistakes(
    problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray], tile_keys: int | None = None
) -> Iterator[tuple[str, Mapping[str, Float64Array]]]:
    """Y in float64 of each mistake, whole, with its name, such as `the answer with the last column not in the sum`."""
    if problem.columns < 2:
        return
    Y = softmax(problem, inputs)["Y"]
    for name, column in (("last", -1), ("first", 0)):
        with np.errstate(divide="ignore", invalid="ignore"):
            yield f"the answer with the {name} column not in the sum", {"Y": Y / (1 - Y[:, column, None])}


def trivial_answers(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray]) -> dict[str, TrivialAnswer]:
    """Y of each trivial mistake, shape (rows, columns) of a part."""
    return {
        "equal probabilities": functools.partial(_equal_probabilities, problem),
        "half of the columns": functools.partial(_half_of_the_columns, problem, inputs["X"]),
    }


def _equal_probabilities(problem: SoftmaxProblem, part: Part) -> dict[str, Float64Array]:
    rows = rows_of_part(problem, part)
    return {"Y": np.full((rows.stop - rows.start, problem.columns), 1 / problem.columns)}


def _half_of_the_columns(problem: SoftmaxProblem, X: np.ndarray, part: Part) -> dict[str, Float64Array]:
    rows, half = rows_of_part(problem, part), (problem.columns + 1) // 2
    Y = np.zeros((rows.stop - rows.start, problem.columns))
    for where, x in blocks_of(problem, X, part):
        with np.errstate(invalid="ignore"):
            weights = np.exp(x[:, :half] - np.max(x[:, :half], axis=1, keepdims=True))
            Y[where, :half] = weights / np.sum(weights, axis=1, keepdims=True)
    return {"Y": Y}
