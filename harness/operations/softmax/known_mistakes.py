"""The wrong answers of mistakes that softmax kernels are known to make, to be recognised in what a kernel stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from harness.operations.softmax.oracle import softmax
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
