"""The budget of softmax: right kernels stay within, worse ones do not, and it is not far above what they need."""

from __future__ import annotations

import numpy as np
import pytest

from harness.execution.judging.accuracy import Accuracy
from harness.execution.judging.question import Question
from harness.model.arithmetic.rounding import UNIT_ROUNDOFF, U
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, draw_inputs
from harness.operations.softmax.error_budget import error_budget
from harness.operations.softmax.inputs import REGIMES
from harness.operations.softmax.oracle import softmax
from harness.operations.softmax.problem import SoftmaxProblem

ACCURATE = Numerics(functions="accurate", sums="nearest")
DTYPES = ("float32", "float16", "bfloat16")
# Beside a warp's edge, a power of two, and a long row.
PROBLEMS = [SoftmaxProblem(rows=8, columns=columns, dtype=dtype) for columns in (33, 64, 3000) for dtype in DTYPES]


def one_after_the_other(X: np.ndarray) -> np.ndarray:
    """Algorithm 3 of Milakov and Gimelshein 2018 in float32: one column after the other, rescaled at every rise."""
    x = X.astype(np.float32)
    m = np.full(len(x), -np.inf, np.float32)
    d = np.zeros(len(x), np.float32)
    with np.errstate(all="ignore"):
        for column in x.T:
            m_new = np.maximum(m, column)
            base = np.where(np.isneginf(m_new), np.float32(0), m_new)
            d = d * np.exp(m - base) + np.exp(column - base)
            m = m_new
        return (np.exp(x - np.where(np.isneginf(m), np.float32(0), m)[:, None]) / d[:, None]).astype(X.dtype)


def hold(question: Question, Y: np.ndarray, numerics: Numerics = ACCURATE) -> Accuracy:
    return question.check({"Y": Y}, numerics)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.columns}-{p.dtype}")
@pytest.mark.parametrize("regime", REGIMES)
def test_a_right_kernel_is_within_what_is_expected(problem: SoftmaxProblem, regime: str):
    question = Question.draw(problem, regime, 2)
    for numerics in (ACCURATE, Numerics()):
        result = hold(question, one_after_the_other(question.inputs["X"]), numerics)
        assert result.passed, result.reason
        assert not result.suspicious, result.error_over_expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_in_16_bits_a_right_kernel_comes_near_what_is_expected(dtype: str):
    question = Question.draw(SoftmaxProblem(rows=20, columns=100, dtype=dtype), "normal", 0)
    result = hold(question, one_after_the_other(question.inputs["X"]))
    assert 0.2 <= result.error_over_expected <= 1


@pytest.mark.parametrize("columns", [1, 32, 1000])
def test_in_float32_the_budget_is_some_roundings_per_column_and_no_more(columns: int):
    problem = SoftmaxProblem(rows=10, columns=columns)
    X = draw_inputs(problem, "normal", 0)["X"]
    answer = softmax(problem, {"X": X})
    Y, tolerance = answer["Y"], error_budget(problem, {"X": X}, answer, ACCURATE)["Y"]
    loose = tolerance.allowed > 0
    assert (tolerance.expected[loose] <= Y[loose] * U * (40 + 40 * np.sqrt(columns))).all()
    assert (tolerance.allowed[loose] <= Y[loose] * U * (60 + 8 * columns)).all()
    assert (tolerance.expected <= tolerance.allowed).all()


@pytest.mark.parametrize("regime", ["normal", "rising", "uniform", "repeated"])
def test_sums_in_16_bits_are_found(regime: str):
    question = Question.draw(SoftmaxProblem(rows=8, columns=300, dtype="float16"), regime, 1)
    x = question.inputs["X"].astype(np.float32)
    weights = np.exp(x - x.max(axis=1, keepdims=True)).astype(np.float16)
    Y = (weights / np.cumsum(weights, axis=1, dtype=np.float16)[:, -1:]).astype(np.float16)
    assert not hold(question, Y).passed


@pytest.mark.parametrize("columns", [50, 129])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_column_left_out_of_the_sum_is_found(columns: int, dtype: str):
    question = Question.draw(SoftmaxProblem(rows=4, columns=columns, dtype=dtype), "uniform", 1)
    weights = np.exp(question.inputs["X"].astype(np.float64))
    Y = (weights / weights[:, :-1].sum(axis=1, keepdims=True)).astype(NUMPY_DTYPES[dtype])
    assert not hold(question, Y).passed


def test_no_kernel_of_the_model_exceeds_what_is_proved():
    """Every rounding at its worst and in the worst direction: numerator up, sum down, as far as (1) lets them."""
    problem = SoftmaxProblem(rows=4, columns=60)
    X = draw_inputs(problem, "rising", 4)["X"]
    answer = softmax(problem, {"X": X})
    Y, allowed = answer["Y"], error_budget(problem, {"X": X}, answer, ACCURATE)["Y"].allowed
    x = X.astype(np.float64)
    below, n = x.max(axis=1, keepdims=True) - x, problem.columns
    larger = (x[:, None, :] > x[:, :, None]).sum(axis=2)
    own = U * (4 + np.minimum(below, 104) + 5 * larger)
    for sign in (1, -1):
        sums = (Y * np.exp(-sign * (own + n * U))).sum(axis=1, keepdims=True)
        worst = Y * np.exp(sign * (own + 2 * U)) / sums
        stored = worst * (1 + sign * UNIT_ROUNDOFF["float32"])
        over = np.abs(stored - Y)[allowed > 0] / allowed[allowed > 0]
        assert over.max() <= 1
        assert over.max() >= 0.5  # the bound is not far above what can be


def test_where_a_kernel_has_no_choice_nothing_but_the_answer_will_do():
    problem = SoftmaxProblem(rows=4, columns=8)
    X = np.zeros(problem.shape, np.float32)
    X[1, 3] = 40.0  # a needle
    X[2, 3] = 10.0  # its neighbours are felt
    X[3, :3] = -np.inf  # five are left, and 1 / 5 is rounded
    answer = softmax(problem, {"X": X})
    exact = error_budget(problem, {"X": X}, answer, ACCURATE)["Y"].allowed == 0
    expected = np.zeros(problem.shape, np.bool_)
    expected[0], expected[1, 3] = True, True
    np.testing.assert_array_equal(exact, expected)
    question = Question.pose(problem, {"X": X})
    right = answer["Y"].astype(np.float32)
    assert hold(question, right).passed
    right[0, 2] = np.nextafter(right[0, 2], np.float32(1))
    assert "only the exact value passes here" in (hold(question, right).reason or "")
    assert hold(question, right, Numerics()).passed  # who promises less is held to less


def test_nothing_is_promised_where_a_folded_scale_overflows():
    problem = SoftmaxProblem(rows=1, columns=3)
    X = np.array([[3e38, 3e38, -3e38]], np.float32)
    answer = softmax(problem, {"X": X})
    assert np.isposinf(error_budget(problem, {"X": X}, answer, Numerics())["Y"].allowed).all()
    assert np.isfinite(error_budget(problem, {"X": X}, answer, ACCURATE)["Y"].allowed).all()


def test_a_row_that_is_not_finite_has_a_contract_and_no_budget():
    question = Question.draw(SoftmaxProblem(rows=7, columns=20), "non-finite", 0)
    tolerance = question.tolerance(ACCURATE)["Y"]
    np.testing.assert_array_equal(np.isnan(tolerance.allowed), np.isnan(question.answer["Y"]))
    Y = one_after_the_other(question.inputs["X"])
    assert hold(question, Y).passed
    Y[0, 1] = 0.5
    assert "it has to be NaN or infinite" in (hold(question, Y).reason or "")


def test_the_budget_of_a_part_is_that_part_of_the_budget():
    problem = SoftmaxProblem(rows=9, columns=33)
    X = draw_inputs(problem, "normal", 0)["X"]
    part = Part((slice(2, 6),))
    whole, some = (
        error_budget(problem, {"X": X}, softmax(problem, {"X": X}, which), ACCURATE, which)["Y"]
        for which in (WHOLE, part)
    )
    np.testing.assert_array_equal(some.allowed, whole.allowed[2:6])
    np.testing.assert_array_equal(some.expected, whole.expected[2:6])
