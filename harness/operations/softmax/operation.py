"""Softmax as an operation: which module has which part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.model.operation import Operation
from harness.operations.softmax.axes import SoftmaxAxes
from harness.operations.softmax.build import BUILDS
from harness.operations.softmax.error_budget import NUMERICS_USED, error_budget
from harness.operations.softmax.inputs import REGIMES
from harness.operations.softmax.mistakes import known_mistakes, trivial_answers
from harness.operations.softmax.oracle import softmax
from harness.operations.softmax.parts import choose_parts
from harness.operations.softmax.problem import SoftmaxProblem
from harness.operations.softmax.properties import PROPERTIES
from harness.operations.softmax.simplification import enlarged, peculiarities, probed_axes, shorter, simpler, size
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from hypothesis import strategies as st

    from harness.model.cases.case import Case

LARGEST_SWEPT = 2**22
"""Rows, or columns. Beyond, even the closed forms would take minutes."""


def _needed_read_bytes(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray]) -> int:
    """All of X: whatever the others of a row are, an element that is made large enough takes all the weight.

    But for a row of one element, which is 1, and rows with a NaN or an infinity, where others may not matter.
    """
    rows = int(np.isfinite(inputs["X"].astype(np.float64)).all(axis=1).sum())
    return rows * problem.columns * problem.itemsize_bytes if problem.columns > 1 else 0


def _cases(
    builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
) -> st.SearchStrategy[Case]:
    from harness.operations.softmax.strategies import MOST_TILES, cases  # imports Hypothesis

    return cases(builds, MOST_TILES if most_tiles is None else most_tiles, checks)


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
    cases=_cases,
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
)
"""y_i = exp(x_i) / sum_j exp(x_j) in every row of a matrix."""
