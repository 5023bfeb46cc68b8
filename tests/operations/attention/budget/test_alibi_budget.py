"""ALiBi in the error budget and in the bytes that a kernel needs, with slopes of either sign."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_answers import hold
from attention_model import NUMERICS

from harness.model.arithmetic.rounding import U
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.needed_bytes import needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_term import ScoreErrors
from harness.operations.attention.score_terms import TERMS, Penalized

pytestmark = pytest.mark.compiles(False)

f32 = np.float32
Arrays = dict[str, np.ndarray]
STRICT = NUMERICS[False]
(ALIBI,) = (term for term in TERMS if term.field == "alibi")


def with_slopes(problem: Problem, slope: float, regime: str = "normal") -> Arrays:
    return draw_inputs(problem, regime, 3) | {"slopes": np.full(problem.heads, slope, f32)}


def kernel(problem: Problem, inputs: Arrays) -> Arrays:
    """Attention with ALiBi in float32, without a mask."""
    q, k, v = (inputs[name].astype(f32) for name in "QKV")
    place = np.arange(problem.q_len)[:, None] + problem.diagonal
    distance = np.abs(place - np.arange(problem.kv_len)).astype(f32)
    s = f32(problem.tau) * (q @ k.mT) - inputs["slopes"][:, None, None] * distance
    m = s.max(axis=-1, keepdims=True)
    p = np.exp(s - m)
    l = p.sum(axis=-1, keepdims=True)
    return {"O": (p @ v / l).astype(inputs["Q"].dtype), "lse": (m + np.log(l))[..., 0]}


@pytest.mark.parametrize("slope", [-60.0, -1.0, -0.01, 0.0, 0.3, 60.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_kernel_keeps_to_its_budget(dtype: str, slope: float):
    problem = Problem(heads=2, q_len=30, kv_len=70, head_dim=8, dtype=dtype, scale=1.0, alibi=True)
    for regime in ("normal", "uniform", "hot"):
        inputs = with_slopes(problem, slope, regime)
        answer = attention(problem, inputs)
        result = hold(kernel(problem, inputs), answer, error_budget(problem, inputs, answer, STRICT))
        assert result.passed and not result.suspicious, result.reason


def test_the_error_of_a_penalty_does_not_depend_on_its_sign():
    penalty, scores = np.full((1, 1, 4), 8.0), np.full((1, 1, 1, 4), 2.0)
    none = np.zeros(scores.shape, f32)
    before = ScoreErrors(none, none, none, 0.0, 0.0, largest=scores.astype(f32))
    rounding = Roundings.of(Problem(alibi=True), STRICT)
    for sign in (1, -1):
        effect = Penalized(sign * penalty)
        after = np.abs(effect.apply(scores)).astype(f32)
        errors = effect.errors(before, scores.astype(f32), after, rounding)
        assert np.allclose(errors.proved, 4 * U * 8 + U * after) and np.array_equal(errors.proved, errors.common)


def test_scores_that_overflow_before_the_penalty_may_be_stored():
    problem = Problem(heads=1, q_len=2, kv_len=3, head_dim=1, scale=1.0, dtype="float16", alibi=True)
    inputs = with_slopes(problem, 4e4)
    inputs["Q"][:], inputs["K"][:] = 300, 300
    inputs["Q"][0, 0, 1] = 1
    inputs["K"][0, 0, 1:] = 1
    answer = attention(problem, inputs)
    for scores, is_allowed in (("problem", True), ("float32", False)):
        allowed = error_budget(problem, inputs, answer, dataclasses.replace(STRICT, scores=scores))["O"].allowed
        assert np.isinf(allowed[0, 0, 0]).all() == is_allowed


@pytest.mark.parametrize(("slopes", "ends"), [((0.5, 1), (-10, 0)), ((-0.5, -1), (0, 10)), ((-0.5, 1), (-10, 5))])
def test_scores_change_by_no_more_than_is_stated(slopes: tuple[float, float], ends: tuple[float, float]):
    problem = Problem(heads=2, q_len=3, kv_len=7, head_dim=4, alibi=True)
    inputs = with_slopes(problem, 0.0) | {"slopes": np.array(slopes, f32)}
    assert ALIBI.range_of_change(problem, inputs) == ends
    effect = ALIBI.effect(problem, inputs, slice(0, 2), slice(0, 3), slice(0, 7))
    changed = effect.apply(np.zeros((1, 2, 3, 7)))
    assert ends[0] <= changed.min() and changed.max() <= ends[1]


def test_what_needs_to_be_read_is_unknown_with_a_slope_that_is_no_number():
    problem = Problem(heads=1, q_len=4, kv_len=8, head_dim=8, alibi=True)
    assert needed_read_bytes(problem, with_slopes(problem, 0.1)) > 0
    assert needed_read_bytes(problem, with_slopes(problem, np.nan)) == 0


@pytest.mark.parametrize(("dtype", "slope", "without"), [
    ("float32", 1.0, ""),
    ("float32", -1.0, ""),
    ("float32", -2.0, "V"),  # the penalties of keys differ by up to 136, so V may have no weight
    ("float16", 4.0, "KV"),  # the largest K changes a score by less than penalties differ
    ("float16", -4.0, "KV"),
])  # fmt: skip
def test_what_needs_to_be_read(dtype: str, slope: float, without: str):
    problem = Problem(heads=1, q_len=64, kv_len=4, head_dim=8, dtype=dtype, alibi=True)
    inputs = with_slopes(problem, slope, "uniform")
    inputs["Q"][:] = 4e-3
    rows = {"Q": 64, "K": 4, "V": 4}
    elements = 8 * sum(count for name, count in rows.items() if name not in without)
    assert needed_read_bytes(problem, inputs) == elements * problem.itemsize_bytes
