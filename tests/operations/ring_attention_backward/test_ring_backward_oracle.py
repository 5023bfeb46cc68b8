"""The answer is that of the whole sequence; right sums of right parts are within its budget, and wrong ones are not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Part, operation_named
from harness.operations._across_devices.order import ORDERS
from harness.operations.ring_attention_backward.oracle import OF_KEYS, ChunkGradients, chunk_gradients
from harness.operations.ring_attention_backward.problem import RingBackwardProblem

OPERATION, BACKWARD = (operation_named(name) for name in ("ring-attention-backward", "attention-backward"))
NUMERICS = Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest")
DTYPES = ("float32", "float16", "bfloat16")


def problem_of(dtype: str = "float16", order: str = "zigzag", mask: str = "causal") -> RingBackwardProblem:
    sizes = {"batch": 2, "heads": 2, "kv_heads": 1, "q_len": 37, "kv_len": 37, "head_dim": 8}
    return RingBackwardProblem(**sizes, devices=3, row_order=order, dtype=dtype, mask=mask)


def summed(problem: RingBackwardProblem, question: Question, chunks: list[ChunkGradients]) -> Mapping[str, np.ndarray]:
    """dK and dV of chunks, each rounded as a kernel stores it, added in float32; dQ as it is."""
    dtype = NUMPY_DTYPES[problem.dtype]
    found = {"dQ": question.answer["dQ"].astype(dtype)}
    for name in OF_KEYS:
        total = np.zeros(chunks[0].gradients[name].shape, np.float32)
        for chunk in chunks:
            total += chunk.gradients[name].astype(dtype).astype(np.float32)
        found[name] = total.astype(dtype)
    return found


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mask", ["none", "causal"])
def test_parts_of_all_chunks_add_up_to_the_gradients_of_the_sequence(order: str, mask: str):
    problem = problem_of("float32", order, mask)
    question = Question.draw(problem, "normal", 2)
    whole = BACKWARD.answer(problem.whole, question.inputs)
    chunks = chunk_gradients(problem, question.inputs, NUMERICS)
    assert len(chunks) == (6 if order == "zigzag" else 3)
    for name in OF_KEYS:
        np.testing.assert_allclose(sum(each.gradients[name] for each in chunks), whole[name], rtol=1e-12, atol=1e-14)
        assert np.array_equal(question.answer[name], whole[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("regime", ["normal", "hot", "one-gradient", "large-gradient", "subnormal", "offset"])
def test_parts_rounded_and_summed_in_float32_are_within_the_budget(regime: str, dtype: str):
    problem = problem_of(dtype)
    question = Question.draw(problem, regime, 4)
    held = question.check(summed(problem, question, chunk_gradients(problem, question.inputs, NUMERICS)), NUMERICS)
    assert held.passed, held.reason


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_sums_are_not(dtype: str):
    problem = problem_of(dtype)
    question = Question.draw(problem, "normal", 4)
    chunks = chunk_gradients(problem, question.inputs, NUMERICS)
    for mistake, parts in {"a part missing": chunks[1:], "a part twice": [*chunks, chunks[0]]}.items():
        assert not question.check(summed(problem, question, parts), NUMERICS).passed, mistake


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_roundings_of_parts_are_in_the_budget_and_no_more(dtype: str):
    problem = problem_of(dtype, mask="none")
    question = Question.draw(problem, "normal", 4)
    chunks = chunk_gradients(problem, question.inputs, NUMERICS)
    whole = BACKWARD.tolerance(problem.whole, question.inputs, question.answer, NUMERICS)
    own = question.tolerance(NUMERICS)
    for name in OF_KEYS:
        size = sum(np.abs(each.gradients[name]) for each in chunks)
        further, u = own[name].allowed - whole[name].allowed, float(np.finfo(np.float32).eps) / 2
        assert u < np.median(further / size) < 2.0 ** -(10 if dtype == "float16" else 7)
    assert np.array_equal(own["dQ"].allowed, whole["dQ"].allowed)
    # In float32, the order of sums is all that is added.
    problem = problem_of("float32", mask="none")
    question = Question.draw(problem, "normal", 4)
    whole = BACKWARD.tolerance(problem.whole, question.inputs, question.answer, NUMERICS)
    assert np.array_equal(question.tolerance(NUMERICS)["dK"].allowed, whole["dK"].allowed)


def test_keys_that_one_chunk_sees_have_no_further_rounding():
    problem = problem_of("float16", "contiguous")
    question = Question.draw(problem, "normal", 1)
    whole = BACKWARD.tolerance(problem.whole, question.inputs, question.answer, NUMERICS)
    last = slice(problem.chunks[-1][0].rows.start, None)
    own = question.tolerance(NUMERICS)["dV"].allowed
    assert np.array_equal(own[:, :, last], whole["dV"].allowed[:, :, last])
    assert (own[:, :, : last.start] > whole["dV"].allowed[:, :, : last.start]).all()


@pytest.mark.parametrize("regime", ["normal", "non-finite-gradient"])
def test_a_part_is_what_indexing_the_whole_gives(regime: str):
    problem = problem_of()
    whole = Question.draw(problem, regime, 1)
    rows, keys = (slice(1, 2), slice(0, 1), slice(11, 27)), (slice(1, 2), slice(0, 1), slice(7, 23))
    of_part = Question.pose(problem, whole.inputs, Part(rows, others=dict.fromkeys(OF_KEYS, keys)))
    for name, where in (("dQ", rows), ("dK", keys), ("dV", keys)):
        np.testing.assert_allclose(of_part.answer[name], whole.answer[name][where], rtol=1e-12, atol=1e-14)
        one, other = of_part.tolerance(NUMERICS)[name].allowed, whole.tolerance(NUMERICS)[name].allowed[where]
        np.testing.assert_allclose(one, other, rtol=0.02)


def test_known_mistakes_are_wrong_answers_with_names():
    problem = problem_of("float32")
    question = Question.draw(problem, "normal", 3)
    found = dict(OPERATION.known_mistakes(problem, question.inputs, None))
    for device in range(3):
        wrong = found[f"dK and dV without the rows of device {device}"]
        assert (np.abs(wrong["dK"] - question.answer["dK"]) > question.tolerance(NUMERICS)["dK"].allowed).any()
        assert np.array_equal(wrong["dQ"], question.answer["dQ"])
    assert not dict(OPERATION.known_mistakes(RingBackwardProblem(devices=1), question.inputs, None))
