"""Softmax as an operation: which module has which part of it, and its smaller parts."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.operation import WHOLE, Operation, Part, TrivialAnswer, cases_of
from harness.operations.softmax.cases import (
    BUILDS,
    SoftmaxAxes,
    enlarged,
    peculiarities,
    probed_axes,
    shorter,
    simpler,
    size,
)
from harness.operations.softmax.error_budget import NUMERICS_USED, error_budget
from harness.operations.softmax.inputs import REGIMES
from harness.operations.softmax.libraries import LIBRARIES, libraries_in_words
from harness.operations.softmax.oracle import blocks_of, rows_of_part, softmax
from harness.operations.softmax.problem import SoftmaxProblem
from harness.operations.softmax.properties import PROPERTIES
from harness.support.errors import UsageError


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
        "softmax of half of the columns": functools.partial(_half_of_the_columns, problem, inputs["X"]),
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


ELEMENT_FLOPS = 200
"""What an element of the oracle's answer and of its budget costs, in multiplications of a matrix product."""
MOST_PARTS = 12


def choose_parts(problem: SoftmaxProblem, whole_flops: float) -> tuple[Part, ...]:
    """The whole of a problem whose answer costs up to `whole_flops`; of a larger one runs of rows that do together."""
    rows = max(1, int(whole_flops / (ELEMENT_FLOPS * problem.columns)))
    if problem.rows <= rows:
        return (WHOLE,)
    count = min(MOST_PARTS, rows)
    length = rows // count
    # From the first row to the last one, at equal distances.
    starts = [number * (problem.rows - length) // max(1, count - 1) for number in range(count)]
    return tuple(Part((slice(start, start + length),), f"rows {start} to {start + length - 1}") for start in starts)


LARGEST_SWEPT = 2**22
"""Rows, or columns. Beyond, even the closed forms would take minutes."""


def _needed_read_bytes(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray]) -> int:
    """All of X: whatever the others of a row are, an element that is made large enough takes all the weight.

    But for a row of one element, which is 1, and rows with a NaN or an infinity, where others may not matter.
    """
    rows = int(np.isfinite(inputs["X"].astype(np.float64)).all(axis=1).sum())
    return rows * problem.columns * problem.itemsize_bytes if problem.columns > 1 else 0


def _problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> SoftmaxProblem:
    rows, columns = arrays["X"].shape
    return SoftmaxProblem.from_fields({"rows": rows, "columns": columns, "dtype": dtype, **fields})


def _require_sweepable(problem: SoftmaxProblem) -> None:
    if max(problem.rows, problem.columns) > LARGEST_SWEPT:
        raise UsageError(
            f"--sweep reaches {problem.rows:,} rows x {problem.columns:,} columns; the most is {LARGEST_SWEPT:,} "
            "either way"
        )


OPERATION = Operation(
    name="softmax",
    idea="Y = softmax(X) in every row of a matrix",
    problem=SoftmaxProblem,
    regimes=REGIMES,
    answer=softmax,
    tolerance=error_budget,
    numerics_used=lambda problem: NUMERICS_USED,
    trivial_answers=trivial_answers,
    shorter=shorter,
    needed_read_bytes=_needed_read_bytes,
    parts=choose_parts,
    builds_of=lambda seed: BUILDS,
    cases=cases_of("harness.operations.softmax.strategies"),
    axes=SoftmaxAxes,
    properties=PROPERTIES,
    simpler=simpler,
    size=size,
    enlarged=enlarged,
    probed_axes=probed_axes,
    peculiarities=peculiarities,
    known_mistakes=known_mistakes,
    problem_of_arrays=_problem_of_arrays,
    require_sweepable=_require_sweepable,
    libraries=LIBRARIES,
    libraries_in_words=libraries_in_words,
)
"""y_i = exp(x_i) / sum_j exp(x_j) in every row of a matrix."""
