"""The share of a bias in the error budget: right kernels keep to it, whenever they add the bias, and come near it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from attention_answers import hold
from attention_model import NUMERICS

from harness.execution.judging.accuracy import Accuracy
from harness.model.arithmetic.rounding import U
from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs
from harness.operations.attention.bias import AXES
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.budget.product_errors import ProductErrors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.budget.score_errors import errors_after_rule
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_term import ScoreErrors
from harness.operations.attention.score_terms import Biased, Penalized
from harness.operations.attention.scores import ScoreRule

pytestmark = pytest.mark.compiles(False)

f32 = np.float32
Arrays = dict[str, np.ndarray]
SMALL = Problem(batch=2, heads=4, kv_heads=2, q_len=12, kv_len=20, head_dim=8, bias=AXES)
STRICT = NUMERICS[False]


def judged(problem: Problem, inputs: Arrays, outputs: Arrays, numerics: Numerics = STRICT) -> Accuracy:
    answer = attention(problem, inputs)
    return hold(outputs, answer, error_budget(problem, inputs, answer, numerics))


def kernel(problem: Problem, inputs: Arrays, order: str = "last", bits: int = 24) -> Arrays:
    """Attention in float32, with every change of scores; `bits` of the bias's significand are kept.

    `order`: when the bias is added: `last`; `first`, before ALiBi; `penalty`, to ALiBi's penalty; `stored`, after S is
    rounded to the problem's dtype; `base 2`, multiplied by log2 e.
    """
    q, k, v = (inputs[name].repeat(1 if name == "Q" else problem.group, axis=1).astype(f32) for name in "QKV")
    s = f32(problem.tau) * (q @ k.mT)
    if problem.softcap is not None:
        s = f32(problem.softcap) * np.tanh(s / f32(problem.softcap))
    fraction, exponent = np.frexp(inputs["bias"])
    bias = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits).astype(f32)
    penalty = f32(0)
    if problem.alibi:
        place = np.arange(problem.q_len)[:, None] + problem.diagonal
        penalty = inputs["slopes"][:, None, None] * np.abs(place - np.arange(problem.kv_len)).astype(f32)
    if order == "stored":
        s = s.astype(np.float16).astype(f32)
    log2_e = f32(1.4426950408889634)
    if order == "first":
        s = (s + bias) - penalty
    elif order == "penalty":
        s = s + (bias - penalty)
    elif order == "base 2":
        s = s * log2_e + bias * log2_e
    else:
        s = (s - penalty) + bias
    with np.errstate(all="ignore"):
        if problem.sinks:
            sinks = np.broadcast_to(inputs["sinks"][:, None, None], (*s.shape[:-1], 1))
            s = np.concatenate((s, sinks * (log2_e if order == "base 2" else f32(1))), axis=-1)
            v = np.concatenate((v, np.zeros((*v.shape[:2], 1, v.shape[3]), f32)), axis=2)
        m = s.max(axis=-1, keepdims=True)
        p = (np.exp2 if order == "base 2" else np.exp)(s - np.where(np.isneginf(m), f32(0), m))
        l = p.sum(axis=-1, keepdims=True)
        O = np.where(l > 0, (p @ np.where(np.isfinite(v), v, 0)) / l, f32(0))
    return {"O": O.astype(inputs["Q"].dtype)}


FINITE = [regime for regime in REGIMES if regime != "non-finite"]
FAST = dataclasses.replace(STRICT, functions="fast")
ORDERS = {
    "last": ({"alibi": True, "softcap": 4.0, "sinks": True}, STRICT),
    "first": ({"alibi": True}, STRICT),
    "penalty": ({"alibi": True}, STRICT),
    "base 2": ({"sinks": True}, FAST),
    "stored": ({"dtype": "float16"}, dataclasses.replace(FAST, scores="problem")),
}


@pytest.mark.parametrize("regime", FINITE)
@pytest.mark.parametrize("order", ORDERS)
def test_a_right_kernel_keeps_to_its_budget(order: str, regime: str):
    fields, numerics = ORDERS[order]
    for axes, seed in ((AXES, 0), (("heads", "kv_len"), 1), (("q_len",), 2)):
        problem = dataclasses.replace(SMALL, **fields, bias=axes)
        inputs = draw_inputs(problem, regime, seed)
        result = judged(problem, inputs, kernel(problem, inputs, order), numerics)
        assert result.passed and not result.suspicious, result.reason


def test_the_rounding_of_the_sum_comes_near_the_budget():
    """A right kernel reaches a good part of what is expected; eight times that error is suspicious."""
    problem = Problem(heads=2, q_len=16, kv_len=4, head_dim=8, bias=AXES)
    inputs = draw_inputs(problem, "normal", 1)
    inputs["bias"] += f32(1000)

    def run(error: float) -> Arrays:
        q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
        s = (problem.tau * (q @ k.mT) + inputs["bias"]) * (1 + error * np.where(np.arange(4) % 2, 1, -1))
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return {"O": (p @ v / p.sum(axis=-1, keepdims=True)).astype(f32)}

    right, wrong = (judged(problem, inputs, run(error)) for error in (2.0**-24, 2.0**-21))
    assert right.passed and not right.suspicious and right.error_over_expected > 0.3
    assert wrong.suspicious or not wrong.passed


@pytest.mark.parametrize("bits", [8, 11, 16])
def test_a_bias_of_fewer_bits_is_not_right(bits: int):
    inputs = draw_inputs(SMALL, "normal", 0)
    result = judged(SMALL, inputs, kernel(SMALL, inputs, bits=bits))
    assert result.suspicious or not result.passed


def test_the_budget_of_a_small_bias_is_hardly_wider():
    plain = dataclasses.replace(SMALL, bias=None)
    inputs = draw_inputs(SMALL, "normal", 0)
    wide, narrow = (error_budget(p, inputs, attention(p, inputs), STRICT)["O"].allowed for p in (SMALL, plain))
    assert np.median(wide) < 1.5 * np.median(narrow)


# --- The error of a score --------------------------------------------------------------------------------------------


def score_errors(
    products: np.ndarray, bias: np.ndarray, penalty: np.ndarray | None, numerics: Numerics
) -> tuple[np.ndarray, ScoreErrors]:
    """Scores in float64, and their errors if the products have none."""
    alibi = () if penalty is None else (Penalized(penalty[None]),)
    rule = ScoreRule((*alibi, Biased(bias[None], penalty is not None)), None)
    products = products[None, None]
    scores = rule.scores(products)
    none = np.zeros(products.shape, f32)
    rounding = Roundings.of(Problem(bias=AXES, alibi=penalty is not None), numerics)
    return scores[0, 0], errors_after_rule(rule, scores, products, ProductErrors(none, none, 0.0, 0.0), rounding)


def drawn(low: float, high: float) -> np.ndarray:
    return np.random.default_rng(0).uniform(low, high, (100, 1000)).astype(f32).astype(np.float64)


@pytest.mark.parametrize("order", ["bias first", "bias to the penalty"])
def test_one_more_addition_is_allowed_with_alibi(order: str):
    """Just above a power of two, where roundings are largest; scores are as small as the penalty."""
    bias, penalty = drawn(1024, 1040), drawn(0.001, 0.01)[:, ::-1]
    products = drawn(-0.01, 0.01)[::-1]
    s, b, small = (x.astype(f32) for x in (products, bias, penalty))
    computed = (s + b) - small if order == "bias first" else s + (b - small)
    scores, errors = score_errors(products, bias, penalty, STRICT)
    error = np.abs(computed - scores) / errors.proved[0, 0]
    assert 0.6 < error.max() <= 1


def test_a_bias_in_powers_of_two_has_two_more_roundings():
    bias, products = drawn(1024, 1040) / 1.4426950408889634, drawn(-0.01, 0.01)[::-1]
    bias = bias.astype(f32).astype(np.float64)
    log2_e = f32(1.4426950408889634)
    computed = products.astype(f32) * log2_e + bias.astype(f32) * log2_e
    errors = {}
    for name, numerics in (("fast", FAST), ("accurate", STRICT)):
        scores, of_scores = score_errors(products, bias, None, numerics)
        errors[name] = (np.abs(computed / np.log2(np.e) - scores) / of_scores.proved[0, 0]).max()
    assert errors["fast"] <= 1 < errors["accurate"]


def test_the_largest_of_all_stages_may_be_stored():
    products, bias, penalty = np.full((1, 4), 10.0), np.full((1, 4), 1000.0), np.full((1, 4), 1005.0)
    scores, errors = score_errors(products, bias, penalty, STRICT)
    assert np.all(scores == 5) and np.all(errors.largest == 995)
    _, alone = score_errors(products - 1005.0, bias, None, STRICT)
    assert np.all(alone.largest == 995)
    assert np.allclose(alone.proved, 5 * U)


def test_scores_that_overflow_before_the_bias_is_added_may_be_stored():
    problem = Problem(heads=1, q_len=2, kv_len=3, head_dim=1, scale=1.0, dtype="float16", bias="q_len")
    inputs = draw_inputs(problem, "normal", 0)
    inputs["Q"][:], inputs["K"][:], inputs["bias"][:] = 300, 300, [[[-90000], [0]]]
    inputs["Q"][0, 0, 1] = 1
    answer = attention(problem, inputs)
    for scores, is_allowed in (("problem", True), ("float32", False)):
        allowed = error_budget(problem, inputs, answer, dataclasses.replace(STRICT, scores=scores))["O"].allowed
        assert np.isinf(allowed[0, 0, 0]).all() == is_allowed and np.isfinite(allowed[0, 0, 1]).all()
