"""Gradients under score terms and sinks: right kernels stay within the budget, wrong ones do not; properties hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.execution.judging.accuracy import Accuracy
from harness.execution.judging.power import measure_power
from harness.execution.judging.question import Question
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.model.spread import FAR
from harness.operations.attention.bias import AXES
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention_backward.cases import BackwardBuild
from harness.operations.attention_backward.error_budget import error_budget
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.oracle import gradients
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import ProblemError

ON_CHIP = Numerics(scores="float32", weights="float32", functions="accurate", tanh="accurate", sums="nearest")
STORED = Numerics(scores="problem", weights="problem", functions="accurate", sums="nearest")
SIZES: dict[str, Any] = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 20, "kv_len": 33, "head_dim": 16}
TERMS: dict[str, dict[str, Any]] = {
    "cap": {"softcap": 1.0, "mask": "causal"},
    "high cap": {"softcap": 30.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True, "mask": "causal"},
    "bias": {"bias": "heads,q_len,kv_len", "mask": "causal"},
    "bias of keys": {"bias": "heads,kv_len"},
    "bias of rows": {"bias": "q_len"},
    "bias of heads": {"bias": "heads"},
    "all": {"softcap": 4.0, "alibi": True, "sinks": True, "bias": "kv_len", "mask": "causal"},
}


def kernel(
    problem: BackwardProblem, inputs: dict[str, np.ndarray], stored: bool = False, mutant: str = ""
) -> dict[str, Any]:
    """Float32 throughout; P and the factor dZ rounded where they are `stored`."""
    dtype, f32 = NUMPY_DTYPES[problem.dtype], np.float32
    x = {name: array.astype(f32) for name, array in inputs.items()}
    group, tau, cap = problem.group, f32(problem.tau), f32(problem.softcap or 1)
    out = {t.name: np.zeros(t.shape, f32) for t in problem.outputs}
    rows, keys = np.arange(problem.q_len)[:, None], np.arange(problem.kv_len)[None]
    seen = np.broadcast_to(problem.mask.visible(rows, keys, problem.q_len, problem.kv_len), (len(rows), keys.size))

    def through_memory(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype).astype(f32) if stored else array

    with np.errstate(all="ignore"):
        for b, h in np.ndindex(problem.batch, problem.heads):
            K, V = (x[name][b, h // group] for name in "KV")
            q, o, do, lse = (x[name][b, h] for name in ("Q", "O", "dO", "lse"))
            s, slope = tau * (q @ K.T), f32(1)
            if problem.softcap:
                t = np.tanh(s / cap)
                s, slope = cap * t, 1 - t * t
                slope = {"cap's derivative left out": f32(1), "1 - tanh": 1 - t, "of the score": 1 - s * s}.get(
                    mutant, slope
                )
            if problem.alibi and mutant != "ALiBi left out":
                s = s - x["slopes"][h] * np.abs(rows + problem.diagonal - keys).astype(f32)
            if problem.bias and mutant != "bias left out":
                own = x["bias"][h if len(x["bias"]) > 1 else 0]
                s = s + (-own if mutant == "bias subtracted" else own)
            p = np.where(seen & ~np.isneginf(s), np.exp(s - lse[:, None]), f32(0))
            delta = (do * o).sum(axis=-1, keepdims=True, dtype=f32)
            ds = np.where(p != 0, p * (do @ V.T - delta), f32(0))
            p, dz = through_memory(p), through_memory(np.where(p != 0, ds * slope, f32(0)))
            out["dQ"][b, h] = tau * products(dz, K)
            out["dV"][b, h // group] += products(p.T, do)
            out["dK"][b, h // group] += tau * products(dz.T, q)
            if problem.bias:
                of = ds * slope if mutant == "dbias before the cap" else ds
                summed = of
                for axis, name in enumerate(AXES[1:]):
                    if name not in problem.bias:
                        summed = summed.sum(axis=axis, keepdims=True, dtype=f32)
                at = h if "heads" in problem.bias else 0
                out["dbias"][at] = summed + (0 if mutant == "the last block's alone" else out["dbias"][at])
            if problem.sinks:
                weight = np.exp(x["sinks"][h] - lse) if np.isfinite(x["sinks"][h]) else np.zeros_like(lse)
                of_rows = weight * (f32(1) if mutant == "dsinks without delta" else delta[:, 0])
                out["dsinks"][h] -= of_rows.sum(dtype=f32) * (-1 if mutant == "sign of dsinks" else 1)
        return {t.name: out[t.name].astype(NUMPY_DTYPES[t.dtype]) for t in problem.outputs}


def products(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where a weight is 0 nothing is multiplied, not even NaN."""
    if np.isfinite(values).all():
        return weights @ values
    return np.where(weights[..., None] != 0, weights[..., None] * values, np.float32(0)).sum(axis=1)


def hold(problem: BackwardProblem, regime: str, numerics: Numerics, seed: int = 1, **options: Any) -> Accuracy:
    question = Question.draw(problem, regime, seed)
    return question.check(kernel(problem, question.inputs, **options), numerics)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_a_right_kernel_is_within_what_is_expected(terms: dict[str, Any], regime: str, dtype: str):
    problem = BackwardProblem(**SIZES, **terms, dtype=dtype)
    for stored, numerics in ((False, ON_CHIP), (True, STORED), (False, Numerics())):
        result = hold(problem, regime, numerics, stored=stored)
        assert result.passed, result.reason
        assert not result.suspicious, result.error_over_expected


@pytest.mark.parametrize("slope", [-3.0, -1.5, -1.0, -0.1, 0.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_above_1_have_a_budget_until_they_overflow(dtype: str, slope: float):
    """With flatter slopes than those of lse, and negative ones, weights exceed 1. tau multiplies sums last."""
    problem = BackwardProblem(heads=1, q_len=62, kv_len=64, head_dim=16, alibi=True, mask="causal", dtype=dtype)
    inputs = draw_inputs(problem, "normal", 5) | {"slopes": np.full(1, slope, np.float32)}
    question = Question.pose(problem, inputs)
    result = question.check(kernel(problem, inputs), ON_CHIP)
    assert result.passed, result.reason
    wrong = question.check(kernel(problem, inputs, mutant="ALiBi left out"), ON_CHIP)
    assert slope in (0.0, -3.0) or not wrong.passed


MUTANTS = (
    ("cap", "cap's derivative left out"),
    ("cap", "1 - tanh"),
    ("high cap", "of the score"),
    ("alibi", "ALiBi left out"),
    ("bias", "bias left out"),
    ("bias", "bias subtracted"),
    ("bias", "the last block's alone"),
    ("bias of keys", "the last block's alone"),
    ("all", "the last block's alone"),
    ("all", "dbias before the cap"),
    ("sinks", "dsinks without delta"),
    ("sinks", "sign of dsinks"),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("terms", "mutant"), MUTANTS)
def test_a_wrong_kernel_is_out(terms: str, mutant: str, dtype: str):
    problem = BackwardProblem(**SIZES, **TERMS[terms], dtype=dtype)
    assert not hold(problem, "normal", ON_CHIP, mutant=mutant).passed


def test_a_right_kernel_comes_near_what_is_expected():
    problem = BackwardProblem(**SIZES, **TERMS["all"])
    by_output = hold(problem, "normal", ON_CHIP).by_output
    near = {name: by_output[name].error_over_expected for name in ("dbias", "dsinks")}
    assert all(0.005 <= ratio <= 1 for ratio in near.values()), near


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_trivial_answers_are_out(terms: dict[str, Any]):
    problem = BackwardProblem(**SIZES, **terms)
    inputs = draw_inputs(problem, "normal", 1)
    answer = gradients(problem, inputs)
    assert measure_power(problem, inputs, answer, error_budget(problem, inputs, answer, ON_CHIP)).decides


@pytest.mark.parametrize("regime", ["normal", "non-finite"])
@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_the_budget_of_a_part_is_that_part_of_the_whole(terms: dict[str, Any], regime: str):
    problem = BackwardProblem(**SIZES, **terms)
    inputs = draw_inputs(problem, regime, 5)
    whole = error_budget(problem, inputs, gradients(problem, inputs), ON_CHIP)
    (part, *_) = operation_named("attention-backward").parts(problem, 1.0)
    assert isinstance(part, Part) and part.where
    found = error_budget(problem, inputs, gradients(problem, inputs, part), ON_CHIP, part)
    for name, tolerance in whole.items():
        np.testing.assert_allclose(found[name].allowed, tolerance.allowed[part.of(name)], rtol=1e-5)
        np.testing.assert_allclose(found[name].expected, tolerance.expected[part.of(name)], rtol=1e-5)


def test_a_bias_that_hides_all_keys_of_a_row_leaves_gradients_of_zero():
    problem = BackwardProblem(**SIZES, bias="q_len,kv_len")
    inputs = draw_inputs(problem, "normal", 3)
    bias = inputs["bias"].copy()
    bias[0, 4] = bias[0, :, 7] = -np.inf
    inputs |= {"bias": bias}
    answer = operation_named("attention").answer(problem, inputs)
    inputs |= {name: array.astype(np.float32) for name, array in answer.items()}
    found = gradients(problem, inputs)
    budget = error_budget(problem, inputs, found, ON_CHIP)
    for name, where in {"dQ": np.s_[:, :, 4], "dK": np.s_[:, :, 7], "dV": np.s_[:, :, 7], "dbias": np.s_[0, 4]}.items():
        assert np.all(found[name][where] == 0) and np.all(budget[name].allowed[where] == 0)
    assert Question.pose(problem, inputs).check(kernel(problem, inputs), ON_CHIP).passed


def test_outputs_are_those_of_the_inputs():
    problem = BackwardProblem(**SIZES, bias="heads,kv_len", sinks=True, alibi=True, softcap=2.0)
    shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in problem.outputs}
    assert shapes["dbias"] == ((4, 1, 33), "float32") and shapes["dsinks"] == ((4,), "float32")
    assert list(shapes) == ["dQ", "dK", "dV", "dbias", "dsinks"]


@pytest.mark.parametrize("field", ["bias", "sinks"])
def test_gradients_that_are_sums_over_the_batch_are_not_asked_for_in_another_batch(field: str):
    value: Any = "heads" if field == "bias" else True
    with pytest.raises(ProblemError, match=f"far cannot be combined with {field}, whose gradient is a sum"):
        BackwardProblem(**SIZES, **{field: value}, far=FAR)
    axes = operation_named("attention-backward").axes(None, (), ())
    builds = [
        BackwardBuild(AttentionBuild("float32", 16)),
        BackwardBuild(AttentionBuild("float16", 16, features=(field,))),
    ]
    cases = axes.far_cases(builds, 0)
    assert cases and not any(case.problem.gradients_of_terms for case in cases)
