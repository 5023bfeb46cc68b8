"""Each property of softmax holds for a right kernel and is violated by one that breaks just that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from trials import trial_of

from harness.model.array_types import Arrays
from harness.model.operation import draw_inputs
from harness.operations.softmax.oracle import softmax
from harness.operations.softmax.problem import SoftmaxProblem
from harness.operations.softmax.properties import PROPERTIES

PROBLEM = SoftmaxProblem(rows=3, columns=40, dtype="float16")
Kernel = Callable[[SoftmaxProblem, Arrays], Arrays]


def right(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
    return {"Y": softmax(problem, inputs)["Y"].astype(inputs["X"].dtype)}


def violation(name: str, kernel: Kernel, regime: str = "normal") -> str | None:
    inputs = draw_inputs(PROBLEM, regime, 1)
    return PROPERTIES[name].violation(trial_of(PROBLEM, inputs, kernel))


def changes_its_mind() -> Kernel:
    calls = []

    def kernel(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
        calls.append(problem)
        Y = right(problem, inputs)["Y"]
        return {"Y": Y if len(calls) == 1 else np.nextafter(Y, np.float16(1))}

    return kernel


def needs_company(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
    Y = right(problem, inputs)["Y"]
    return {"Y": np.nextafter(Y, np.float16(1)) if problem.rows == 1 else Y}


def weighs_by_place(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
    Y = right(problem, inputs)["Y"].copy()
    Y[:, 0] *= np.float16(2)
    return {"Y": Y}


def has_a_floor(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
    return right(problem, {"X": np.maximum(inputs["X"], np.float16(0))})


@pytest.mark.parametrize("regime", ["normal", "non-finite", "far-negative"])
@pytest.mark.parametrize("name", PROPERTIES)
def test_a_right_kernel_has_it(name: str, regime: str):
    assert violation(name, right, regime) is None


def peels_to_a_vector(problem: SoftmaxProblem, inputs: Arrays) -> Arrays:
    """Y of a kernel whose last bit depends on where in a vector of 16 bytes a row begins."""
    Y = right(problem, inputs)["Y"].copy()
    begins_inside = np.arange(problem.rows) * problem.columns * 2 % 16 > 0
    Y[begins_inside] = np.nextafter(Y[begins_inside], np.float16(1))
    return {"Y": Y}


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8, 12, 40])
def test_rows_that_begin_elsewhere_in_a_vector_may_have_other_bits(columns: int):
    for rows in range(1, 12):
        problem = SoftmaxProblem(rows=rows, columns=columns, dtype="float16")
        trial = trial_of(problem, draw_inputs(problem, "normal", 1), peels_to_a_vector)
        assert PROPERTIES["row-invariance"].violation(trial) is None


@pytest.mark.parametrize(
    ("name", "kernel", "said"),
    [
        ("determinism", changes_its_mind(), "not bit-identical to a second run"),
        ("row-invariance", needs_company, "not bit-identical to row 2 among other rows, the first at row 2, column 0"),
        ("column-order", weighs_by_place, "further from columns in another order"),
        ("shift", has_a_floor, "further from all elements moved by one number"),
        ("unit-sum", weighs_by_place, "3 of 3 rows of Y do not add up to 1, the first is row 0"),
    ],
)
def test_a_kernel_that_breaks_it_is_found(name: str, kernel: Kernel, said: str):
    assert said in (violation(name, kernel) or "")
