"""Rows of V and O of another length than those of Q and K: shapes, answers, bounds, and what campaigns draw."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from harness.execution.judging.question import Question
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import draw_inputs, operation_named
from harness.operations.attention.cases.build import FIRST, fitted, other_width
from harness.operations.attention.cases.simplification import simpler
from harness.operations.attention.cases.strategies import problems
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.layout import DRAWN, parse_layout
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.mistakes.known_mistakes import known_mistakes
from harness.operations.attention.needed_bytes import io_bound, needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.attention_backward.problem import BackwardProblem
from harness.support.errors import ProblemError, UsageError

ABSORBED = {"heads": 4, "kv_heads": 1, "q_len": 1, "kv_len": 9, "head_dim": 18, "v_head_dim": 16}
"""As decoding with DeepSeek-V2's latent attention has it, but small: 576 and 512 elements, divided by 32."""


def test_v_and_o_have_their_own_length():
    problem = Problem(batch=2, heads=6, kv_heads=2, q_len=5, kv_len=7, head_dim=3, v_head_dim=4, dtype="float16")
    shapes = {tensor.name: tensor.shape for tensor in problem.tensors}
    assert shapes == {"Q": (2, 6, 5, 3), "K": (2, 2, 7, 3), "V": (2, 2, 7, 4), "O": (2, 6, 5, 4), "lse": (2, 6, 5)}
    assert problem.compulsory_read_bytes == 2 * (2 * 6 * 5 * 3 + 2 * 2 * 7 * (3 + 4))
    assert problem.compulsory_write_bytes == 2 * 2 * 6 * 5 * 4
    assert problem.tau == 1 / math.sqrt(3)  # of Q and K
    assert problem.flops == 2 * (3 + 4) * 2 * 6 * 5 * 7
    assert "5 x 7, head_dim 3, v_head_dim 4, float16" in problem.headline


def test_an_equal_length_is_none():
    plain, same = Problem(head_dim=64), Problem(head_dim=64, v_head_dim=64)
    assert same == plain and same.v_head_dim is None and same.v_width == 64 and same.features == ()
    assert "v_head_dim" not in plain.to_fields() and plain.build_key == ("float32", 64)
    assert replace(plain, head_dim=32).v_width == 32  # as a sweep does
    assert "v_head_dim" not in plain.headline


def test_it_is_written_as_it_is_read():
    problem = Problem(head_dim=192, v_head_dim=128)
    for fields in (problem.to_fields(), problem.to_short_fields()):
        assert fields["v_head_dim"] == 128
        assert Problem.from_fields(json.loads(json.dumps(fields))) == problem
    assert problem.features == ("v_head_dim",)
    others = (replace(problem, v_head_dim=64), replace(problem, v_head_dim=None))
    for other in others:
        assert other.build_key != problem.build_key and other.size_class != problem.size_class


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3", 2**31])
def test_it_is_whole_and_positive(value: object):
    with pytest.raises(ProblemError, match="v_head_dim"):
        Problem(v_head_dim=value)  # type: ignore[arg-type]


def test_what_cannot_have_it_is_refused_in_one_line():
    with pytest.raises(ProblemError, match=r"layout qkv: .* so v_head_dim \(128\) has to be head_dim \(64\)") as packed:
        Problem(head_dim=64, v_head_dim=128, layout="qkv")  # type: ignore[arg-type]
    assert "\n" not in str(packed.value)
    with pytest.raises(UsageError, match="leave out --v-head-dim"):
        operation_named("attention").ordered_sums(Problem(v_head_dim=8), lambda problem, inputs: {}, {})


def test_gradients_are_as_long_as_their_tensors_and_three_products_have_rows_of_q():
    problem = BackwardProblem(heads=2, q_len=3, kv_len=5, head_dim=4, v_head_dim=6)
    shapes = {tensor.name: tensor.shape for tensor in problem.tensors}
    assert all(shapes[name] == shapes[f"d{name}"] for name in "QKVO")
    assert shapes["V"][-1] == shapes["O"][-1] == 6
    assert problem.flops == 2 * (2 * 3 * 5) * (3 * 4 + 2 * 6)


@pytest.mark.parametrize(
    ("layout", "strides"),
    [("bhsd", (35, 5, 1)), ("bshd", (5, 15, 1)), ("bhsd+2", (49, 7, 1)), ("bshd+3", (8, 24, 1))],
)
def test_rows_of_v_and_o_lie_as_far_apart_as_they_are_long(layout: str, strides: tuple[int, ...]):
    problem = Problem(heads=3, q_len=7, kv_len=7, head_dim=4, v_head_dim=5, layout=layout)  # type: ignore[arg-type]
    assert problem.tensor("V").strides[1:] == problem.tensor("O").strides[1:] == strides


def test_rows_are_aligned_to_what_all_of_them_keep():
    assert Problem(head_dim=64, v_head_dim=6, dtype="float16").row_alignment_bytes == 4
    assert Problem(head_dim=64, v_head_dim=6, layout="bshd+2").row_alignment_bytes == 8  # type: ignore[arg-type]


def test_the_answer_is_that_of_parts_of_v():
    """Columns of V are independent: those of O are the answers for V in two parts, each of another length."""
    whole = Problem(**ABSORBED)
    inputs = draw_inputs(whole)
    answer = attention(whole, inputs)
    columns = slice(0, 5), slice(5, 16)
    parts = [
        attention(replace(whole, v_head_dim=part.stop - part.start), {**inputs, "V": inputs["V"][..., part]})
        for part in columns
    ]
    assert np.allclose(answer["O"], np.concatenate([part["O"] for part in parts], axis=-1), rtol=1e-13)
    assert np.array_equal(answer["lse"], parts[0]["lse"])
    # By hand, with the scale of Q and K.
    q, k, v = (inputs[name].astype(float)[0] for name in "QKV")
    scores = q @ k[0].T / math.sqrt(18)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert np.allclose(answer["O"][0], weights @ v[0], rtol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_draws_v_of_its_length_and_budgets_it(regime: str):
    problem = Problem(**{**ABSORBED, "q_len": 3, "mask": "causal"})
    question = Question.draw(problem, regime)
    assert question.inputs["V"].shape == (1, 1, 9, 16)
    answer = question.answer
    rounded = {name: answer[name].astype(np.float32) for name in ("O", "lse")}
    assert question.check(rounded).passed
    if np.isfinite(answer["O"]).all():
        wrong = np.where(np.arange(16) == 15, 2 * rounded["O"] + 1, rounded["O"])
        assert not question.check({**rounded, "O": wrong}).passed


def test_needed_bytes_are_those_of_every_element():
    problem = Problem(heads=1, q_len=4, kv_len=6, head_dim=3, v_head_dim=5)
    inputs = draw_inputs(problem, "uniform")
    assert needed_read_bytes(problem, inputs) == problem.compulsory_read_bytes
    narrow, wide = Problem(head_dim=16), Problem(head_dim=16, v_head_dim=64)
    assert io_bound(wide, 4096) == io_bound(narrow, 4096)


def test_the_scale_of_the_other_length_is_recognised():
    problem = Problem(**ABSORBED)
    inputs = draw_inputs(problem)
    mistakes = dict(known_mistakes(problem, inputs))
    assert "the answer with K and V exchanged" not in mistakes
    mistaken = mistakes["the answer with a scale of 1 / sqrt(v_head_dim)"]
    assert np.array_equal(mistaken["O"], attention(replace(problem, scale=1 / 4), inputs)["O"])
    plain = Problem(heads=1, q_len=2, kv_len=3, head_dim=2)
    assert not any("v_head_dim" in name for name, _ in known_mistakes(plain, draw_inputs(plain)))


def test_arrays_tell_it():
    arrays = {"Q": np.zeros((1, 2, 3, 8)), "K": np.zeros((1, 2, 5, 8)), "V": np.zeros((1, 2, 5, 6))}
    make = operation_named("attention").problem_of_arrays
    assert make is not None
    problem = make(arrays, "float32", {})
    assert (problem.head_dim, problem.v_head_dim) == (8, 6)
    with pytest.raises(UsageError, match="have to be the same, except for the elements per row"):
        make({**arrays, "V": np.zeros((1, 2, 4, 6))}, "float32", {})


@pytest.mark.parametrize("head_dim", [1, 2, 7, 8, 20, 33, 64, 128, 192])
def test_other_lengths_are_aligned_as_head_dim_is(head_dim: int):
    for is_wider in (True, False):
        width = other_width(head_dim, is_wider)
        assert width > 0 and width != head_dim and (head_dim % 8 or width % 8 == 0)
        assert (width > head_dim) is is_wider or head_dim in (1, 8)  # nothing is narrower


def test_campaigns_draw_it_after_all_else():
    builds = [FIRST.with_features(("softcap", "sinks", "layout", "v_head_dim"), place) for place in range(8)]
    assert [place for place, build in enumerate(builds) if build.v_head_dim is not None] == [4, 5, 7]
    assert [builds[place].v_head_dim for place in (4, 5, 7)] == [32, 8, 32]
    assert builds[4].features == ("v_head_dim",) and {"layout", "v_head_dim"} <= set(builds[5].features)
    assert FIRST.places_of_features(("softcap", "sinks", "v_head_dim")) == 6
    without = [FIRST.with_features(("softcap", "sinks", "layout"), place).features for place in range(8)]
    assert not any("v_head_dim" in features for features in without)


WIDER = FIRST.having(("sinks", "v_head_dim"))


@settings(max_examples=20, deadline=None)
@given(problems((WIDER,)))
def test_drawn_problems_have_the_length_of_their_build(problem: Problem):
    assert (problem.head_dim, problem.v_head_dim) == (16, 32)
    assert Builds((FIRST, WIDER)).of(Case(problem, tile=WIDER.tile)) == WIDER


def test_a_case_is_simplified_to_equal_lengths():
    case = Case(Problem(heads=1, q_len=3, kv_len=4, head_dim=16, v_head_dim=32, sinks=True))
    rebuilt = FIRST.having((), is_wider=True)
    simplified = [each.problem for each in simpler(case, Builds((rebuilt, replace(WIDER, dtype="bfloat16"), WIDER)))]
    assert any(problem.v_head_dim is None and problem.sinks for problem in simplified)
    # In the plainest build with the features that it needs, the length is in proportion.
    assert {problem.v_head_dim for problem in simplified} == {None, 32}


@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_no_packed_layout_is_drawn_with_it(layout: object):
    problem = fitted(
        batch=1, heads=2, kv_heads=2, q_len=9, kv_len=7, head_dim=8, v_head_dim=16, mask=parse_mask("none"),
        layout=layout,
    )  # fmt: skip
    assert problem.layout == parse_layout(str(layout).replace("qkv", "bshd"))
    assert (problem.q_len, problem.kv_len) == (9, 7)
