"""Which rows of a large answer are worked out: the first and the last ones and some between."""

from __future__ import annotations

from harness.model.operation import WHOLE, Part
from harness.operations.softmax.problem import SoftmaxProblem

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
