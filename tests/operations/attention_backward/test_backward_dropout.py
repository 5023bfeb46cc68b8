"""Gradients of attention whose weights drop out: the budget, its mistakes, parts, and what is said of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from trials import trial_of

from harness.execution.judging.accuracy import Accuracy
from harness.execution.judging.question import Question
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.discovery import discover
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.attention.dropout import kept_keys
from harness.operations.attention_backward.cases import BUILDS
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.oracle import gradients
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.attention_backward.properties import PROPERTIES

pytestmark = pytest.mark.compiles(False)

f32 = np.float32
ON_CHIP = Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest")
STORED = dataclasses.replace(ON_CHIP, scores="problem", weights="problem")
PROBLEM = BackwardProblem(
    batch=2, heads=4, kv_heads=2, q_len=40, kv_len=70, head_dim=16, mask="causal", dropout=0.3, dropout_seed=2**34 + 1
)
MISTAKES = (
    "dP as it is where weights drop out",
    "dP not grown",
    "dV of all weights",
    "dV not grown",
    "dS of weights that are left alone",
    "other weights drop out",
)


def kernel(
    problem: BackwardProblem, inputs: dict[str, np.ndarray], stored: bool = False, mistake: str = ""
) -> dict[str, np.ndarray]:
    """Float32 throughout; S, P, dP and dS rounded where they are `stored`."""
    assert not mistake or mistake in MISTAKES
    dtype = NUMPY_DTYPES[problem.dtype]
    Q, K, V, O, dO, lse = (inputs[name].astype(f32) for name in ("Q", "K", "V", "O", "dO", "lse"))
    K, V = (x.repeat(problem.group, axis=1) for x in (K, V))
    rows, keys = np.arange(problem.q_len)[:, None], np.arange(problem.kv_len)[None]
    seen = np.broadcast_to(problem.mask.visible(rows, keys, problem.q_len, problem.kv_len), (len(rows), keys.size))
    drawn = dataclasses.replace(problem, dropout_seed=0) if mistake == "other weights drop out" else problem
    kept = kept_keys(drawn, slice(0, problem.batch), slice(0, problem.heads), slice(0, problem.q_len))
    factor, tau = f32(problem.kept_factor), f32(problem.tau)

    def memory(x: np.ndarray) -> np.ndarray:
        return x.astype(dtype).astype(f32) if stored else x

    with np.errstate(all="ignore"):
        p = np.where(seen, np.exp(memory(tau * (Q @ K.mT)) - lse[..., None]), f32(0))
        dp = memory(dO @ V.mT)
        dropped_dp = np.where(kept, (f32(1) if mistake == "dP not grown" else factor) * dp, f32(0))
        if mistake == "dP as it is where weights drop out":
            dropped_dp = factor * dp
        delta = (dO * O).sum(axis=-1, keepdims=True)
        of_row = np.where(kept, p, f32(0)) if mistake == "dS of weights that are left alone" else p
        ds = memory(np.where(seen, of_row * (dropped_dp - delta), f32(0)))
        left = memory(p if mistake == "dV of all weights" else np.where(kept, p, f32(0)))
    by_group = (problem.batch, problem.kv_heads_count, problem.group, *problem.kv_shape[2:])
    dV = (f32(1) if mistake == "dV not grown" else factor) * (left.mT @ dO).reshape(by_group).sum(axis=2)
    dK = tau * (ds.mT @ Q).reshape(by_group).sum(axis=2)
    return {name: x.astype(dtype) for name, x in (("dQ", tau * (ds @ K)), ("dK", dK), ("dV", dV))}


def hold(problem: BackwardProblem, regime: str, seed: int, stored: bool = False, mistake: str = "") -> Accuracy:
    question = Question.draw(problem, regime, seed)
    return question.check(kernel(problem, question.inputs, stored, mistake), STORED if stored else ON_CHIP)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("regime", ["normal", "exact", "needle", "large-gradient", "one-gradient", "few-gradients"])
def test_a_right_kernel_keeps_to_its_budget(regime: str, dtype: str):
    for fields in ({}, {"dropout": 0.9, "mask": "none"}, {"dropout": 0.5, "mask": "window:9,3"}):
        problem = dataclasses.replace(PROBLEM, dtype=dtype, **fields)
        for stored in (False, True):
            result = hold(problem, regime, 1, stored)
            assert result.passed and not result.suspicious, result


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_one_does_not(mistake: str):
    assert not hold(PROBLEM, "normal", 1, mistake=mistake).passed


def test_the_budget_is_not_vacuous():
    reached = [hold(dataclasses.replace(PROBLEM, dtype="float16"), "normal", seed, stored=True) for seed in range(3)]
    assert max(each.error_over_expected for each in reached) > 0.3


@pytest.mark.parametrize("regime", REGIMES)
def test_inputs_are_what_a_forward_pass_with_dropout_leaves(regime: str):
    inputs = draw_inputs(PROBLEM, regime, 0)
    forward = operation_named("attention").answer(PROBLEM, {name: inputs[name] for name in "QKV"})
    np.testing.assert_array_equal(inputs["O"], forward["O"].astype(inputs["O"].dtype))


def test_a_part_has_the_gradients_that_it_has_in_the_whole():
    inputs = draw_inputs(PROBLEM, "normal", 0)
    of_keys = (slice(0, 1), slice(1, 2), slice(30, 70))
    some = Part((slice(1, 2), slice(3, 4), slice(5, 9)), "some", {"dK": of_keys, "dV": of_keys})
    whole, part = gradients(PROBLEM, inputs), gradients(PROBLEM, inputs, some)
    for name, found in part.items():
        np.testing.assert_allclose(found, whole[name][some.of(name)], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_right_kernel_has_every_property(name: str):
    inputs = draw_inputs(PROBLEM, "normal", 1)
    trial = trial_of(PROBLEM, inputs, kernel, ON_CHIP)
    assert PROPERTIES[name].violation(trial) is None


def test_campaigns_meet_it():
    build = BUILDS[0]
    sets = [build.with_features(("causal", "softcap", "dropout"), place).plain_problem.features for place in range(3)]
    assert sets == [(), ("softcap", "dropout"), ("softcap",)]
    takes = {v.name for v in discover().registry.select(None, "attention-backward") if "dropout" in v.takes}
    assert takes >= {f"bwd-{name}-{language}" for name in ("fa2", "three-pass") for language in ("cupy", "numba")}
