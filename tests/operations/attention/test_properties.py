"""Each property holds for a right kernel and fails for one that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attention_model import online_softmax
from trials import trial_of

from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import Problem
from harness.operations.attention.properties import PROPERTIES

Kernel = Callable[[Problem, dict[str, np.ndarray]], dict[str, np.ndarray]]

PROBLEMS = (
    Problem(batch=2, heads=2, kv_heads=1, q_len=5, kv_len=20, head_dim=8),
    Problem(batch=2, heads=2, q_len=7, kv_len=4, head_dim=5, mask="causal"),
    Problem(batch=2, heads=1, q_len=3, kv_len=17, head_dim=8, dtype="bfloat16", scale=-0.25),
    Problem(batch=2, heads=1, q_len=3, kv_len=17, head_dim=8, dtype="float16"),
    Problem(batch=2, heads=2, q_len=3, kv_len=17, head_dim=8, bias=("heads", "q_len", "kv_len")),
    Problem(batch=2, heads=2, q_len=7, kv_len=4, head_dim=5, mask="causal", bias=("q_len", "kv_len")),
)


STRICT = Numerics(
    scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
)
"""What the model keeps to: the narrowest budgets."""


def held(
    name: str, kernel: Kernel, problem: Problem, inputs: dict[str, np.ndarray], numerics: Numerics | None = None
) -> str | None:
    trial = trial_of(problem, inputs, kernel, numerics or Numerics())
    return PROPERTIES[name].violation(trial)


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_right_kernel_has_every_property(name: str, problem: Problem):
    for regime in REGIMES:
        assert held(name, online_softmax, problem, draw_inputs(problem, regime, 1)) is None, regime


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("array", ["Q", "K", "V"])
def test_a_nan_in_the_inputs_is_no_violation(name: str, array: str):
    for problem in PROBLEMS:
        inputs = draw_inputs(problem, "normal", 2)
        inputs[array][0, 0, 0, 0] = np.nan
        assert held(name, online_softmax, problem, inputs) is None


def counting() -> Kernel:
    calls = [0]

    def kernel(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = online_softmax(problem, inputs)
        calls[0] += 1
        outputs["O"][-1, -1, -1, -1] = calls[0]
        return outputs

    return kernel


def minds_its_batch(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = online_softmax(problem, inputs)
    if problem.batch > 1:
        outputs["lse"][-1] = np.nextafter(outputs["lse"][-1], np.float32(np.inf))
    return outputs


def favours_the_first_key(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = online_softmax(problem, inputs)
    return {**outputs, "O": (0.9 * outputs["O"] + 0.1 * inputs["V"].repeat(problem.group, 1)[:, :, :1]).astype("f4")}


def no_maximum_below_zero(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = online_softmax(problem, inputs)
    return {**outputs, "lse": np.maximum(outputs["lse"], 0)}


def squares_values(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = online_softmax(problem, inputs)
    return {**outputs, "O": outputs["O"] * np.abs(outputs["O"])}


def never_divides(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    outputs = online_softmax(problem, inputs)
    return {**outputs, "O": outputs["O"] * problem.kv_len}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("determinism", counting()),
        ("batch-invariance", minds_its_batch),
        ("key-order", favours_the_first_key),
        ("score-shift", no_maximum_below_zero),
        ("value-sum", squares_values),
        ("convex-hull", never_divides),
    ],
)
def test_a_kernel_that_breaks_a_property_is_told_where(name: str, kernel: Kernel):
    problem = PROBLEMS[0]
    reason = held(name, kernel, problem, draw_inputs(problem, "normal", 3))
    assert reason is not None
    assert "the first at batch" in reason and "\n" not in reason


def test_what_a_property_says_nothing_about_is_left_alone():
    causal = Problem(heads=1, q_len=4, kv_len=4, head_dim=4, mask="causal")
    alone = Problem(batch=1, heads=1, q_len=4, kv_len=4, head_dim=4)
    assert held("key-order", favours_the_first_key, causal, draw_inputs(causal, "normal", 1)) is None
    assert held("batch-invariance", minds_its_batch, alone, draw_inputs(alone, "normal", 1)) is None


def test_what_has_to_be_rounded_correctly_is_rounded_all_the_same():
    # One key carries nearly all of a row's weight, and what little the others add is rounded away, in each run anew.
    problem = Problem(batch=2, heads=1, q_len=15, kv_len=26, head_dim=16)
    assert held("value-sum", online_softmax, problem, draw_inputs(problem, "hot", 1), STRICT) is None


def test_between_values_one_of_which_is_nan_there_is_nothing():
    # The key's weight underflows, so the answer could be finite; a kernel that multiplies 0 by NaN is right as well.
    problem = Problem(heads=1, q_len=1, kv_len=11, head_dim=16)
    inputs = draw_inputs(problem, "hot", 0)
    inputs["V"][0, 0, 0, 0] = np.nan
    assert held("convex-hull", online_softmax, problem, inputs, STRICT) is None
