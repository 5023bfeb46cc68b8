"""Each property of gradients holds for a right kernel and is violated by one that breaks just that."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from trials import trial_of

from harness.model.array_types import Arrays
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import draw_inputs
from harness.operations.attention_backward.oracle import gradients
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.attention_backward.properties import PROPERTIES

PROBLEM = BackwardProblem(batch=2, heads=4, kv_heads=2, q_len=9, kv_len=7, head_dim=4, mask="causal")
Kernel = Callable[[BackwardProblem, Arrays], Arrays]


def right(problem: BackwardProblem, inputs: Arrays) -> Arrays:
    dtype = NUMPY_DTYPES[problem.dtype]
    return {name: array.astype(dtype) for name, array in gradients(problem, inputs).items()}


def violation(name: str, kernel: Kernel, regime: str = "normal") -> str | None:
    inputs = draw_inputs(PROBLEM, regime, 1)
    return PROPERTIES[name].violation(trial_of(PROBLEM, inputs, kernel))


def changes_its_mind() -> Kernel:
    calls: list[BackwardProblem] = []

    def kernel(problem: BackwardProblem, inputs: Arrays) -> Arrays:
        calls.append(problem)
        outputs = dict(right(problem, inputs))
        if len(calls) > 1:
            outputs["dK"] = np.nextafter(outputs["dK"], np.float32(1))
        return outputs

    return kernel


def needs_company(problem: BackwardProblem, inputs: Arrays) -> Arrays:
    outputs = dict(right(problem, inputs))
    if problem.batch == 1:
        outputs["dV"] = np.nextafter(outputs["dV"], np.float32(1))
    return outputs


def squares(problem: BackwardProblem, inputs: Arrays) -> Arrays:
    """dQ of a kernel that multiplies dO where it should not."""
    outputs = dict(right(problem, inputs))
    outputs["dQ"] = outputs["dQ"] * np.abs(inputs["dO"])
    return outputs


def loses_a_key(problem: BackwardProblem, inputs: Arrays) -> Arrays:
    outputs = dict(right(problem, inputs))
    outputs["dV"] = outputs["dV"].copy()
    outputs["dV"][:, :, -1] = 0
    return outputs


WRONG = {
    "determinism": changes_its_mind,
    "batch-invariance": lambda: needs_company,
    "gradient-sum": lambda: squares,
    "weights-sum": lambda: loses_a_key,
}


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("regime", ["normal", "hot", "non-finite", "large-gradient", "non-finite-gradient"])
def test_a_right_kernel_has_it(name: str, regime: str):
    assert violation(name, right, regime) is None


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_kernel_that_breaks_it_is_found(name: str):
    assert set(WRONG) == set(PROPERTIES)
    reason = violation(name, WRONG[name]())
    assert reason is not None and "batch" in reason
