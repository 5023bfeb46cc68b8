"""The answer, held against a loop that looks up each key; budgets that right kernels keep and wrong ones do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.model.cases.property import Arrays
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.paged_attention.problem import PagedProblem

OPERATION = operation_named("paged-attention")
PROBLEM = PagedProblem(
    lengths=(0, 5, 48, 100, 48), heads=6, kv_heads=3, q_len=2, head_dim=8, page_size=16, prefix=40, dtype="float32"
)
RULES = PROBLEM.with_fields(window=20, softcap=2.0, alibi=True, sinks=True)
# No keys, no rows, a whole prompt, a chunk, and a row before all keys.
PACKED = RULES.with_fields(q_lengths=(3, 0, 48, 7, 49))
IN_8_BITS = RULES.with_fields(dtype="bfloat16", kv_dtype="e4m3")
Look = Callable[[PagedProblem, Arrays, int, int], tuple[int, int]]


def looked_up(problem: PagedProblem, inputs: Arrays, sequence: int, key: int) -> tuple[int, int]:
    return int(inputs["table"][sequence, key // problem.page_size]), key % problem.page_size


def by_loops(problem: PagedProblem, inputs: Arrays, look: Look = looked_up, dtype: type = np.float64) -> Arrays:
    """Attention row by row, in `dtype`; `look` finds a key. Scales are factors on tau and on O."""
    K_scale, V_scale = (inputs.get(name, np.ones(problem.kv_heads)) for name in ("K_scale", "V_scale"))
    O, lse = np.zeros(problem.q_shape), np.full(problem.lse_shape, -np.inf)
    for entry, head, token in np.ndindex(problem.lse_shape):
        sequence, row, rows = entry, token, problem.q_len
        if problem.q_lengths is not None:
            starts = inputs["cu_seqlens_q"]
            sequence = int(np.flatnonzero(starts <= token)[-1])
            row, rows = token - int(starts[sequence]), int(starts[sequence + 1] - starts[sequence])
        own = problem.lengths[sequence] + row - rows
        seen = range(max(0, own - (own if problem.window is None else problem.window)), own + 1)
        if seen:
            at = [look(problem, inputs, sequence, key) for key in seen]
            K, V = (np.array([inputs[n][page, head // problem.group, r] for page, r in at], dtype) for n in "KV")
            tau = dtype(problem.tau) * dtype(K_scale[head // problem.group])
            scores = K @ inputs["Q"][entry, head, token].astype(dtype) * tau
            if problem.softcap is not None:
                scores = dtype(problem.softcap) * np.tanh(scores / dtype(problem.softcap))
            if problem.alibi:
                scores = scores - dtype(inputs["slopes"][head]) * (own - np.array(seen, dtype))
        else:
            scores, V = np.zeros(0, dtype), np.zeros((0, problem.head_dim), dtype)
        if problem.sinks:
            scores = np.append(scores, dtype(inputs["sinks"][head]))
            V = np.concatenate((V, np.zeros_like(V, shape=(1, problem.head_dim))))
        if len(scores) and scores.max() > -np.inf:
            weights = np.exp(scores - scores.max())
            O[entry, head, token] = (weights @ V) / weights.sum() * dtype(V_scale[head // problem.group])
            lse[entry, head, token] = scores.max() + np.log(weights.sum())
    return {"O": O, "lse": lse}


@pytest.mark.parametrize(
    "problem",
    [PROBLEM, RULES, RULES.with_fields(q_len=30, prefix=0), IN_8_BITS, PACKED],
    ids=["plain", "rules", "rows", "e4m3", "packed"],
)
@pytest.mark.parametrize("regime", ["normal", "hot", "rising", "offset", "subnormal"])
def test_the_answer_is_that_of_a_loop_over_keys(regime: str, problem: PagedProblem):
    inputs = draw_inputs(problem, regime, 3)
    answer, expected = OPERATION.answer(problem, inputs), by_loops(problem, inputs)
    for name in ("O", "lse"):
        np.testing.assert_allclose(answer[name], expected[name], rtol=1e-10, atol=1e-44)


def test_a_sequence_without_keys_and_rows_ahead_of_all_keys_give_nothing():
    problem = PagedProblem(lengths=(0, 1), heads=2, kv_heads=1, q_len=3, head_dim=4)
    answer = OPERATION.answer(problem, draw_inputs(problem))
    blind = np.array([[True, True, True], [True, True, False]])[:, None].repeat(2, axis=1)
    assert (answer["O"][blind] == 0).all() and np.isneginf(answer["lse"][blind]).all()
    assert (answer["O"][~blind] != 0).any() and np.isfinite(answer["lse"][~blind]).all()


@pytest.mark.parametrize(
    ("problem", "where"),
    [
        (PROBLEM, (slice(1, 4), slice(2, 5), slice(1, 2))),
        (PACKED, (slice(0, 1), slice(2, 5), slice(2, 53))),  # the last row of a sequence, and two of the fourth's
    ],
    ids=["plain", "packed"],
)
def test_a_part_is_what_indexing_the_whole_gives(problem: PagedProblem, where: tuple[slice, ...]):
    inputs = draw_inputs(problem, "normal", 1)
    whole = Question.pose(problem, inputs)
    part = Part(where)
    of_part = Question.pose(problem, inputs, part)
    for name in ("O", "lse"):
        np.testing.assert_allclose(of_part.answer[name], whole.answer[name][part.where], rtol=1e-12)
        one, other = of_part.tolerance()[name].allowed, whole.tolerance()[name].allowed[part.where]
        np.testing.assert_allclose(one, other, rtol=0.02)  # budgets are worked out in float32, block by block


def test_a_sink_is_the_log_sum_exp_of_a_sequence_without_keys():
    inputs = draw_inputs(RULES, "normal", 3)
    answer = OPERATION.answer(RULES, inputs)
    assert (answer["O"][0] == 0).all()
    np.testing.assert_array_equal(answer["lse"][0, :, 0], inputs["sinks"])


@pytest.mark.parametrize("problem", [PROBLEM, RULES, IN_8_BITS, PACKED], ids=["plain", "rules", "e4m3", "packed"])
@pytest.mark.parametrize("regime", list(OPERATION.regimes))
def test_a_right_kernel_in_float32_is_within_its_budget(regime: str, problem: PagedProblem):
    question = Question.draw(problem, regime, 2)
    if regime in ("non-finite",):
        outputs = {name: array.astype(np.float32) for name, array in question.answer.items()}
    else:
        outputs = by_loops(problem, question.inputs, dtype=np.float32)
    stored = {tensor.name: NUMPY_DTYPES[tensor.dtype] for tensor in problem.tensors if tensor.name in outputs}
    outputs = {name: array.astype(stored[name]) for name, array in outputs.items()}
    held = question.check(outputs, Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest"))
    assert held.passed and not held.suspicious, held.reason


def one_page_on(problem: PagedProblem, inputs: Arrays, sequence: int, key: int) -> tuple[int, int]:
    page, row = looked_up(problem, inputs, sequence, key)
    return (page + 1) % problem.pool_pages, row


def one_row_on(problem: PagedProblem, inputs: Arrays, sequence: int, key: int) -> tuple[int, int]:
    page, row = looked_up(problem, inputs, sequence, key)
    return page, (row + 1) % problem.page_size


def of_the_last_sequence(problem: PagedProblem, inputs: Arrays, sequence: int, key: int) -> tuple[int, int]:
    return looked_up(problem, inputs, problem.sequences - 1 if key < 48 else sequence, key)


@pytest.mark.parametrize("look", [one_page_on, one_row_on, of_the_last_sequence])
def test_keys_from_elsewhere_are_beyond_the_budget(look: Look):
    question = Question.draw(PROBLEM, "normal", 2)
    outputs = {n: a.astype(np.float32) for n, a in by_loops(PROBLEM, question.inputs, look).items()}
    held = question.check(outputs)
    assert not held.passed
    wrong = held.by_output["O"].wrong.any(axis=(1, 2, 3))
    # Where a sequence has no keys there is nothing to mistake; the last one has the pages of the last one.
    assert wrong.tolist() == [False, True, True, True, look is not of_the_last_sequence]


@pytest.mark.parametrize("wrong", ["heads", "K and V", "none of V"])
def test_scales_of_something_else_are_beyond_the_budget(wrong: str):
    question = Question.draw(IN_8_BITS, "normal", 2)
    K, V = (question.inputs[name] for name in ("K_scale", "V_scale"))
    given = {"heads": (np.roll(K, 1), V), "K and V": (V, K), "none of V": (K, np.ones_like(V))}[wrong]
    outputs = by_loops(IN_8_BITS, {**question.inputs, **dict(zip(("K_scale", "V_scale"), given))})
    held = question.check(
        {"O": outputs["O"].astype(NUMPY_DTYPES["bfloat16"]), "lse": outputs["lse"].astype(np.float32)}
    )
    assert not held.passed and "more than their budget" in (held.reason or "")


def test_an_output_that_is_not_zero_without_keys_fails():
    question = Question.draw(PROBLEM)
    outputs = {name: array.astype(np.float32) for name, array in question.answer.items()}
    assert question.check(outputs).passed
    outputs["O"][0, 0, 0, 0] = 1e-30
    assert not question.check(outputs).passed


def test_no_more_bytes_are_needed_than_are_compulsory():
    apart = PagedProblem(**{**PROBLEM.to_fields(), "prefix": 0, "pages": None})
    shared, alone = (OPERATION.needed_read_bytes(problem, draw_inputs(problem)) for problem in (PROBLEM, apart))
    # At least all of V where no page is shared; where some are, nothing is counted twice.
    assert 4 * 3 * 8 * sum(apart.lengths) <= alone <= apart.compulsory_read_bytes
    assert 0 < shared <= min(alone, PROBLEM.compulsory_read_bytes)
