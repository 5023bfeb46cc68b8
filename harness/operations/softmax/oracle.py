"""Softmax in float64 from the stored inputs: what the answer is.

The contract for what is not finite follows IEEE 754 and the formula with the maximum subtracted: a row that holds NaN
or +inf is NaN in every column (inf - inf), and so is one that holds nothing but -inf. Where another value of the row is
finite, -inf has the weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.operation import WHOLE, Part
from harness.operations.softmax.problem import SoftmaxProblem

Float64Array = npt.NDArray[np.float64]

BLOCK_ELEMENTS = 2**19
"""Elements of float64 that are handled at a time, so that memory stays bounded."""


def rows_of_part(problem: SoftmaxProblem, part: Part = WHOLE) -> slice:
    """The rows of a part, with both ends."""
    rows = part.where[0] if part.where else slice(None)
    return slice(*rows.indices(problem.rows)[:2])


def blocks_of(problem: SoftmaxProblem, X: np.ndarray, part: Part = WHOLE) -> Iterator[tuple[slice, Float64Array]]:
    """Runs of rows in float64, (rows, columns), and where each lies in what was rows for: the whole or a part."""
    rows = rows_of_part(problem, part)
    step = max(1, BLOCK_ELEMENTS // problem.columns)
    for start in range(rows.start, rows.stop, step):
        stop = min(start + step, rows.stop)
        yield slice(start - rows.start, stop - rows.start), X[start:stop].astype(np.float64)


def softmax(problem: SoftmaxProblem, inputs: Mapping[str, np.ndarray], part: Part = WHOLE) -> dict[str, Float64Array]:
    """Y in float64, of shape (rows, columns) of the problem or of a part of it."""
    rows = rows_of_part(problem, part)
    Y = np.empty((rows.stop - rows.start, problem.columns))
    for where, x in blocks_of(problem, inputs["X"], part):
        # np.max and not np.fmax: the latter swallows NaN.
        with np.errstate(invalid="ignore"):
            weights = np.exp(x - np.max(x, axis=1, keepdims=True))
            Y[where] = weights / np.sum(weights, axis=1, keepdims=True)
    return {"Y": Y}
