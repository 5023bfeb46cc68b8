"""A pass can fail: no trivial wrong answer passes anywhere, and right kernels are decided at the defaults."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from attention_model import NUMERICS, online_softmax
from lanes import exhaustive, exhaustive_unless, is_exhaustive, thorough_unless
from numpy_executor import NumpyKernel

from harness.execution.attempt import Attempt, attempt
from harness.execution.comparison import compare
from harness.execution.judging.deciding_problem import deciding_problem
from harness.execution.judging.question import Question
from harness.execution.judging.verdict import FAIL, PASS, UNDECIDED
from harness.execution.protocol import Device, Execution, LaunchReport
from harness.execution.run_settings import RunSettings
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import operation_named
from harness.model.plan import Launch, Plan
from harness.model.problem import OUTPUT, BaseProblem
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

Outputs = dict[str, np.ndarray]
E4M3 = Numerics(factors="e4m3")
DECLARED = {
    "nothing": Numerics(),
    "float32": NUMERICS[False],
    "stored": NUMERICS[True],
    "tensor cores": Numerics(scores="float32", one_score=True, divides_last=True),
    "scaled_q=1": Numerics(scaled_q=1),
    "scaled_q=4": Numerics(scaled_q=4),
    "e4m3": E4M3,
    "e4m3, float32 scores": Numerics(scores="float32", one_score=True, divides_last=True, factors="e4m3"),
}
"""Numerics that variants may declare, by what is remarkable about them."""
DTYPES = ("float32", "float16", "bfloat16")
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ROWS = 8


class GivenAnswer:
    """An executor whose runs come to one answer, whatever the kernels."""

    device = Device("emulator", "given", "sm_90")

    def __init__(self, outputs: Mapping[str, np.ndarray]) -> None:
        self.outputs = outputs

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        return Execution(self.outputs, (LaunchReport("given", None),), 0)


def variant(numerics: Numerics, operation: str = "attention") -> Variant:
    def plan(problem: BaseProblem) -> Plan:
        return Plan((Launch(NumpyKernel("given", lambda problem, arrays: None), (1,), (32,), ()),))

    return Variant(name="given", backend="numpy", plan=plan, operation=operation, numerics=numerics)


def judged(question: Question, outputs: Mapping[str, np.ndarray], numerics: Numerics) -> Attempt:
    """What is said of a variant with these outputs, rounded to their dtypes."""
    stored = {}
    with np.errstate(all="ignore"):
        for tensor in question.problem.tensors:
            if tensor.name in outputs and tensor.role == OUTPUT:
                stored[tensor.name] = outputs[tensor.name].astype(NUMPY_DTYPES[tensor.dtype])
    given = variant(numerics, question.problem.operation)
    done = attempt(given, question.problem, GivenAnswer(stored), question=question, holds_bytes=False)
    assert done.error is None, done.error
    return done


def weights_of(scores: np.ndarray) -> np.ndarray:
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    return weights / weights.sum(axis=-1, keepdims=True)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, tau: float, mistake: str) -> np.ndarray:
    """Attention without a mask, (heads, rows, d), in float64, with a mistake."""
    group = len(q) // len(k)
    k, v = (np.repeat(x, group, axis=0) for x in (k, v))
    n = k.shape[-2]
    if mistake == "half of the keys":
        k, v = k[:, : (n + 1) // 2], v[:, : (n + 1) // 2]
    scores = tau * (q @ k.mT)
    return weights_of(np.zeros_like(scores) if mistake == "the mean" else scores) @ v


def wrong_attention(problem: Problem, inputs: Mapping[str, np.ndarray], mistake: str) -> Outputs:
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    return {"O": np.stack([attended(q[b], k[b], v[b], problem.tau, mistake) for b in range(problem.batch)])}


def wrong_paged(problem: Any, inputs: Mapping[str, np.ndarray], mistake: str) -> Outputs:
    O = np.zeros(problem.q_shape)
    for sequence, length in enumerate(problem.lengths):
        pages = inputs["table"][sequence, : -(-length // problem.page_size)]
        k, v = (
            np.concatenate([inputs[name][page].astype(np.float64) for page in pages], axis=-2)[:, :length]
            for name in "KV"
        )
        O[sequence] = attended(inputs["Q"][sequence].astype(np.float64), k, v, problem.tau, mistake)
    return {"O": O}


def wrong_softmax(problem: Any, inputs: Mapping[str, np.ndarray], mistake: str) -> Outputs:
    x = inputs["X"].astype(np.float64)
    half = (problem.columns + 1) // 2
    if mistake == "half of the keys":
        return {"Y": np.concatenate([weights_of(x[:, :half]), np.zeros_like(x[:, half:])], axis=1)}
    return {"Y": weights_of(np.zeros_like(x))}


def wrong_gradients(problem: Any, inputs: Mapping[str, np.ndarray], mistake: str) -> Outputs:
    q, k, v, o, do = (inputs[name].astype(np.float64) for name in ("Q", "K", "V", "O", "dO"))
    p = np.exp(problem.tau * (q @ k.mT) - inputs["lse"].astype(np.float64)[..., None])
    if mistake == "the mean":
        # Not 1 / n: lse is stored in float32, and where all keys are equal these are the right weights.
        p = np.broadcast_to(p.mean(axis=-1, keepdims=True), p.shape)
    else:
        p[..., (problem.kv_len + 1) // 2 :] = 0
    ds = p * (do @ v.mT - (do * o).sum(axis=-1, keepdims=True))
    return {"dQ": problem.tau * (ds @ k), "dK": problem.tau * (ds.mT @ q), "dV": p.mT @ do}


def rows_and_keys(n: int) -> dict[str, int]:
    """The fields of a problem of so many keys, which has fewer rows where it is long."""
    if n > 1024:
        return {"batch": 1, "heads": 2, "q_len": 3, "kv_len": n, "head_dim": 32}
    return {"batch": 2, "heads": 2, "q_len": ROWS, "kv_len": n}


OPERATIONS: dict[str, tuple[Any, Any]] = {
    "attention": (wrong_attention, rows_and_keys),
    "attention-backward": (wrong_gradients, rows_and_keys),
    "paged-attention": (wrong_paged, lambda n: {"lengths": (n, n // 2 + 1), "heads": 2, "head_dim": 32}),
    "softmax": (wrong_softmax, lambda n: {"rows": ROWS, "columns": n}),
}


def wrong_answers(question: Question) -> Iterator[tuple[str, Outputs]]:
    """The trivial ones by name, in float64, made without what the harness has for that."""
    problem = question.problem
    answer = {tensor.name: question.answer[tensor.name] for tensor in problem.tensors if tensor.role == OUTPUT}
    yield "zeros", {name: np.zeros_like(array) for name, array in answer.items()}
    for axis in range(next(iter(answer.values())).ndim - 1):
        before = {name: x.take(np.maximum(np.arange(x.shape[axis]) - 1, 0), axis) for name, x in answer.items()}
        yield f"the one before along axis {axis}", before
    for mistake in ("the mean", "half of the keys"):
        with np.errstate(all="ignore"):
            yield mistake, OPERATIONS[problem.operation][0](problem, question.inputs, mistake)


def is_right(question: Question, outputs: Outputs) -> bool:
    """Whether an answer is the right one but for the rounding of float64."""

    def same(wrong: np.ndarray, right: np.ndarray) -> bool:
        largest = np.abs(right[np.isfinite(right)]).max(initial=0.0)
        return np.allclose(wrong, right, rtol=0.0, atol=1e-12 * largest, equal_nan=True)

    return all(same(wrong, question.answer[name]) for name, wrong in outputs.items())


def declared(problem: BaseProblem) -> list[Numerics]:
    """What may be declared, less what is the same for this problem."""
    heeded = operation_named(problem.operation).numerics_used(problem)
    return list({tuple(getattr(each, name) for name in heeded): each for each in DECLARED.values()}.values())


def passing(operation: str, regime: str, dtype: str, length: int) -> list[str]:
    """The trivial wrong answers that pass, whatever is declared."""
    fields = OPERATIONS[operation][1](length)
    question = Question.draw(operation_named(operation).problem(dtype=dtype, **fields), regime, 1)
    return [
        f"{regime}, {dtype}, {length}: {name} under {each}"
        for (name, outputs), each in itertools.product(wrong_answers(question), declared(question.problem))
        if not is_right(question, outputs) and judged(question, outputs, each).verdict == PASS
    ]


SHORT = [(operation, dtype, 64) for operation in OPERATIONS for dtype in DTYPES]
LONGER = [("softmax", "float16", 1024), ("attention", "float16", 1024)]
"""Samples of long problems that shorter lanes have as well."""


@pytest.mark.parametrize(
    ("operation", "dtype", "length"),
    [
        # Answers in bfloat16 have the widest budget, in which most that is wrong fits.
        *thorough_unless(lambda case: case[0] == "attention" or case[1] == "bfloat16", SHORT),
        *thorough_unless(lambda case: case[0] == "softmax", LONGER),
        *exhaustive(case for case in itertools.product(OPERATIONS, DTYPES, LENGTHS) if case not in (*SHORT, *LONGER)),
    ],
)
def test_no_trivial_wrong_answer_passes_in_any_regime_whatever_is_declared(operation: str, dtype: str, length: int):
    regimes = operation_named(operation).regimes
    assert [each for regime in regimes for each in passing(operation, regime, dtype, length)] == []


COMMON: tuple[dict[str, object], ...] = ({}, {"mask": "causal"}, {"mask": "window:32"}, {"heads": 8, "kv_heads": 2})


@pytest.mark.parametrize(
    ("name", "dtype", "fields"),
    thorough_unless(
        lambda case: case[1] == "bfloat16" and (case[0] == "attention" or not case[2]),
        itertools.product(("attention", "attention-backward"), DTYPES, COMMON),
    ),
    ids=str,
)
def test_default_problems_of_attention_decide_whatever_is_declared(name: str, dtype: str, fields: dict[str, object]):
    question = Question.draw(operation_named(name).problem(dtype=dtype, **fields))
    assert [each for each in declared(question.problem) if not question.power(each).decides] == []


OTHERS = list(itertools.product(("kv-append", "paged-attention", "softmax"), DTYPES))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *exhaustive_unless(lambda case: case[0] == "softmax" or case[1] == "bfloat16", OTHERS),
        # Rows of 576 numbers take half a minute for each dtype.
        *thorough_unless(lambda case: False, [("mla-decode", "bfloat16")]),
        *([("mla-decode", "float16"), ("mla-decode", "float32")] if is_exhaustive() else ()),
    ],
)
def test_other_default_problems_decide_whatever_is_declared(name: str, dtype: str):
    question = Question.draw(operation_named(name).problem(dtype=dtype))
    assert [each for each in declared(question.problem) if not question.power(each).decides] == []


@pytest.mark.parametrize(("dtype", "scalings", "least"), [("bfloat16", 1, 5), ("float16", 1, 100), ("float16", 4, 50)])
def test_a_scaled_q_is_decided_where_scores_are_large(dtype: str, scalings: int, least: float):
    # What its rounding does to the scores is the same in the sum over V and in the denominator.
    power = Question.draw(Problem(dtype=dtype), "hot").power(Numerics(scaled_q=scalings))
    assert power.ratio > least


def test_a_power_of_some_rows_is_none_that_all_rows_would_not_have():
    question = Question.draw(Problem(heads=4, q_len=200, kv_len=300, dtype="bfloat16"), "uniform")
    everywhere, limits = question.power().ratio, question.tolerance()
    assert 1 <= everywhere
    of_all = max(
        float((np.abs(outputs["O"] - question.answer["O"]) / limits["O"].expected).max())
        for _, outputs in wrong_answers(question)
    )
    assert everywhere <= of_all


def test_what_is_right_by_construction_is_no_wrong_answer():
    one_key = Question.draw(Problem(batch=1, heads=1, q_len=1, kv_len=1))
    assert one_key.power().nearest == "zeros" and one_key.power().decides
    constant = Question.draw(Problem(kv_len=40, dtype="float16"), "constant")
    assert constant.power(DECLARED["tensor cores"]).decides
    nothing_seen = Question.draw(Problem(heads=1, q_len=4, kv_len=1, mask="window:0,0"))
    assert nothing_seen.power().decides


def test_where_nothing_is_promised_nothing_is_decided():
    question = Question.draw(Problem(dtype="float16"), "far-negative")
    assert np.isposinf(question.tolerance(E4M3)["O"].allowed).all()
    assert (question.power(E4M3).ratio, question.power(E4M3).nearest) == (0.0, "any answer")


def compared(problem: Problem, numerics: Numerics, outputs: Outputs, regime: str = "normal") -> Any:
    (row,) = compare([variant(numerics)], problem, GivenAnswer(outputs), RunSettings(regime=regime)).rows
    return row


def zeros(problem: Problem) -> Outputs:
    return {"O": np.zeros(problem.q_shape, NUMPY_DTYPES[problem.dtype])}


def test_zeros_within_a_wide_budget_are_undecided():
    problem = Problem(heads=1, q_len=4, kv_len=65536, head_dim=8, dtype="float16")
    row = compared(problem, E4M3, zeros(problem))
    assert row.verdict == UNDECIDED and row.rank is None and row.error_over_budget < 1 and row.power < 1
    assert row.nearest_wrong_answer in row.reason
    length = int(row.reason.split("--kv-len ")[1].split()[0])
    shorter = dataclasses.replace(problem, kv_len=length)
    assert Question.draw(shorter).power(E4M3).decides
    assert compared(shorter, E4M3, zeros(shorter)).verdict in (UNDECIDED, FAIL)


def test_inputs_that_decide_nothing_name_a_regime_that_does():
    problem = Problem(heads=1, q_len=16, kv_len=64, dtype="float16")
    right = {"O": Question.draw(problem, "far-negative").answer["O"].astype(np.float16)}
    row = compared(problem, Numerics(), right, "far-negative")
    assert row.verdict == UNDECIDED and row.reason.endswith("; --regime normal would be conclusive")


def test_no_option_is_named_where_the_variant_takes_none_that_decides():
    problem = Problem(heads=1, q_len=16, kv_len=64, dtype="float16")
    refuses = dataclasses.replace(variant(Numerics()), supports=lambda p: None if p == problem else "only that")
    assert deciding_problem(refuses, problem, "far-negative", 0) == "--regime normal would be conclusive"
    nothing = dataclasses.replace(variant(Numerics()), supports=lambda p: "nothing")
    assert deciding_problem(nothing, problem, "far-negative", 0).startswith("no other regime")


def test_an_error_that_is_not_expected_is_undecided_and_exact_ones_fail():
    problem = Problem(heads=1, q_len=16, kv_len=300, dtype="float16")
    question = Question.draw(problem)
    limits = question.tolerance()["O"]
    off = question.answer["O"] + 0.9 * limits.allowed
    done = judged(question, {"O": off}, Numerics())
    assert done.accuracy is not None and done.accuracy.suspicious
    assert done.verdict == UNDECIDED and done.reason is not None and "times the error that is expected" in done.reason
    assert judged(question, {"O": question.answer["O"] + 1.5 * limits.allowed}, Numerics()).verdict == FAIL


@pytest.mark.parametrize("regime", ["normal", "uniform", "rising", "hot"])
def test_a_right_kernel_passes(regime: str):
    question = Question.draw(Problem(heads=2, q_len=33, kv_len=70, dtype="float16"), regime)
    numerics = NUMERICS[False]
    done = judged(question, online_softmax(question.problem, question.inputs), numerics)
    assert done.verdict == PASS, done.reason


def test_power_is_worked_out_on_a_few_rows_where_these_decide(monkeypatch: pytest.MonkeyPatch):
    problem, asked = Problem(heads=2, q_len=4096, kv_len=64), []
    question, operation = Question.draw(problem), operation_named("attention")
    original = operation.trivial_answers

    def noting(p: Problem, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        each = original(p, inputs)
        return {name: lambda part, name=name: asked.append(part) or each[name](part) for name in each}

    monkeypatch.setattr(operation, "trivial_answers", noting)
    assert question.power().decides
    assert asked and all(part.where[2].stop - part.where[2].start <= 32 for part in asked)
