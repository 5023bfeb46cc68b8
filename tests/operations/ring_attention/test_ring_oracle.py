"""The answer is attention's; right merges of right chunks are within its budget, and wrong ones are not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from harness.execution.judging.question import Question
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Part, operation_named
from harness.operations._across_devices.oracle import ChunkAnswer, chunk_answers
from harness.operations.ring_attention.problem import RingProblem

OPERATION = operation_named("ring-attention")
NUMERICS = Numerics(
    scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
)
Outputs = Mapping[str, npt.NDArray[np.float32]]
Weights = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def problem_of(dtype: str = "float32", order: str = "zigzag", mask: str = "causal") -> RingProblem:
    return RingProblem(
        batch=2,
        heads=2,
        kv_heads=1,
        q_len=61,
        kv_len=61,
        head_dim=8,
        devices=3,
        row_order=order,
        dtype=dtype,
        mask=mask,
    )


def by_lse(lse: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of both in float32, and the logarithm of their sum."""
    m = np.maximum(lse, other)
    a, b = (np.where(each == -np.inf, np.float32(0), np.exp(each - m)) for each in (lse, other))
    total = a + b
    return a / total, b / total, m + np.log(total)


def alike(lse: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen, also = (np.where(each == -np.inf, np.float32(0), np.float32(1)) for each in (lse, other))
    return seen / (seen + also), also / (seen + also), by_lse(lse, other)[2]


def merged(problem: RingProblem, chunks: list[ChunkAnswer], weigh: Weights = by_lse) -> Outputs:
    """The chunks, rounded as a kernel stores them, merged one after the other in float32."""
    dtype = NUMPY_DTYPES[problem.dtype]
    O, lse = np.zeros(chunks[0].O.shape, np.float32), np.full(chunks[0].lse.shape, -np.inf, np.float32)
    with np.errstate(all="ignore"):
        for chunk in chunks:
            own, stored = chunk.lse.astype(np.float32), chunk.O.astype(dtype).astype(np.float32)
            a, b, total = weigh(lse, own)
            both = (own != -np.inf) & (lse != -np.inf)
            a, b = np.where(both, a, own == -np.inf), np.where(both, b, own != -np.inf)
            O = (a[..., None] * O + b[..., None] * stored).astype(np.float32)
            lse = np.where(both, total, np.maximum(lse, own)).astype(np.float32)
    return {"O": O.astype(dtype), "lse": lse}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("order", "mask"), [("zigzag", "causal"), ("striped", "causal"), ("contiguous", "causal"), ("contiguous", "none")]
)
@pytest.mark.parametrize("regime", ["normal", "hot", "overflow", "far-negative", "rising", "offset", "subnormal"])
def test_chunks_merged_in_float32_are_within_the_budget(regime: str, order: str, mask: str, dtype: str):
    problem = problem_of(dtype, order, mask)
    question = Question.draw(problem, regime, 4)
    held = question.check(merged(problem, chunk_answers(problem, question.inputs, NUMERICS)), NUMERICS)
    assert held.passed, held.reason


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_wrong_merges_are_not(dtype: str):
    problem = problem_of(dtype)
    question = Question.draw(problem, "normal", 4)
    chunks = chunk_answers(problem, question.inputs, NUMERICS)
    wrong = {
        "without lse": merged(problem, chunks, alike),
        "a chunk missing": merged(problem, chunks[1:]),
        "a chunk twice": merged(problem, [*chunks, chunks[0]]),
        "the first for the last": merged(problem, [*chunks[:-1], chunks[0]]),
    }
    for mistake, outputs in wrong.items():
        assert not question.check(outputs, NUMERICS).passed, mistake


def test_a_budget_is_not_much_wider_than_that_of_attention_in_one_piece():
    problem = problem_of("float16")
    question = Question.draw(problem, "normal", 2)
    answer = operation_named("attention").answer(problem.whole, question.inputs)
    whole = operation_named("attention").tolerance(problem.whole, question.inputs, answer, NUMERICS)
    own, in_one_piece = question.tolerance(NUMERICS)["O"].allowed, whole["O"].allowed
    assert np.median(own[in_one_piece > 0] / in_one_piece[in_one_piece > 0]) < 4


def test_one_chunk_has_the_budget_of_attention():
    problem = RingProblem(q_len=20, kv_len=20, head_dim=8, devices=1, mask="causal")
    question = Question.draw(problem)
    forward = operation_named("attention")
    expected = forward.tolerance(problem.whole, question.inputs, question.answer, NUMERICS)
    assert np.array_equal(question.tolerance(NUMERICS)["O"].allowed, expected["O"].allowed)


def test_rows_that_see_one_chunk_alone_have_its_budget():
    problem = problem_of(order="contiguous")
    question = Question.draw(problem, "needle", 1)
    (first, *_) = chunk_answers(problem, question.inputs, NUMERICS)
    rows = slice(0, len(problem.chunks[0][0].rows))
    for name in ("O", "lse"):
        own, alone = question.tolerance(NUMERICS)[name].allowed, first.tolerance[name].allowed
        np.testing.assert_allclose(own[:, :, rows], alone[:, :, rows], rtol=1e-6)


@pytest.mark.parametrize("regime", ["normal", "non-finite"])
def test_a_part_is_what_indexing_the_whole_gives(regime: str):
    problem = problem_of()
    whole = Question.draw(problem, regime, 1)
    part = Part((slice(1, 2), slice(0, 1), slice(20, 52)))
    of_part = Question.pose(problem, whole.inputs, part)
    for name in ("O", "lse"):
        one, other = of_part.tolerance(NUMERICS)[name].allowed, whole.tolerance(NUMERICS)[name].allowed[part.where]
        np.testing.assert_allclose(one, other, rtol=0.02)


def test_not_finite_answers_have_no_budget_and_what_a_chunk_leaves_open_stays_open():
    problem = problem_of()
    question = Question.draw(problem, "non-finite", 7133)
    allowed, O = question.tolerance(NUMERICS)["O"].allowed, question.answer["O"]
    assert np.isnan(allowed).any() and np.isfinite(allowed).any()
    assert not np.isfinite(allowed[~np.isfinite(O)]).any()
    open_in_a_chunk = np.zeros(O.shape, bool)
    for chunk in chunk_answers(problem, question.inputs, NUMERICS):
        open_in_a_chunk |= np.isposinf(chunk.tolerance["O"].allowed)
    assert np.isposinf(allowed[open_in_a_chunk]).all()


def test_numbers_that_are_flushed_to_zero_are_within_the_budget():
    # CuPy compiles with -ftz=true: each product of a weight and a subnormal O may become 0, and so may each O.
    problem = RingProblem(batch=3, heads=1, q_len=2, kv_len=2, head_dim=16, devices=2)
    question = Question.draw(problem, "subnormal", 0)
    chunks = chunk_answers(problem, question.inputs, NUMERICS)
    outputs = dict(merged(problem, chunks))
    smallest = np.finfo(np.float32).tiny
    products = [np.exp(chunk.lse - question.answer["lse"])[..., None] * chunk.O for chunk in chunks]
    outputs["O"] = sum(np.where(np.abs(each) < smallest, 0, each) for each in products).astype(np.float32)
    assert any((np.abs(each) < smallest).any() for each in products)
    held = question.check(outputs, NUMERICS)
    assert held.passed, held.reason


def test_known_mistakes_are_wrong_answers_with_names():
    problem = problem_of()
    question = Question.draw(problem, "normal", 3)
    found = dict(OPERATION.known_mistakes(problem, question.inputs, None))
    own = [f"the answer without the keys of device {device}" for device in range(3)]
    for name in ("the mean over devices, without their lse", *own):
        with np.errstate(all="ignore"):
            apart = np.abs(found[name]["O"] - question.answer["O"]) > question.tolerance(NUMERICS)["O"].allowed
        assert apart.any(), name
    assert len(list(itertools.islice(found, 5))) == 5
