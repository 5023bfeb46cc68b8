"""A constant in place of the maximum in the error budget: where it widens it, and by how much."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.constant_maximum import shift_of
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

pytestmark = pytest.mark.compiles(False)

PROBLEM = Problem(heads=1, q_len=4, kv_len=64, head_dim=16, dtype="float16")
MAXIMUM = Numerics(scores="float32", functions="__expf", one_score=True, divides_last=True)


def proved(problem: Problem, regime: str, phi: float | None, a: float = -4.0, b: float = 11.0) -> dict[str, np.ndarray]:
    inputs = draw_inputs(problem, regime, 1)
    numerics = MAXIMUM if phi is None else dataclasses.replace(MAXIMUM, constant_maximum=(phi, a, b))
    budget = error_budget(problem, inputs, attention(problem, inputs), numerics)
    return {name: tolerance.allowed for name, tolerance in budget.items()}


def test_a_row_in_the_range_has_the_distance_and_growth_of_the_constant():
    largest, lse = np.array([[3.0], [-3.5], [11.5], [-9.0]], np.float32), np.array([[4.0], [-3.0], [12.0], [-8.0]])
    shift = shift_of((0.0, -4.0, 11.0), largest, lse)
    assert shift.distance[:, 0].tolist() == [3.0, 3.5, 0.0, 0.0]  # the last two use their maximum
    assert shift.growth[:, 0] == pytest.approx([1.0, math.exp(3.0), 1.0, 1.0])
    none = shift_of(None, largest, lse)
    assert not none.distance.any() and (none.growth == 1).all()


def test_the_budget_is_wider_the_farther_the_constant_is():
    without = proved(PROBLEM, "normal", None)
    near, far = proved(PROBLEM, "normal", 2.0), proved(PROBLEM, "normal", -8.0)
    for name in ("O", "lse"):
        assert (without[name] <= near[name]).all() and (near[name] < far[name]).all()
    # Most of an error is that of rounding weights to 16 bits, which does not change.
    assert (far["O"] < 1.1 * without["O"]).all()


def test_rows_out_of_the_range_keep_their_budget():
    assert all(
        np.array_equal(proved(PROBLEM, "negative", 0.0)[name], budget)
        for name, budget in proved(PROBLEM, "negative", None).items()
    )


def test_small_sums_make_steps_of_small_weights_larger():
    scores = attention(PROBLEM, draw_inputs(PROBLEM, "normal", 1))["lse"]
    phi = float(scores.min()) + 3.9
    assert (proved(PROBLEM, "normal", phi)["O"] > proved(PROBLEM, "normal", None)["O"]).all()


def test_a_kernel_with_the_constant_stays_within_its_budget_and_exceeds_a_weight():
    inputs = draw_inputs(PROBLEM, "normal", 1)
    answer = attention(PROBLEM, inputs)
    q, k, v = (inputs[name].astype(np.float32) for name in "QKV")
    phi = np.float32(-5.0)
    p = np.exp(np.float32(PROBLEM.tau) * (q @ k.mT) - phi)
    assert p.max() > 1
    got = {"O": (p.astype(np.float16).astype(np.float32) @ v) / p.sum(-1, keepdims=True)}
    got["lse"] = phi + np.log(p.sum(-1))
    for name, allowed in proved(PROBLEM, "normal", -5.0).items():
        assert (np.abs(got[name] - answer[name]) <= allowed).all()


def test_values_that_overflow_with_the_largest_weight_have_no_budget():
    problem = dataclasses.replace(PROBLEM, dtype="bfloat16")
    inputs = draw_inputs(problem, "normal", 1)
    inputs["V"] = (inputs["V"].astype(np.float64) * 2.0**108).astype(inputs["V"].dtype)
    answer = attention(problem, inputs)
    with_constant = dataclasses.replace(MAXIMUM, constant_maximum=(0.0, -4.0, 11.0))
    assert np.isfinite(error_budget(problem, inputs, answer, MAXIMUM)["O"].allowed).all()
    assert np.isinf(error_budget(problem, inputs, answer, with_constant)["O"].allowed).any()
