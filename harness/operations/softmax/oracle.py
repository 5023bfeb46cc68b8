"""Computes the answer: softmax in float64 from the stored inputs.

Nonfinite inputs follow IEEE 754 and the formula with the maximum subtracted: a row with NaN or +inf is NaN in every
column (inf - inf), and so is one of only -inf. If another value of the row is finite, -inf has the weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.operation import WHOLE, Part
from harness.operations.softmax.problem import SoftmaxProblem

BLOCK_ELEMENTS = 2**19
"""Number of float64 elements that are processed at a time, which bounds memory."""


def rows_of_part(problem: SoftmaxProblem, part: Part = WHOLE) -> slice:
    """Return the rows of a part as a slice with explicit bounds."""
    rows = part.where[0] if part.where else slice(None)
    return slice(*rows.indices(problem.rows)[:2])


def blocks_of(problem: SoftmaxProblem, X: np.ndarray, part: Part = WHOLE) -> Iterator[tuple[slice, Float64Array]]:
    """Yield runs of rows in float64, (rows, columns), and their position within the part."""
    rows = rows_of_part(problem, part)
    step = max(1, BLOCK_ELEMENTS // problem.columns)
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        yield slice(start - rows.start, stop - rows.start), X[start:stop].astype(np.float64)


def softmax(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> dict[str, Float64Array]:
    """Compute Y in float64, (rows, columns), of the problem or of a part."""
    rows = rows_of_part(problem, part)
    Y = np.empty((rows.stop - rows.start, problem.columns))
    for where, x in blocks_of(problem, inputs["X"], part):
        # np.max and not np.fmax: the latter swallows NaN.
        with np.errstate(invalid="ignore"):
            weights = np.exp(x - np.max(x, axis=1, keepdims=True))
            Y[where] = weights / np.sum(weights, axis=1, keepdims=True)
    return {"Y": Y}
