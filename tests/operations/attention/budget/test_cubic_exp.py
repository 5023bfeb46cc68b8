"""What exponentials by a cubic, and a maximum that stays behind, add to the budget."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from harness.model.arithmetic.rounding import CUBIC
from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import PluginError

PROBLEM = Problem(heads=2, q_len=40, kv_len=24, head_dim=16, dtype="float32")
TIGHT = Numerics(
    scores="float32", weights="float32", functions="fast", sums="nearest", one_score=True, divides_last=True
)
WITH_CUBIC, WITH_HEADROOM = dataclasses.replace(TIGHT, cubic_exp=True), dataclasses.replace(TIGHT, headroom=8)


@pytest.mark.parametrize("regime", ["normal", "uniform"])
def test_weights_that_are_off_by_what_a_cubic_may_be_are_within_the_budget_and_need_it(regime: str):
    inputs = draw_inputs(PROBLEM, regime, 3)
    answer = attention(PROBLEM, inputs)
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    s = PROBLEM.tau * q @ np.swapaxes(k, -1, -2)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    wide, narrow = (error_budget(PROBLEM, inputs, answer, numerics) for numerics in (WITH_CUBIC, TIGHT))
    worst = 0.0
    for element in range(PROBLEM.head_dim):
        # The worst signs for this element: towards values above the answer.
        off = p * (1 + CUBIC * np.sign(v[..., element][:, :, None, :] - answer["O"][..., element, None]))
        O = (off @ v[..., element, None])[..., 0] / off.sum(axis=-1)
        error = np.abs(O - answer["O"][..., element])
        assert np.all(error <= wide["O"].allowed[..., element])
        assert np.all(error <= wide["O"].expected[..., element])
        worst = max(worst, float((error / wide["O"].allowed[..., element]).max()))
        assert np.any(error > narrow["O"].allowed[..., element])
    assert worst > 0.5  # the budget is not much wider than that
    lse_error = np.abs(np.log((p * (1 + CUBIC)).sum(axis=-1)) - np.log(p.sum(axis=-1)))
    assert np.all(lse_error <= wide["lse"].allowed) and np.all(lse_error > 0.5 * narrow["lse"].allowed)


def test_headroom_widens_little_and_sums_overflow_earlier():
    inputs = draw_inputs(PROBLEM, "normal", 3)
    answer = attention(PROBLEM, inputs)
    wide, narrow = (error_budget(PROBLEM, inputs, answer, numerics) for numerics in (WITH_HEADROOM, TIGHT))
    for name in ("O", "lse"):
        ratio = wide[name].allowed / narrow[name].allowed
        assert np.all(ratio > 1) and np.all(ratio < 2)
    # 24 keys times 2^8 times 10^35 is beyond float32; without headroom it is not.
    inputs["V"] = np.full_like(inputs["V"], 1e35)
    answer = attention(PROBLEM, inputs)
    assert np.all(np.isinf(error_budget(PROBLEM, inputs, answer, WITH_HEADROOM)["O"].allowed))
    assert np.all(np.isfinite(error_budget(PROBLEM, inputs, answer, TIGHT)["O"].allowed))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cubic_exp": True, "functions": "accurate"}, "a cubic is not that accurate"),
        ({"headroom": 16}, "choose 0 to 15"),
        ({"headroom": -1}, "choose 0 to 15"),
    ],
)
def test_contradictory_declarations_are_refused(fields: dict[str, object], reason: str):
    with pytest.raises(PluginError, match=reason):
        Numerics(**fields)
