"""Variants whose warps have a row each: where the one without the maximum fails, and that it is asked about no such."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_runs import by_algorithm
from emulators import emulator
from right_answers import require_right

from harness.execution.attempt import attempt
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import FAIL, PASS
from harness.model.cases.case import Case, Edit
from harness.model.operation import draw_inputs, operation_named
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

EXECUTOR = emulator()
ATTENTION = operation_named("attention")
FEW_KEYS = Problem(heads=1, q_len=64, kv_len=1, head_dim=64)
"""What a row whose only score is below 0 costs the smallest values shows here."""
MANY_KEYS = Problem(heads=1, q_len=8, kv_len=100, head_dim=64)

each_native = pytest.mark.parametrize("variant", by_algorithm("native"), ids=lambda variant: variant.name)


@each_native
def test_it_fails_where_it_declares_it_and_nowhere_else(variant: Variant):
    failed, passed = set(), set()
    for problem in (FEW_KEYS, MANY_KEYS):
        for regime in ATTENTION.regimes:
            done = attempt(variant, problem, EXECUTOR, question=Question.draw(problem, regime))
            if done.verdict == FAIL:
                failed.add(regime)
                continue
            require_right(done)
            passed |= {regime} if done.verdict == PASS else set()
    assert failed == set(variant.fails_in)
    # `falling` and `subnormal` decide nothing of many keys, but of one.
    assert failed | passed == set(ATTENTION.regimes)


def test_the_others_declare_no_failure():
    assert not any(variant.fails_in for name in ("row-wise", "three-pass-recompute") for variant in by_algorithm(name))


@each_native
@pytest.mark.parametrize(("score", "is_right"), [(-85.0, True), (-95.0, False), (85.0, True), (89.0, False)], ids=str)
def test_scores_of_which_exp_is_a_float_are_all_that_it_can_do(variant: Variant, score: float, is_right: bool):
    problem = Problem(heads=1, q_len=1, kv_len=3, head_dim=64, scale=1 / 64)
    inputs = {"Q": np.ones(problem.q_shape, np.float32), "K": np.full(problem.kv_shape, score, np.float32)}
    inputs["V"] = np.broadcast_to(np.array([[1], [2], [6]], np.float32), problem.kv_shape).copy()
    O = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"]
    assert np.allclose(O, 3.0, rtol=1e-6) is is_right


def test_cases_whose_scores_are_larger_than_their_regimes_are_told():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=16)
    for scale, leaves in ((None, False), (0.25, False), (-0.25, False), (0.0, False), (0.3, True), (-1.0, True)):
        case = Case(Problem(heads=1, q_len=4, kv_len=4, head_dim=16, scale=scale))
        assert ATTENTION.leaves_regime(case) is leaves
    for array, value, leaves in (
        ("K", 60.0, True),
        ("Q", -60.0, True),
        ("V", 6e4, False),
        ("K", 1.0, False),
        ("K", math.nan, False),
    ):
        assert ATTENTION.leaves_regime(Case(problem, edits=(Edit(array, (0, 0, 1, 2), value),))) is leaves
    assert ATTENTION.leaves_regime(Case(problem, check="score-shift"))
    assert not ATTENTION.leaves_regime(Case(problem, check="key-order"))


def test_a_row_gives_the_same_bits_whatever_other_rows_there_are():
    """No warp knows of another."""
    problem, alone = (Problem(heads=1, q_len=q_len, kv_len=45, head_dim=64) for q_len in (9, 1))
    inputs = draw_inputs(problem, "normal", 4)
    for variant in (*by_algorithm("row-wise"), *by_algorithm("native")):
        together = EXECUTOR.run(problem, variant.plan(problem), inputs).outputs["O"]
        row = {**inputs, "Q": inputs["Q"][:, :, 6:7].copy()}
        assert np.array_equal(EXECUTOR.run(alone, variant.plan(alone), row).outputs["O"], together[:, :, 6:7])
