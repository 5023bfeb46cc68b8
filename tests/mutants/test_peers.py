"""The peers' rules take right answers and reject what they are said to reject."""

from __future__ import annotations

import numpy as np
import pytest

from harness.model.operation import draw_inputs
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from tests.mutants.peers import RULES, XFORMERS, plain_attention

pytestmark = pytest.mark.compiles(False)


@pytest.mark.parametrize("dtype", XFORMERS)
@pytest.mark.parametrize("causal", [False, True])
def test_every_rule_accepts_the_rounded_answer_and_rejects_a_tenth(dtype: str, causal: bool):
    problem = Problem(
        heads=4, kv_heads=2, q_len=40, kv_len=33, head_dim=16, dtype=dtype, mask="causal" if causal else "none"
    )
    inputs = draw_inputs(problem, "normal", 3)
    answer = attention(problem, inputs)["O"]
    right = answer.astype(inputs["Q"].dtype).astype(np.float64)
    wrong = right.copy()
    wrong[0, 1, 20, 3] += 0.1
    for name, accepts in RULES.items():
        assert accepts(problem, inputs, right, answer), name
        assert not accepts(problem, inputs, wrong, answer), name


def test_tolerances_are_absolute_or_relative_as_each_rule_has_it():
    problem = Problem(heads=1, q_len=1, kv_len=1, head_dim=1)
    inputs = {name: np.full((1, 1, 1, 1), 100.0, np.float32) for name in "QKV"}
    answer = np.full((1, 1, 1, 1), 100.0)
    taken = {name: accepts(problem, inputs, answer + 0.02, answer) for name, accepts in RULES.items()}
    assert taken == {"allclose": True, "flash-attention": False, "xformers": False, "triton": False}


def test_a_nan_that_belongs_there_is_no_error_and_one_that_does_not_is_one():
    problem = Problem(heads=1, q_len=2, kv_len=2, head_dim=2)
    inputs = draw_inputs(problem, "normal", 0)
    answer = attention(problem, inputs)["O"]
    leaked = answer.copy()
    leaked[0, 0, 1, 1] = np.nan
    for name, accepts in RULES.items():
        assert not accepts(problem, inputs, leaked, answer), name
    inputs["V"][0, 0, 1, 1] = np.nan
    answer = attention(problem, inputs)["O"]
    assert np.isnan(answer).any()
    for name, accepts in RULES.items():
        assert accepts(problem, inputs, answer, answer), name


@pytest.mark.parametrize("dtype", XFORMERS)
def test_plain_attention_is_right_but_for_its_roundings(dtype: str):
    problem = Problem(heads=2, q_len=9, kv_len=5, head_dim=8, dtype=dtype, mask="causal")
    inputs = draw_inputs(problem, "normal", 1)
    error = np.abs(plain_attention(problem, inputs) - attention(problem, inputs)["O"]).max()
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    assert 0 < error < 16 * unit
