"""The budget of gradients: right kernels stay within, worse ones do not, and it is not far above what they need."""

from __future__ import annotations

import numpy as np
import pytest
from attention_answers import products_in_order

from harness.execution.judging.accuracy import Accuracy
from harness.execution.judging.question import Question
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.attention_backward.error_budget import error_budget
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.oracle import gradients
from harness.operations.attention_backward.problem import BackwardProblem

DTYPES = ("float32", "float16", "bfloat16")
ON_CHIP = Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest")
STORED = Numerics(scores="problem", weights="problem", functions="accurate", sums="nearest")
ROWS_AT_ONCE = 7


def kernel(
    problem: BackwardProblem,
    inputs: dict[str, np.ndarray],
    stored: bool = False,
    mutant: str = "",
    in_order: bool = False,
    scales_dS: bool = False,
) -> dict[str, np.ndarray]:
    """Float32 throughout, a block of rows after the other; S, P, dP and dS rounded where they are `stored`.

    `in_order`: products of scores are added one by one. `scales_dS`: dS is times tau before it is multiplied, and
    weights and dS that are too small to be normal are flushed to zero.
    """
    dtype = NUMPY_DTYPES[problem.dtype]
    x = {name: array.astype(np.float32) for name, array in inputs.items()}
    tau, group = np.float32(problem.tau), problem.group
    keys = np.arange(problem.kv_len)
    out = {name: np.zeros(x[name[1]].shape, np.float32) for name in ("dQ", "dK", "dV")}

    def through_memory(array: np.ndarray) -> np.ndarray:
        return array.astype(dtype).astype(np.float32) if stored or mutant == "P and dS in 16 bits" else array

    with np.errstate(all="ignore"):
        for b, h in np.ndindex(problem.batch, problem.heads):
            K, V = (x[name][b, h // group] for name in "KV")
            for start in range(0, problem.q_len, ROWS_AT_ONCE):
                r = np.s_[start : start + ROWS_AT_ONCE]
                q, o, do, lse = (x[name][b, h, r] for name in ("Q", "O", "dO", "lse"))
                rows = np.arange(problem.q_len)[r, None]
                seen = np.broadcast_to(
                    problem.mask.visible(rows, keys[None], problem.q_len, problem.kv_len), (len(rows), problem.kv_len)
                )
                s, dp = tau * (products_in_order(q, K) if in_order else q @ K.T), do @ V.T
                if stored:
                    s, dp = through_memory(s), through_memory(dp)
                base = np.float32(np.log(2)) * lse if mutant == "lse to base 2" else lse
                p = np.where(seen, np.exp(s - base[:, None]), np.float32(0))
                delta = (do * o).sum(axis=-1, keepdims=True, dtype=np.float32)
                if mutant == "no delta":
                    delta = np.zeros_like(delta)
                if mutant == "delta of another row":
                    delta = np.roll(delta, 1, axis=0)
                if mutant == "delta a little off":
                    delta = delta * np.float32(1 + 2e-5)
                p = _flushed(p) if scales_dS else p
                ds = np.where(seen, p * (dp - delta), np.float32(0))
                p, ds = through_memory(p), through_memory(ds)
                hidden = ~seen & np.isfinite(s)
                of_keys = np.where(hidden, p + 1e-3, ds) if mutant == "mask forgotten in dS" else ds
                scale = np.float32(1) if scales_dS else tau
                if scales_dS:
                    ds, of_keys = (_flushed(tau * _flushed(x)) for x in (ds, of_keys))
                out["dQ"][b, h, r] = (1 if mutant == "no scale on dQ" else scale) * _product(ds, K)
                out["dV"][b, h // group] += _product(p.T, do)
                out["dK"][b, h // group] += (1 if mutant == "no scale on dK" else scale) * _product(of_keys.T, q)
                if mutant == "group not summed" and h % group == group - 1 and start == 0 and group > 1:
                    out["dV"][b, h // group] = _product(p.T, do)
        return {name: array.astype(dtype) for name, array in out.items()}


def _flushed(array: np.ndarray) -> np.ndarray:
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0), array)


def _product(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where a weight is 0 nothing is multiplied, not even NaN."""
    if np.isfinite(values).all():
        return weights @ values
    return np.where(weights[..., None] != 0, weights[..., None] * values, np.float32(0)).sum(axis=1)


@pytest.mark.parametrize("odd", [0.0, 3.0, -1e3, 1e5])
def test_products_that_are_equal_but_for_a_few_are_not_taken_for_random(odd: float):
    problem = BackwardProblem(heads=1, q_len=64, kv_len=200, head_dim=160)
    inputs = {name: array.copy() for name, array in draw_inputs(problem, "rising", 1).items()}
    inputs["Q"][..., 5] = odd
    answer = operation_named("attention").answer(problem, {name: inputs[name] for name in "QKV"})
    inputs |= {name: array.astype(np.float32) for name, array in answer.items()}
    accuracy = Question.pose(problem, inputs).check(kernel(problem, inputs, in_order=True), ON_CHIP)
    assert accuracy.passed and not accuracy.suspicious, accuracy.error_over_expected


@pytest.mark.parametrize(
    ("fields", "regime", "seed"),
    [
        ({"batch": 2, "heads": 4, "q_len": 1, "kv_len": 32, "head_dim": 16}, "hot", 54712),
        (
            {"batch": 3, "heads": 3, "q_len": 63, "kv_len": 95, "head_dim": 18, "mask": "documents:5+32+1"},
            "far-negative",
            64407,
        ),
        ({"batch": 2, "heads": 2, "q_len": 12, "kv_len": 30, "head_dim": 16, "sinks": True}, "offset", 37458),
    ],
    ids=["one row", "documents", "weights that are almost 0"],
)
def test_dS_may_be_scaled_before_it_is_multiplied(fields: dict[str, object], regime: str, seed: int):
    result = hold(BackwardProblem(**fields), regime, ON_CHIP, seed, scales_dS=True)
    assert result.passed and not result.suspicious, (result.reason, result.error_over_expected)


def hold(problem: BackwardProblem, regime: str, numerics: Numerics, seed: int = 1, **options: object) -> Accuracy:
    question = Question.draw(problem, regime, seed)
    right = {name: question.answer[name].astype(np.float32) for name in ("dsinks",) if problem.sinks}
    return question.check(kernel(problem, question.inputs, **options) | right, numerics)


PROBLEMS = {
    "grouped": {"heads": 4, "kv_heads": 2, "q_len": 20, "kv_len": 33, "head_dim": 16, "mask": "causal"},
    "window": {"batch": 2, "heads": 1, "q_len": 30, "kv_len": 24, "head_dim": 5, "mask": "window:6,2"},
    "scaled": {"heads": 2, "q_len": 9, "kv_len": 64, "head_dim": 32, "scale": -0.4},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("sizes", PROBLEMS.values(), ids=PROBLEMS)
def test_a_right_kernel_is_within_what_is_expected(sizes: dict[str, object], regime: str, dtype: str):
    problem = BackwardProblem(**sizes, dtype=dtype)
    for stored, numerics in ((False, ON_CHIP), (True, STORED), (False, Numerics())):
        result = hold(problem, regime, numerics, stored=stored)
        assert result.passed, result.reason
        assert not result.suspicious, result.error_over_expected


@pytest.mark.parametrize(
    ("dtype", "stored", "least"),
    [("float16", False, 0.5), ("bfloat16", False, 0.5), ("bfloat16", True, 0.1), ("float32", False, 0.03)],
)
def test_a_right_kernel_comes_near_what_is_expected(dtype: str, stored: bool, least: float):
    problem = BackwardProblem(heads=2, q_len=40, kv_len=40, head_dim=16, dtype=dtype)
    result = hold(problem, "normal", STORED if stored else ON_CHIP, stored=stored)
    assert least <= result.error_over_expected <= 1


MUTANTS = (
    "no delta",
    "delta of another row",
    "lse to base 2",
    "mask forgotten in dS",
    "no scale on dQ",
    "no scale on dK",
    "group not summed",
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_out(mutant: str, dtype: str):
    problem = BackwardProblem(**PROBLEMS["grouped"], dtype=dtype)
    assert not hold(problem, "normal", ON_CHIP, mutant=mutant).passed


def test_a_rounding_that_is_not_declared_is_out():
    problem = BackwardProblem(heads=2, q_len=40, kv_len=40, head_dim=16, dtype="bfloat16")
    assert not hold(problem, "one-gradient", ON_CHIP, mutant="P and dS in 16 bits").passed
    assert hold(problem, "one-gradient", STORED, mutant="P and dS in 16 bits").passed
    exact = BackwardProblem(heads=2, q_len=40, kv_len=40, head_dim=16)
    result = hold(exact, "one-gradient", ON_CHIP, mutant="delta a little off")
    assert not result.passed or result.suspicious


@pytest.mark.parametrize("sizes", [(1.0, 1.0, 1.0, 1.0), (7.4, -0.15, 0.8, 1.7)], ids=["all", "of each head"])
def test_equal_summands_are_rounded_alike(sizes: tuple[float, ...]):
    # One key has the weight 1 in all rows, and all dO of a head are one row: dV is a sum of 1,200 terms, one after
    # the other, of which all are equal, or those of each head of the group.
    problem = BackwardProblem(heads=4, kv_heads=1, q_len=300, kv_len=1, head_dim=16)
    inputs = Question.draw(problem, "one-gradient", 25).inputs
    dO = inputs["dO"] * np.array(sizes, np.float32)[:, None, None]
    question = Question.pose(problem, {**inputs, "dO": dO})
    outputs = kernel(problem, question.inputs)
    outputs["dV"] = np.cumsum(dO.reshape(-1, 16), axis=0, dtype=np.float32)[-1].reshape(1, 1, 1, 16)
    result = question.check(outputs, ON_CHIP)
    assert result.passed and not result.suspicious, result.error_over_expected


@pytest.mark.parametrize("regime", ["normal", "non-finite"])
def test_the_budget_of_a_part_is_that_part_of_the_whole(regime: str):
    problem = BackwardProblem(batch=2, heads=6, kv_heads=2, q_len=11, kv_len=9, head_dim=5, mask="causal+window:4")
    inputs = draw_inputs(problem, regime, 5)
    whole = error_budget(problem, inputs, gradients(problem, inputs), ON_CHIP)
    of_keys = (slice(1, 2), slice(1, 2), slice(3, 8))
    part = Part((slice(1, 2), slice(4, 5), slice(2, 9)), "a part", {"dK": of_keys, "dV": of_keys})
    found = error_budget(problem, inputs, gradients(problem, inputs, part), ON_CHIP, part)
    for name, tolerance in whole.items():
        np.testing.assert_allclose(found[name].allowed, tolerance.allowed[part.of(name)], rtol=1e-10)
        np.testing.assert_allclose(found[name].expected, tolerance.expected[part.of(name)], rtol=1e-10)


@pytest.mark.parametrize("regime", ["normal", "non-finite"])
def test_the_budget_goes_on_from_what_the_answer_was_worked_out_from(regime: str, monkeypatch: pytest.MonkeyPatch):
    problem = BackwardProblem(batch=2, heads=6, kv_heads=2, q_len=11, kv_len=9, head_dim=5, mask="causal", dropout=0.25)
    inputs = draw_inputs(problem, regime, 5)
    answer = gradients(problem, inputs)
    anew = error_budget(problem, inputs, dict(answer), ON_CHIP)
    monkeypatch.delattr("harness.operations.attention_backward.error_budget.blocks_of")
    for name, tolerance in error_budget(problem, inputs, answer, ON_CHIP).items():
        np.testing.assert_array_equal(tolerance.allowed, anew[name].allowed)
        np.testing.assert_array_equal(tolerance.expected, anew[name].expected)
