"""Appending: the answer held against loops, inputs, problems, the user's tables, cases."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from harness.execution.judging.question import Question
from harness.model.array_types import Arrays
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import draw_inputs, operation_named
from harness.operations.kv_append.cases import builds_of
from harness.operations.kv_append.problem import AppendProblem
from harness.support.errors import ProblemError, UsageError

OPERATION = operation_named("kv-append")
PROBLEM = AppendProblem(
    lengths=(0, 5, 48, 100, 40, 17), new_lengths=(0, 5, 0, 36, 8, 1), kv_heads=2, head_dim=4, dtype="float32", prefix=36
)


def by_loops(problem: AppendProblem, inputs: Arrays) -> Arrays:
    """K and V after the append, row by row."""
    found = {name: inputs[name].copy() for name in "KV"}
    token = 0
    for sequence, (length, new) in enumerate(zip(problem.lengths, problem.new_lengths)):
        for key in range(length - new, length):
            page = inputs["table"][sequence, key // problem.page_size]
            for head in range(problem.kv_heads):
                for name in "KV":
                    found[name][page, head, key % problem.page_size] = inputs[f"{name}_new"][token, head]
            token += 1
    assert token == len(inputs["K_new"])
    return found


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("regime", list(OPERATION.regimes))
def test_the_answer_is_that_of_loops_bit_for_bit(regime: str, dtype: str):
    problem = dataclasses.replace(PROBLEM, dtype=dtype)
    inputs = draw_inputs(problem, regime, 3)
    expected, question = by_loops(problem, inputs), Question.pose(problem, inputs)
    for name, output in question.exact_outputs.items():
        assert output.array.tobytes() == expected[name].tobytes()
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(question.answer[name], expected[name].astype(np.float64))
    assert question.check(expected).passed
    assert question.needed_bytes.write_bytes <= problem.compulsory_write_bytes


def changed(name: str, index: tuple[int, ...], bits: int) -> str | None:
    """What is said of the right answer with one element changed."""
    inputs = draw_inputs(PROBLEM, "normal", 3)
    outputs = by_loops(PROBLEM, inputs)
    outputs[name].view(np.uint32)[index] = bits
    return Question.pose(PROBLEM, inputs).check(outputs).reason


def slot(sequence: int, key: int) -> tuple[int, int, int, int]:
    page = draw_inputs(PROBLEM, "normal", 3)["table"][sequence, key // PROBLEM.page_size]
    return int(page), 1, key % PROBLEM.page_size, 2


def test_a_failure_names_the_key_that_was_overwritten_and_the_one_that_was_not_written():
    overwritten = changed("V", slot(3, 63), 0)
    assert overwritten is not None and "1 of " in overwritten
    assert "elements of V that have to stay as they are were overwritten" in overwritten
    assert "(key 63 of sequence 3)" in overwritten
    assert "(key 3 of sequences 2, 3, 4 and 1 more)" in (changed("K", slot(3, 3), 0) or "")
    assert "were written with another value" in (changed("K", slot(3, 64), 0) or "")
    inputs = draw_inputs(PROBLEM, "normal", 3)
    outputs = by_loops(PROBLEM, inputs)
    outputs["K"][slot(4, 39)] = inputs["K"][slot(4, 39)]
    reason = Question.pose(PROBLEM, inputs).check(outputs).reason
    assert reason is not None and "were not written" in reason and "(new key 39 of sequence 4)" in reason


def test_rows_that_are_no_keys_stay_too_and_zeros_have_a_sign():
    inputs = draw_inputs(PROBLEM, "normal", 3)
    inputs["K"][slot(1, 15)] = 0.0  # behind the last key of sequence 1
    outputs = by_loops(PROBLEM, inputs)
    outputs["K"][slot(1, 15)] = -0.0
    assert "(no key)" in (Question.pose(PROBLEM, inputs).check(outputs).reason or "")


def test_shared_pages_have_no_new_keys():
    # The prefix of 36 keys has two whole pages. Sequence 1 has no key, and 5 one page, before the append.
    assert PROBLEM.old_lengths == (0, 0, 48, 64, 32, 16) and PROBLEM.shared_pages == (0, 0, 2, 2, 2, 1)
    table = draw_inputs(PROBLEM)["table"]
    assert (table[2, :2] == table[3, :2]).all() and (table[2, :2] == table[4, :2]).all()
    appended = [
        table[b, old // 16 : -(-length // 16)]
        for b, (old, length) in enumerate(zip(PROBLEM.old_lengths, PROBLEM.lengths))
    ]
    written = np.concatenate([pages for pages, new in zip(appended, PROBLEM.new_lengths) if new])
    assert len(set(written.tolist())) == len(written) and not set(written.tolist()) & set(table[2, :2].tolist())


def test_bytes_are_those_of_the_new_rows():
    tokens, row = 50, 2 * 4 * 4
    assert PROBLEM.compulsory_write_bytes == 2 * tokens * row
    pages = 1 + 3 + 1 + 1  # of keys 0 to 4, 64 to 99, 32 to 39 and 16
    assert PROBLEM.compulsory_read_bytes == 2 * tokens * row + 4 * (7 + 6 + pages)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"new_lengths": (18,)}, "new_lengths has 18 for sequence 0; .* which is 17"),
        ({"new_lengths": (1, 2)}, "name one number, or one for each of 3 lengths"),
        ({"new_lengths": (1, -2, 3)}, "new_lengths has -2"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"page_size": 40}, "page_size is 40"),
        ({"pages": 3}, "pages is 3; the sequences are in"),
    ],
)
def test_invalid_problems_say_why(fields: dict[str, Any], message: str):
    with pytest.raises(ProblemError, match=message):
        AppendProblem(**fields)


def test_problems_survive_json_and_arrays():
    assert AppendProblem.from_fields(PROBLEM.to_fields()) == PROBLEM
    assert AppendProblem.from_fields(PROBLEM.to_short_fields()) == PROBLEM
    assert OPERATION.problem_of_arrays is not None
    inputs = draw_inputs(PROBLEM)
    found = OPERATION.problem_of_arrays(inputs, "float32", {})
    assert (found.lengths, found.new_lengths, found.shared_pages) == (
        PROBLEM.lengths, PROBLEM.new_lengths, PROBLEM.shared_pages,
    )  # fmt: skip
    assert found.kv_shape == PROBLEM.kv_shape and found.pages_in_use == PROBLEM.pages_in_use


def _shares(inputs: dict[str, np.ndarray]) -> None:
    inputs["table"][3, 6] = inputs["table"][4, 2]  # both append to it


def _appends_to_the_prefix(inputs: dict[str, np.ndarray]) -> None:
    inputs["table"][4, 2] = inputs["table"][2, 0]


def _before(inputs: dict[str, np.ndarray]) -> None:
    inputs["lengths"][1] = 4


def _too_few(inputs: dict[str, np.ndarray]) -> None:
    inputs["starts"][-1] = 49


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_shares, "sequences 3 and 4 share page .*, to which one of them appends"),
        (_appends_to_the_prefix, "share page .*, to which one of them appends"),
        (_before, "sequence 1 has length 4 and 5 new tokens; lengths have to count new tokens"),
        (_too_few, "starts has to go up from 0 to the number of new tokens, which is 50"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(change: Any, message: str):
    inputs = draw_inputs(PROBLEM)
    change(inputs)
    assert OPERATION.problem_of_arrays is not None
    with pytest.raises(UsageError, match=message):
        OPERATION.problem_of_arrays(inputs, "float32", {})


def test_mistakes_have_other_answers():
    inputs = draw_inputs(PROBLEM, "normal", 3)
    right = by_loops(PROBLEM, inputs)
    found = dict(OPERATION.known_mistakes(PROBLEM, inputs, None))
    assert len(found) == 6
    assert all(not np.array_equal(outputs["K"], right["K"]) for outputs in found.values())


@pytest.mark.parametrize("seed", [0, 4])
def test_cases_are_of_their_builds_and_become_smaller(seed: int):
    axes, rng, builds = OPERATION.axes(None, ["determinism"], ()), random.Random(seed), Builds(builds_of(seed))
    assert axes is not None
    met: set[str] = set()
    for build in builds_of(seed):
        for _ in range(4):
            choice = {axis: rng.choice(values).name for axis, values in axes.values.items()}
            case = axes.case(build, choice, rng)
            met |= {"empty"} if 0 in case.problem.new_lengths else set()
            met |= {"shared"} if any(case.problem.shared_pages) else set()
            assert builds.find(case) is not None and Case.from_json(case.to_json()) == case
            smaller = list(OPERATION.simpler(case, builds))
            assert all(builds.find(each) is not None for each in smaller)
            assert any(OPERATION.size(each, builds) < OPERATION.size(case, builds) for each in smaller)
            assert OPERATION.peculiarities(case, builds.of(case).tiles(case.problem), ())
            assert len(OPERATION.enlarged(case, builds).problem.lengths) >= 3
    assert met == {"empty", "shared"}
