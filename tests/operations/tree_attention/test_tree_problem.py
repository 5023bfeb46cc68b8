"""Problems of tree attention, their parts, their budget, and what campaigns meet."""

from __future__ import annotations

import random

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.model.cases.axes import NO_CHECK
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs, operation_named
from harness.operations._across_devices.cases import DEVICES
from harness.operations._across_devices.oracle import chunk_answers
from harness.operations.tree_attention.operation import CASES
from harness.operations.tree_attention.problem import TreeProblem
from harness.support.errors import ProblemError

OPERATION = operation_named("tree-attention")
BUILDS = CASES.builds_of(0)
NUMERICS = Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest", divides_last=True)


def tree(**more: object) -> TreeProblem:
    return TreeProblem(
        **{"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 7, "kv_len": 23, "head_dim": 3, "devices": 3, **more}
    )


def test_every_device_has_all_of_Q_and_some_keys():
    problem = tree(mask="causal")
    inputs, sharing = draw_inputs(problem), problem.sharing
    parts = sharing.split(inputs)
    assert {name: part.shape for name, part in parts.items()} == {
        tensor.name: tensor.shape for tensor in sharing.held.inputs
    }
    assert all(np.array_equal(parts[f"Q@{device}"], inputs["Q"]) for device in range(3))
    joined = sharing.join(parts)
    assert all(np.array_equal(joined[name], inputs[name]) for name in inputs)
    assert sharing.buffers["O"] == ("O@0",) and sharing.buffers["lse"] == ("lse@0",)


@pytest.mark.parametrize("rows", [1, 7, 23])
def test_a_block_shows_each_row_the_keys_that_it_sees(rows: int):
    problem = tree(q_len=rows, mask="causal")
    seen = []
    for (keys,) in problem.chunks:
        block = problem.block(keys)
        i, j = np.arange(block.q_len)[:, None], np.arange(block.kv_len)
        seen.append(np.broadcast_to(block.mask.visible(i, j, block.q_len, block.kv_len), (rows, block.kv_len)))
    assert np.array_equal(np.concatenate(seen, axis=1), problem.whole.seen())


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_answers_of_chunks_add_up_to_that_of_the_whole(mask: str):
    problem = tree(q_len=23, mask=mask)
    question = Question.draw(problem, "normal", 2)
    chunks = chunk_answers(problem, question.inputs, NUMERICS)
    lse = np.logaddexp.reduce([chunk.lse for chunk in chunks])
    np.testing.assert_allclose(lse, question.answer["lse"], rtol=1e-12)
    O = sum(np.exp(chunk.lse - lse)[..., None] * chunk.O for chunk in chunks)
    np.testing.assert_allclose(O, question.answer["O"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"devices": 0}, "devices is 0"),
        ({"kv_len": 2}, "kv_len is 2; 3 devices need at least a row each"),
        ({"mask": "window:3"}, "tree attention takes none or causal"),
        ({"q_len": 24, "mask": "causal"}, "some rows would see no key"),
    ],
)
def test_what_is_no_problem_says_why(fields: dict[str, object], words: str):
    with pytest.raises(ProblemError, match=words):
        tree(**fields)


def test_a_problem_is_made_of_its_fields_again():
    problem = tree(mask="causal", dtype="float16", scale=0.5)
    assert TreeProblem.from_fields(problem.to_fields()) == problem
    assert TreeProblem.from_fields(problem.to_short_fields()) == problem
    assert problem.headline.startswith("tree attention over 3 devices, ")


def test_campaigns_meet_every_number_of_devices_and_keep_lengths_apart():
    axes, rng = CASES.axes(None, (), ("causal", "window")), random.Random(3)
    values = {axis: [value.name for value in of_axis] for axis, of_axis in axes.values.items()}
    problems: list[TreeProblem] = []
    while len(problems) < 120:
        choice = {axis: rng.choice(names) for axis, names in values.items()}
        pairs = list(choice.items())
        if all(axes.meet(one, other) for place, one in enumerate(pairs) for other in pairs[place + 1 :]):
            problems.append(axes.case(BUILDS[0], choice, rng, brief=True).problem)
    assert {problem.devices for problem in problems} == set(range(1, 9))
    assert {problem.mask.text for problem in problems} == {"none", "causal"}
    assert {np.sign(problem.q_len - problem.kv_len) for problem in problems} == {-1, 0, 1}
    assert {problem.kv_len % problem.devices > 0 for problem in problems} == {True, False}


def test_a_failing_case_is_tried_on_fewer_devices_and_shorter():
    build, builds = BUILDS[0], Builds(BUILDS[:1])
    case = Case(TreeProblem(**{**build.plain_problem.own_fields, "q_len": 40, "kv_len": 70, "devices": 5}))
    smaller = [
        each for each in OPERATION.simpler(case, builds) if OPERATION.size(each, builds) < OPERATION.size(case, builds)
    ]
    assert {each.problem.devices for each in smaller} >= {1, 2, 3, 4, 5}
    assert min(each.problem.kv_len for each in smaller) < 70 and min(each.problem.q_len for each in smaller) < 40
    assert {axis.name: axis.at(81).problem for axis in OPERATION.probed_axes(case, builds)}["kv_len"].kv_len == 81
    axes = CASES.axes(None, (), ("causal",))
    plain = {axis: values[0].name for axis, values in axes.values.items()}
    assert plain["property"] == NO_CHECK and DEVICES in plain
    words = OPERATION.peculiarities(case, (1, 1), ())
    assert words[0] == "5 devices" and not any("order" in word for word in words[:2])
