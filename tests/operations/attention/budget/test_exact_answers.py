"""The two ends of the budget: rows that leave no choice, and rows of which nothing is asked."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_answers import hold
from attention_model import NUMERICS, online_softmax

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

SHARP = NUMERICS[False]
FA1 = dataclasses.replace(SHARP, divides_last=False)


def exact_share(problem: Problem, inputs: dict[str, np.ndarray], numerics: Numerics = SHARP) -> float:
    return float((error_budget(problem, inputs, attention(problem, inputs), numerics)["O"].allowed == 0).mean())


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("regime", ["exact", "needle"])
def test_one_bit_off_is_wrong_where_the_answer_is_exact(dtype: str, regime: str):
    problem = Problem(heads=2, q_len=5, kv_len=64, head_dim=24, dtype=dtype)
    inputs = draw_inputs(problem, regime, 3)
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, SHARP)
    assert (budget["O"].allowed == 0).mean() > 0.99
    for tile in (1, 16, 48):
        outputs = online_softmax(problem, inputs, tile=tile)
        accuracy = hold(outputs, reference, budget)
        assert accuracy.passed and accuracy.main.error_over_budget == 0
    outputs["O"].view(f"u{outputs['O'].itemsize}")[0, 1, 3, 7] ^= 1
    accuracy = hold(outputs, reference, budget)
    assert "1 of 240 elements" in accuracy.reason and "only the exact value passes" in accuracy.reason
    assert accuracy.worst_output.first_wrong.index == (0, 1, 3, 7)
    assert accuracy.error_over_budget == np.inf


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_tie_is_rounded_to_even_and_not_the_other_way(dtype: str):
    digits = {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]
    problem = Problem(heads=1, q_len=1, kv_len=2, head_dim=1, dtype=dtype)
    # In float32 the sum of the two would be a tie itself, and too large to be exact.
    large = 2 ** (digits - 1)
    inputs = {"Q": [0], "K": [1, 2], "V": [large + 1, large + 2]}
    inputs = {name: np.array(x, NUMPY_DTYPES[dtype]).reshape(1, 1, -1, 1) for name, x in inputs.items()}
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference, SHARP)
    if dtype == "float32":
        assert budget["O"].allowed > 0
        return
    assert reference["O"].item() == large + 1.5
    assert budget["O"].allowed == 0

    def passes(value: float) -> bool:
        return hold({"O": np.full((1, 1, 1, 1), value, NUMPY_DTYPES[dtype])}, reference, budget).passed

    assert passes(large + 2) and not passes(large + 1)


def test_what_is_not_declared_is_not_asked():
    problem = Problem(heads=1, q_len=5, kv_len=64, head_dim=8)
    even, needle = (draw_inputs(problem, regime, 3) for regime in ("exact", "needle"))
    assert exact_share(problem, even) == 1
    # FlashAttention-1 divides by 48 on its way to 64.
    assert exact_share(problem, even, FA1) == 0
    assert exact_share(problem, needle, FA1) > 0.99
    for field, loose in (("functions", "fast"), ("sums", "truncated")):
        for inputs in (even, needle):
            assert exact_share(problem, inputs, dataclasses.replace(SHARP, **{field: loose})) == 0


def test_only_what_is_exact_is_asked_to_be():
    even = Problem(heads=1, q_len=1, kv_len=64, head_dim=2)

    def share(kv_len: int = 64, **changed: float) -> float:
        problem = dataclasses.replace(even, kv_len=kv_len)
        inputs = draw_inputs(problem, "exact", 3)
        for name, value in changed.items():
            inputs[name][0, 0, 0, 0] = value
        return exact_share(problem, inputs)

    assert share() == 1
    assert share(kv_len=48) == 0
    assert share(Q=1e-3) == 0
    # The other column is as before.
    assert share(V=0.5) == 0.5
    assert share(V=2**24) == 0.5

    # A needle that others are not far enough below, or whose value theirs drown.
    problem = Problem(heads=1, q_len=1, kv_len=4, head_dim=1, scale=1.0)
    for scores, values, exact in (
        ([50, 0, 0, 0], [1, 1, 1, 1], 1),
        ([16, 0, 0, 0], [1, 1, 1, 1], 0),
        ([50, 0, 0, 0], [1e-10, 1, 1e9, 1], 0),
        ([50, 0, 0, 0], [0, 1, 1, 1], 0),
        ([50, 0, 0, 0], [1e-40, 0, 0, 0], 0),
        # e^-105 is nothing in float32, but 3 times that rounds to its smallest number.
        ([105, 0, 0, 0], [0, 3, 3, 3], 0),
        ([105, 0, 0, 0], [0, 0, 0, 0], 1),
        ([50, 0, 0, 0], [1, np.nan, 1, 1], 0),
        ([50, 0, 0, 0], [np.nan, 1, 1, 1], 0),
        ([50, 0, 0, 0], [1, -np.inf, 1, 1], 0),
    ):
        inputs = {"Q": [1], "K": scores, "V": values}
        inputs = {name: np.array(x, np.float32).reshape(1, 1, -1, 1) for name, x in inputs.items()}
        assert exact_share(problem, inputs) == exact, (scores, values)


def test_the_first_row_of_a_causal_mask_is_the_first_value():
    problem = Problem(heads=2, q_len=8, kv_len=8, head_dim=4, mask="causal")
    inputs = draw_inputs(problem)
    budget = error_budget(problem, inputs, attention(problem, inputs), SHARP)
    assert (budget["O"].allowed[:, :, 0] == 0).all()
    assert (budget["O"].allowed[:, :, 3] > 0).any()


def test_where_a_right_kernel_may_overflow_anything_goes():
    def is_open(numerics: Numerics, dtype: str = "float16", tau: float = 1.0, **changed: float) -> tuple[bool, bool]:
        problem = Problem(heads=1, q_len=2, kv_len=4, head_dim=2, dtype=dtype, scale=tau)
        inputs = draw_inputs(problem)
        for name, value in changed.items():
            inputs[name][0, 0, 0] = value
        reference = attention(problem, inputs)
        budget = error_budget(problem, inputs, reference, numerics)
        with np.errstate(over="ignore"):
            outputs = {"O": reference["O"].astype(NUMPY_DTYPES[dtype]), "lse": reference["lse"].astype(np.float32)}
        outputs["O"][0, 0, 0] = np.nan
        accuracy = hold(outputs, reference, budget)
        assert accuracy.passed == np.isposinf(budget["O"].allowed[0, 0, 0]).all()
        # The other row, and where only V is large, lse, are judged as ever.
        outputs["O"][0, 0, 1] = np.nan
        return accuracy.passed, hold(outputs, reference, budget).passed

    stores = NUMERICS[True]
    assert is_open(SHARP) == (False, False)
    # The score leaves float16, which matters where it is stored; only the first query has it.
    assert is_open(stores, Q=300.0, K=-300.0) == (True, False)
    assert is_open(SHARP, Q=300.0, K=-300.0) == (False, False)
    # The score leaves float32; all keys' values nearly do; the sum of P in 16 bits may be more than 1.
    assert is_open(SHARP, "float32", 1e20, Q=1e10, K=1e10) == (True, False)
    assert is_open(SHARP, "float32", V=2e38) == (True, True)
    assert is_open(SHARP, "float32", V=1e35) == (False, False)
    # Every score is -inf: a row that sees nothing, to some.
    problem = Problem(heads=1, q_len=1, kv_len=2, head_dim=1, scale=1.0)
    inputs = {"Q": np.full((1, 1, 1, 1), 1.0), "K": np.full((1, 1, 2, 1), -np.inf), "V": np.ones((1, 1, 2, 1))}
    inputs = {name: x.astype(np.float32) for name, x in inputs.items()}
    reference = attention(problem, inputs)
    budget = error_budget(problem, inputs, reference)
    for O, lse in ((0.0, -np.inf), (np.nan, np.nan)):
        outputs = {"O": np.full((1, 1, 1, 1), O, np.float32), "lse": np.full((1, 1, 1), lse, np.float32)}
        assert hold(outputs, reference, budget).passed


def test_what_nobody_sees_opens_nothing():
    problem = Problem(heads=1, q_len=8, kv_len=8, head_dim=4, mask="causal")
    inputs = draw_inputs(problem)
    for poison in (np.nan, np.inf, -np.inf, 3e38):
        inputs["K"][0, 0, 7], inputs["V"][0, 0, 7] = poison, np.nan
        budget = error_budget(problem, inputs, attention(problem, inputs), SHARP)
        assert np.isfinite(budget["O"].allowed[0, 0, :7]).all()
        assert np.isfinite(budget["lse"].allowed[0, 0, :7]).all()
