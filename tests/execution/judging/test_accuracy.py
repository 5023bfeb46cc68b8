from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from attention_answers import hold
from attention_model import MUTANTS, NUMERICS, online_softmax
from lanes import exhaustive_unless

from harness.execution.judging.accuracy import Accuracy
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import Tolerance, draw_inputs
from harness.model.reference import Reference
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem


@functools.cache
def asked(problem: Problem, regime: str) -> tuple[dict[str, np.ndarray], Reference, dict[str, Tolerance]]:
    inputs = draw_inputs(problem, regime, seed=1)
    reference = attention(problem, inputs)
    return inputs, reference, error_budget(problem, inputs, reference, NUMERICS[False])


@functools.cache
def undeclared_budget(problem: Problem, regime: str) -> dict[str, Tolerance]:
    """Of who declares nothing."""
    inputs, reference, _ = asked(problem, regime)
    return error_budget(problem, inputs, reference)


def judge(problem: Problem, regime: str, **model: object) -> Accuracy:
    inputs, reference, budget = asked(problem, regime)
    return hold(online_softmax(problem, inputs, **model), reference, budget)


def problem_with(dtype: str, fields: dict[str, object]) -> Problem:
    return Problem(**({"q_len": 64, "kv_len": 70, "dtype": dtype} | fields))


# Two heads of K and V, and rows that see all keys, some, or none; five tiles, the last of them not full.
SHAPES = ({"heads": 4, "kv_heads": 2}, {"heads": 4, "kv_heads": 2, "mask": "causal", "q_len": 90})


@pytest.mark.parametrize("dtype", exhaustive_unless(lambda dtype: dtype == "float32", NUMPY_DTYPES))
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_models_exceed_it_somewhere(dtype: str, mutant: str):
    caught = [
        regime
        for regime in REGIMES
        for fields in SHAPES
        if not judge(problem_with(dtype, fields), regime, mutant=mutant).passed
    ]
    # A value that is not finite, behind a mask, is one regime only, and only with a mask.
    assert len(caught) >= (1 if mutant == "zero times NaN" else 8), caught


@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.exhaustive), "bfloat16"])
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m != "zero times NaN"])
def test_wrong_models_that_store_S_and_P_and_declare_nothing_exceed_it_too(dtype: str, mutant: str):
    caught = []
    for fields in SHAPES:
        for regime in REGIMES:
            problem = problem_with(dtype, fields)
            inputs, reference, _ = asked(problem, regime)
            outputs = online_softmax(problem, inputs, mutant=mutant, store_scores=True)
            if not hold(outputs, reference, undeclared_budget(problem, regime)).passed:
                caught.append(regime)
    # Sums in float16 are no worse than P in bfloat16, unless they overflow.
    assert len(caught) >= (2 if mutant == "16-bit sums" and dtype == "bfloat16" else 8), caught


@pytest.mark.parametrize(
    "mutant", ["l not rescaled once", "O not rescaled", "last key dropped", "16-bit sums", "grouped heads tiled"]
)
def test_ordinary_inputs_are_enough_for_ordinary_bugs(mutant: str):
    accuracy = judge(problem_with("float32", {"heads": 4, "kv_heads": 2}), "normal", mutant=mutant)
    assert not accuracy.passed
    assert accuracy.error_over_budget > 1
    assert "x budget" in accuracy.reason


def test_causal_top_left_is_caught_where_lengths_differ():
    accuracy = judge(problem_with("float32", {"mask": "causal", "q_len": 50}), "normal", mutant="causal top-left")
    assert not accuracy.passed


def measured(change: str, dtype: str = "float32", q_len: int = 8) -> Accuracy:
    """A right answer with one thing done to it."""
    problem = Problem(heads=2, q_len=q_len, kv_len=4, head_dim=4, mask="causal", dtype=dtype)
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
    return hold(outputs, reference, error_budget(problem, inputs, reference))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_outputs_that_nobody_wrote_are_found(dtype: str):
    assert measured("nothing", dtype).passed
    accuracy = measured("unwritten", dtype)
    assert not accuracy.passed
    where = "the first at batch 0, head 1, row 6, column 2"
    said = f"1 of 64 elements of O were never written, or with bits of unwritten memory, {where}"
    assert accuracy.reason == said


def test_it_says_which_element_is_wrong_first_and_which_is_worst():
    problem = Problem(heads=2, q_len=8, kv_len=4, head_dim=4)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    outputs = online_softmax(problem, inputs)
    right = hold(outputs, reference, budget)
    assert right.worst_output.first_wrong is None
    worst = right.main.worst
    assert 0 < abs(worst.got - worst.answer) / worst.allowed == right.main.error_over_budget < 1
    assert not right.by_output["O"].wrong.any()

    outputs["O"][0, 1, 2, 3] += 0.25
    outputs["O"][0, 0, 5, 1] += 0.125
    wrong = hold(outputs, reference, budget)
    assert (wrong.worst_output.first_wrong.output, wrong.worst_output.first_wrong.index) == ("O", (0, 0, 5, 1))
    assert (wrong.worst_output.worst.output, wrong.worst_output.worst.index) == ("O", (0, 1, 2, 3))
    assert wrong.worst_output.worst.place == "batch 0, head 1, row 2, column 3"
    assert wrong.worst_output.worst.got - wrong.worst_output.worst.answer == pytest.approx(0.25, rel=1e-3)
    assert wrong.worst_output.worst.allowed == budget["O"].allowed[0, 1, 2, 3]
    assert np.argwhere(wrong.by_output["O"].wrong).tolist() == [[0, 0, 5, 1], [0, 1, 2, 3]]

    outputs = online_softmax(problem, inputs)
    outputs["lse"][0, 1, 7] += 1
    of_lse = hold(outputs, reference, budget).worst_output
    assert (of_lse.worst.output, of_lse.worst.index, of_lse.first_wrong.index) == (
        "lse",
        (0, 1, 7),
        (0, 1, 7),
    )


def test_what_is_not_expected_is_suspicious_and_not_wrong():
    problem = Problem(heads=1, q_len=8, kv_len=64, head_dim=16)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    between = {"O": (reference["O"] + (budget["O"].allowed + budget["O"].expected) / 2).astype(np.float32)}
    accuracy = hold(between, reference, budget)
    assert accuracy.passed and accuracy.suspicious
    assert accuracy.error_over_budget < 1 < accuracy.error_over_expected
    within = {"O": (reference["O"] + budget["O"].expected / 2).astype(np.float32)}
    assert not hold(within, reference, budget).suspicious
    beyond = hold({"O": (reference["O"] + 2 * budget["O"].allowed).astype(np.float32)}, reference, budget)
    assert not beyond.passed and not beyond.suspicious


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_nan_fails(dtype: str):
    accuracy = measured("nan", dtype)
    assert not accuracy.passed
    assert math.isnan(accuracy.main.max_abs_error)
    assert math.isnan(accuracy.error_over_budget)
    assert "are NaN, the first at batch 0, head 1, row 6, column 2" in accuracy.reason


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_fully_masked_rows_are_exact(dtype: str):
    accuracy = measured("masked row", dtype)
    assert not accuracy.passed
    assert accuracy.error_over_budget == math.inf
    assert "only the exact value passes" in accuracy.reason


@pytest.mark.parametrize("change", ["masked lse", "lse nan", "lse in log2"])
def test_lse_has_its_own_say(change: str):
    accuracy = measured(change)
    assert not accuracy.passed
    assert "lse" in accuracy.reason
    assert accuracy.main.error_over_budget <= 1


def test_an_all_zero_output_fails():
    assert not measured("all zero").passed


def test_where_nothing_is_stored_nothing_is_known():
    problem = Problem(q_len=4, kv_len=4, head_dim=4)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    outputs = {"O": online_softmax(problem, inputs)["O"]}
    accuracy = hold(outputs, reference, error_budget(problem, inputs, reference))
    assert accuracy.passed
    assert [*accuracy.by_output] == ["O"]


def test_what_is_not_finite_has_to_come_out():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4, mask="causal")
    inputs = draw_inputs(problem)
    inputs["V"][0, 0, 2] = [np.nan, np.inf, -np.inf, 0]
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    right = reference["O"].astype(np.float32)
    assert hold({"O": right}, reference, budget).passed
    assert np.isnan(right[0, 0, 2:, 0]).all() and np.isfinite(right[0, 0, :2]).all()

    def passes(column: int, value: float, row: int = 3) -> bool:
        changed = right.copy()
        changed[0, 0, row, column] = value
        return hold({"O": changed}, reference, budget).passed

    assert not passes(0, 0.0) and not passes(0, math.inf)
    # Infinity times a weight that underflows is NaN: a kernel may run into that on the way.
    assert passes(1, math.nan) and passes(2, math.nan)
    assert not passes(1, -math.inf) and not passes(2, math.inf) and not passes(1, 3e38)
    # Where nobody sees it, it must not be.
    assert not passes(0, math.nan, row=1) and not passes(1, math.inf, row=1)


def test_a_zero_in_place_of_nan_is_explained():
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=4)
    inputs = draw_inputs(problem)
    inputs["K"][0, 0, 0, 0] = np.nan
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    reason = hold({"O": np.zeros((1, 1, 1, 4), np.float32)}, reference, budget).reason
    assert "0 instead of nan (the reference has NaN there, the variant 0: " in reason and "write `l != 0`" in reason
    assert "write" not in hold({"O": np.ones((1, 1, 1, 4), np.float32)}, reference, budget).reason


def test_a_wrong_shape_is_not_broadcast():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)
    inputs = draw_inputs(problem)
    reference = attention(problem, inputs)
    accuracy = hold({"O": np.zeros((1, 1, 4, 1), np.float32)}, reference, error_budget(problem, inputs, reference))
    assert not accuracy.passed
    assert "shape" in accuracy.reason
