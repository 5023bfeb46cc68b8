from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from attention_model import MUTANTS, online_softmax

from harness.inputs import NUMPY_DTYPES, REGIMES, draw_inputs
from harness.measure.accuracy import Accuracy, measure_accuracy
from harness.measure.error_budget import Budget, error_budget
from harness.oracle import Reference, attention
from harness.problem import Problem

SHAPES = (
    {},
    {"causal": True, "q_len": 90},
    {"heads": 4, "kv_heads": 1},
    {"q_len": 33, "kv_len": 7, "causal": True},
    {"head_dim": 1, "kv_len": 1},
    {"head_dim": 128, "kv_len": 300, "scale": -0.3},
)


@functools.cache
def asked(problem: Problem, regime: str) -> tuple[dict[str, np.ndarray], Reference, Budget]:
    inputs = draw_inputs(problem, regime, seed=1)
    reference = attention(problem, inputs)
    return inputs, reference, error_budget(problem, inputs, reference)


def judge(problem: Problem, regime: str, **model: object) -> Accuracy:
    inputs, reference, budget = asked(problem, regime)
    return measure_accuracy(online_softmax(problem, inputs, **model), reference, budget)


def problem_with(dtype: str, fields: dict[str, object]) -> Problem:
    return Problem(**({"q_len": 64, "kv_len": 70, "dtype": dtype} | fields))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("regime", REGIMES)
def test_a_right_model_stays_within_the_budget(dtype: str, regime: str):
    for fields in SHAPES:
        for tile, store_scores in ((1, False), (16, True), (64, False)):
            accuracy = judge(problem_with(dtype, fields), regime, tile=tile, store_scores=store_scores)
            assert accuracy.passed, (fields, tile, store_scores, accuracy.reason)
            assert accuracy.error_over_budget <= 1
            assert accuracy.lse_error_over_budget <= 1


@pytest.mark.parametrize(("dtype", "least"), [("float32", 0.1), ("float16", 0.5), ("bfloat16", 0.5)])
def test_the_budget_is_not_vacuous(dtype: str, least: float):
    worst = max(
        judge(problem_with(dtype, fields), regime, tile=16, store_scores=True).error_over_budget
        for regime in REGIMES
        for fields in SHAPES
    )
    assert worst > least


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_models_exceed_it_somewhere(dtype: str, mutant: str):
    caught = [
        regime
        for regime in REGIMES
        for fields in ({"heads": 4, "kv_heads": 2}, {"heads": 4, "kv_heads": 2, "causal": True, "q_len": 90})
        if not judge(problem_with(dtype, fields), regime, mutant=mutant).passed
    ]
    assert len(caught) >= 5, caught


@pytest.mark.parametrize("mutant", ["l not rescaled", "O not rescaled", "last key dropped", "grouped heads tiled"])
def test_ordinary_inputs_are_enough_for_ordinary_bugs(mutant: str):
    accuracy = judge(problem_with("float32", {"heads": 4, "kv_heads": 2}), "normal", mutant=mutant)
    assert not accuracy.passed
    assert accuracy.error_over_budget > 1
    assert "x budget" in accuracy.reason


def test_causal_top_left_is_caught_where_lengths_differ():
    accuracy = judge(problem_with("float32", {"causal": True, "q_len": 50}), "normal", mutant="causal top-left")
    assert not accuracy.passed


def measured(change: str, dtype: str = "float32", q_len: int = 8) -> Accuracy:
    """A right answer with one thing done to it."""
    problem = Problem(heads=2, q_len=q_len, kv_len=4, head_dim=4, causal=True, dtype=dtype)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    outputs = online_softmax(problem, inputs)
    bits = outputs["O"].view(f"u{outputs['O'].itemsize}")
    if change == "unwritten":
        bits[0, 1, 6, 2] = np.iinfo(bits.dtype).max
    elif change == "nan":
        outputs["O"][0, 1, 6, 2] = np.nan
    elif change == "masked row":
        outputs["O"][0, 1, 2, 3] = 1e-30 if dtype == "float32" else 1e-7
    elif change == "masked lse":
        outputs["lse"][0, 1, 2] = -1e30
    elif change == "lse nan":
        outputs["lse"][0, 1, 6] = np.nan
    elif change == "lse in log2":
        outputs["lse"] /= np.float32(math.log(2))
    elif change == "all zero":
        outputs["O"][...] = 0
    else:
        assert change == "nothing"
    return measure_accuracy(outputs, reference, error_budget(problem, inputs, reference))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_outputs_that_nobody_wrote_are_found(dtype: str):
    assert measured("nothing", dtype).passed
    accuracy = measured("unwritten", dtype)
    assert not accuracy.passed
    assert accuracy.reason == "1 of 64 elements of O were never written, the first at batch 0, head 1, row 6, column 2"


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_nan_fails(dtype: str):
    accuracy = measured("nan", dtype)
    assert not accuracy.passed
    assert math.isnan(accuracy.max_abs_error)
    assert math.isnan(accuracy.error_over_budget)
    assert "are NaN, the first at batch 0, head 1, row 6, column 2" in accuracy.reason


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_fully_masked_rows_are_exact(dtype: str):
    accuracy = measured("masked row", dtype)
    assert not accuracy.passed
    assert accuracy.error_over_budget == math.inf
    assert "only the exact answer" in accuracy.reason


@pytest.mark.parametrize("change", ["masked lse", "lse nan", "lse in log2"])
def test_lse_has_its_own_say(change: str):
    accuracy = measured(change)
    assert not accuracy.passed
    assert "lse" in accuracy.reason
    assert accuracy.error_over_budget <= 1


def test_an_all_zero_output_fails():
    assert not measured("all zero").passed


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("regime", ["hot", "overflow", "far-negative"])
def test_however_unsure_the_scores_nothing_larger_than_every_value_passes(dtype: str, regime: str):
    problem = problem_with(dtype, {})
    inputs = draw_inputs(problem, regime, seed=1)
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    largest = np.abs(inputs["V"].astype(np.float64)).max()
    assert (budget.O <= 1.1 * (largest + np.abs(reference.O))).all()
    assert np.isfinite(budget.lse).all()


def test_where_nothing_is_stored_nothing_is_known():
    problem = Problem(q_len=4, kv_len=4, head_dim=4)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    outputs = {"O": online_softmax(problem, inputs)["O"]}
    accuracy = measure_accuracy(outputs, reference, error_budget(problem, inputs, reference))
    assert accuracy.passed
    assert accuracy.lse_max_abs_error is None
    assert accuracy.lse_error_over_budget is None


def test_nan_in_a_visible_key_has_to_come_out():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4, causal=True)
    inputs = draw_inputs(problem)
    inputs["V"][0, 0, 2] = np.nan
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    right = {"O": reference.O.astype(np.float32)}
    assert measure_accuracy(right, reference, budget).passed
    swallowed = {"O": np.nan_to_num(right["O"])}
    assert not measure_accuracy(swallowed, reference, budget).passed


def test_a_wrong_shape_is_not_broadcast():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    accuracy = measure_accuracy(
        {"O": np.zeros((1, 1, 4, 1), np.float32)}, reference, error_budget(problem, inputs, reference)
    )
    assert not accuracy.passed
    assert "shape" in accuracy.reason
