"""At which lengths a failure occurs, by a stand-in that decides by the length alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.model.cases.case import Case
from harness.model.cases.probed_axis import ProbedAxis
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.finding import TIMEOUT, WRONG_ANSWER, Answer, Finding
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried, in_runs, lengths_around, try_lengths
from harness.support.errors import ProblemError

pytestmark = pytest.mark.compiles(False)


def at(length: int) -> Case:
    return Case(Problem(heads=1, q_len=1, kv_len=length, head_dim=4))


def tried(
    answer: Callable[[int], Answer], length: int = 1, tile: int = 32, at: Callable[[int], Case] = at
) -> tuple[LengthsTried, ...]:
    axes = [ProbedAxis("kv_len", length, tile, at)]
    return try_lengths(axes, lambda case: answer(case.problem.kv_len), lambda case: None, 60.0)


def failing(fails: Callable[[int], bool]) -> Callable[[int], Answer]:
    return lambda length: Answer(Finding(WRONG_ANSWER, "wrong")) if fails(length) else Answer()


def test_what_fails_at_the_end_of_tiles_is_told_from_what_always_fails():
    (ends,) = tried(failing(lambda length: length % 32 == 1))
    assert (
        ends.text
        == "kv_len 1, 33, 65, 97 (kv_len % 32 is 1); passes at 2 to 32, 34 to 42, 63, 64, 66, 68, 72, 80, 95, 96"
    )
    (always,) = tried(failing(lambda length: True))
    assert always.text.startswith("every kv_len that was tried: 1 to 42, 63 to 65") and not always.passes


def test_the_length_from_which_on_it_fails_is_looked_for():
    (found,) = tried(failing(lambda length: length > 1024), length=1500)
    assert 1024 in found.passes and 1025 in found.fails
    assert len(found.passes) + len(found.fails) <= 48 + 16


def test_a_rule_is_reported_only_where_all_that_was_tried_keeps_to_it():
    (few,) = tried(failing(lambda length: length in (1, 33)))
    assert few.fails == (1, 33) and "%" not in few.text
    (beyond,) = tried(failing(lambda length: length > 32), length=33)
    assert beyond.text.startswith("kv_len 33") and "passes at 1 to 32" in beyond.text and "%" not in beyond.text


def test_refused_invalid_and_unknown_lengths_are_in_neither_list():
    def answer(length: int) -> Answer:
        if length == 2:
            return Answer(refusal="not two")
        return Answer(fault="an oracle's mistake") if length == 3 else Answer()

    def no_problem_of_four(length: int) -> Case:
        if length == 4:
            raise ProblemError("not four")
        return at(length)

    (found,) = tried(answer, at=no_problem_of_four)
    assert found.fails == (1,) and {2, 3, 4}.isdisjoint(found.passes) and 5 in found.passes


def test_a_length_fails_if_it_fails_with_any_draw_of_inputs():
    axes = [ProbedAxis("kv_len", 2, 32, at)]

    def answer(case: Case) -> Answer:
        return failing(lambda length: length > 1 and case.seed == 1)(case.problem.kv_len)

    (found,) = try_lengths(axes, answer, lambda case: None, 60.0)
    assert found.passes == (1,) and {2, 3, 4} <= set(found.fails)


def test_a_length_that_never_ends_is_the_last_one_and_no_time_tries_none():
    asked: list[int] = []

    def answer(length: int) -> Answer:
        asked.append(length)
        return Answer(Finding(TIMEOUT, "no answer"))

    assert tried(answer) == () and len(asked) == 1
    axes = [ProbedAxis("kv_len", 1, 32, at)]
    (none,) = try_lengths(axes, lambda case: Answer(), lambda case: None, 0.0)
    assert (none.fails, none.passes) == ((1,), ())


@pytest.mark.parametrize(("length", "tile"), [(1, 1), (1, 32), (33, 32), (129, 128)])
def test_lengths_are_few_and_begin_beside_the_failing_one(length: int, tile: int):
    lengths = lengths_around(length, tile)
    assert len(lengths) == len(set(lengths)) < 48 and min(lengths) >= 1 and length not in lengths
    assert {length + 1, length + tile} <= set(lengths[:4])


def test_runs_of_numbers():
    assert in_runs([1, 2, 4, 5, 6, 9]) == "1, 2, 4 to 6, 9"
