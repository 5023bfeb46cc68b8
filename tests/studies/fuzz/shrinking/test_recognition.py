"""Known mistakes are recognised in wrong outputs, and nothing else is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.model.operation import operation_named, operation_names, operation_of
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.problem import PagedProblem
from harness.operations.softmax.problem import SoftmaxProblem
from harness.studies.fuzz.shrinking.pattern import recognised

pytestmark = pytest.mark.compiles(False)

PLAIN = Problem(batch=2, heads=4, kv_heads=2, q_len=5, kv_len=9, head_dim=4)
CAUSAL = Problem(batch=1, heads=2, q_len=7, kv_len=9, head_dim=4, mask=parse_mask("causal"))


def equals(question: Question, got: np.ndarray, output: str, tile_keys: int | None = None) -> str | None:
    """What is recognised in `got`, as a campaign holds it."""
    held = question.check({**question.answer, output: got}).by_output[output]
    assert held.wrong.any()
    operation = operation_of(question.problem)
    mistakes = operation.known_mistakes(question.problem, question.inputs, tile_keys)
    axes = held.first_wrong.axes
    allowed = question.tolerance()[output].allowed
    return recognised(output, axes, got, question.answer[output], allowed, held.wrong, mistakes)


def without_keys(problem: Problem, inputs: Any, kept: slice) -> Any:
    """The answer to fewer keys, where no mask depends on their number."""
    fewer = {**inputs, "K": inputs["K"][:, :, kept], "V": inputs["V"][:, :, kept]}
    return attention(Problem(**{**vars_of(problem), "kv_len": fewer["K"].shape[2]}), fewer)


def vars_of(problem: Problem) -> dict[str, Any]:
    names = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    return {name: getattr(problem, name) for name in names}


@pytest.mark.parametrize(
    ("kept", "tile", "name"),
    [
        (slice(0, 8), None, "equals the answer without the last key"),
        (slice(1, 9), None, "equals the answer without the first key"),
        (slice(0, 6), 6, "equals the answer without the last tile of keys"),
        (slice(4, 9), 4, "equals the answer without the first tile of keys"),
        (slice(0, 7), None, None),
    ],
)
@pytest.mark.parametrize("output", ["O", "lse"])
def test_keys_that_are_left_out(kept: slice, tile: int | None, name: str | None, output: str):
    question = Question.draw(PLAIN, seed=1)
    assert equals(question, without_keys(PLAIN, question.inputs, kept)[output], output, tile) == name


def test_rows_of_a_mask_that_see_one_key_more_or_less():
    question = Question.draw(CAUSAL, seed=1)
    rows, keys = np.arange(7)[:, None], np.arange(9)[None, :]
    for more, name in (
        (1, "with one key more than the mask lets each row see"),
        (-1, "without the last key that each row"),
    ):
        scores = CAUSAL.tau * question.inputs["Q"].astype(float) @ question.inputs["K"].astype(float).mT
        weights = np.where(keys <= rows + 2 + more, np.exp(scores), 0)
        got = weights @ question.inputs["V"].astype(float) / weights.sum(axis=-1, keepdims=True)
        assert name in equals(question, got, "O")
    unmasked = attention(Problem(**vars_of(CAUSAL)), question.inputs)["O"]
    assert equals(question, unmasked, "O") == "equals the answer without the mask"


def test_heads_that_are_mistaken_for_each_other():
    problem = Problem(batch=1, heads=6, kv_heads=3, q_len=5, kv_len=9, head_dim=4)
    question = Question.draw(problem, seed=1)
    for heads, name in (
        ([1, 2, 0], "the next key/value head"),
        ([2, 0, 1], "the previous key/value head"),
        ([0, 0, 0], "the first key/value head"),
    ):
        other = {**question.inputs, **{x: question.inputs[x][:, heads] for x in "KV"}}
        got = attention(problem, other)["O"]
        assert equals(question, got, "O") == f"equals the answer with K and V of {name}"
    ungrouped = Problem(batch=1, heads=6, q_len=5, kv_len=9, head_dim=4)
    taken = {**question.inputs, **{x: question.inputs[x][:, [0, 1, 2, 0, 1, 2]] for x in "KV"}}
    assert "h % kv_heads for query head h" in equals(question, attention(ungrouped, taken)["O"], "O")


def test_an_answer_of_a_neighbour_and_of_nothing_known():
    question = Question.draw(PLAIN, seed=1)
    right = question.answer["O"]
    assert equals(question, np.roll(right, 1, axis=2), "O") == "equals the answer of the previous row"
    one_row = right.copy()
    one_row[1, 2, 3] = right[1, 3, 3]
    assert equals(question, one_row, "O") == "equals the answer of the next head"
    assert equals(question, 2 * right, "O") is None
    assert equals(question, np.zeros_like(right), "O") is None


def test_a_budget_as_wide_as_the_mistake_fits_nothing():
    """Noise within a budget that would take in the mistake as well."""
    answer = np.ones((4, 4))
    mistake, got = answer + 1.0, answer + 1.5
    found = recognised("Y", ("row", "column"), got, answer, np.full((4, 4), 1.0), got > 0, [("it", {"Y": mistake})])
    assert found is None


def test_paged_sequences_and_the_table():
    problem = PagedProblem(lengths=(17, 33), heads=2, kv_heads=2, head_dim=4, page_size=16)
    question = Question.draw(problem, seed=1)
    fewer = dataclasses.replace(problem, lengths=(16, 32), pages=problem.pool_pages, table_len=3)
    paged = operation_named("paged-attention")
    assert equals(question, paged.answer(fewer, question.inputs)["O"], "O") == "equals the answer without the last key"
    alike = dataclasses.replace(problem, lengths=(33, 33), pages=None)
    question = Question.draw(alike, seed=1)
    swapped = {**question.inputs, "table": question.inputs["table"][::-1]}
    got = paged.answer(alike, swapped)["O"]
    assert equals(question, got, "O") == "equals the answer with the pages of the next sequence"


TOP_LEFT = "equals the answer with the causal mask aligned top-left instead of bottom-right"


@pytest.mark.parametrize(("q_len", "kv_len"), [(7, 9), (9, 7)])
def test_a_causal_mask_that_is_aligned_top_left(q_len: int, kv_len: int):
    """With more rows than keys, the first rows see no key, so their answer is exact, and the mistaken one is not."""
    question = Question.draw(dataclasses.replace(CAUSAL, q_len=q_len, kv_len=kv_len), seed=1)
    Q, K, V = (question.inputs[name].astype(float) for name in "QKV")
    scores = question.problem.tau * Q @ K.swapaxes(-1, -2)
    weights = np.exp(scores) * np.tri(q_len, kv_len)
    got = (weights @ V / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    assert equals(question, got, "O") == TOP_LEFT


def test_keys_and_values_that_are_exchanged():
    question = Question.draw(PLAIN, seed=1)
    got = attention(PLAIN, {**question.inputs, "K": question.inputs["V"], "V": question.inputs["K"]})["O"]
    assert equals(question, got.astype(np.float32), "O") == "equals the answer with K and V exchanged"


def test_a_maximum_that_is_not_subtracted():
    """Rows whose exponentials, or sums of them, overflow in float32 are NaN. Other NaNs are something else."""
    question = Question.draw(PLAIN, seed=1)
    inputs = {**question.inputs, "Q": question.inputs["Q"] * np.float32(40)}
    question = Question.pose(PLAIN, inputs)
    K, V = (np.repeat(inputs[name], 2, axis=1) for name in "KV")
    with np.errstate(all="ignore"):
        weights = np.exp(np.float32(PLAIN.tau) * inputs["Q"] @ K.swapaxes(-1, -2))
        got = weights @ V / weights.sum(axis=-1, keepdims=True)
    overflows = ~np.isfinite(got)
    assert 0 < overflows.mean() < 1
    name = "equals the answer without subtracting the maximum, whose exponentials overflow"
    assert equals(question, got, "O") == name
    assert equals(question, np.where(overflows, question.answer["O"], np.nan).astype(np.float32), "O") is None


def test_columns_that_a_sum_leaves_out():
    question = Question.draw(SoftmaxProblem(rows=3, columns=6), seed=1)
    weights = np.exp(question.inputs["X"].astype(float))
    got = weights / weights[:, :-1].sum(axis=1, keepdims=True)
    assert equals(question, got, "Y") == "equals the answer with the last column not in the sum"


@pytest.mark.parametrize("name", operation_names())
def test_what_an_operation_knows_of_mistakes_is_about_its_own_problems(name: str):
    """Hints, mistakes and lengths of every build's plain problem: each asks its own fields alone."""
    operation = operation_named(name)
    for build in operation.builds[:2]:
        problem = build.plain_problem
        question = Question.draw(problem)
        for output, answer in question.answer.items():
            operation.hints(problem, output)
            for mistake, outputs in operation.known_mistakes(problem, question.inputs, 16):
                assert outputs[output].shape == answer.shape, mistake
