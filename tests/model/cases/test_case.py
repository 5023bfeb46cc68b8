from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings

from harness.model.cases.case import Case, Edit
from harness.model.operation import draw_inputs
from harness.operations.attention.cases.strategies import cases
from harness.operations.attention.problem import Problem
from harness.operations.attention.properties import PROPERTIES
from harness.support.errors import ProblemError, UsageError

SMALL = Problem(heads=2, kv_heads=1, q_len=3, kv_len=5, head_dim=4)


@given(cases(checks=tuple(PROPERTIES)))
@settings(deadline=None)
def test_a_case_comes_back_from_its_own_text(case: Case):
    # repr and not ==: a NaN in an edit is not equal to itself.
    assert repr(Case.from_json(case.to_json())) == repr(case)
    assert "\n" not in case.to_json()


def test_tile_and_check_come_back_too():
    case = Case(SMALL, tile="Br=16,Bc=8", check="determinism")
    assert Case.from_json(case.to_json()) == case


def test_inputs_are_drawn_and_single_elements_overwritten():
    edits = (Edit("K", (0, 0, 4, 3), math.nan), Edit("Q", (0, 1, 2, 0), -7.5), Edit("V", (0, 0, 0, 0), 6e4))
    inputs = Case(SMALL, "rising", 3, edits).inputs()
    plain = draw_inputs(SMALL, "rising", 3)
    assert np.isnan(inputs["K"][0, 0, 4, 3])
    assert inputs["Q"][0, 1, 2, 0] == -7.5
    assert inputs["V"][0, 0, 0, 0] == 6e4
    assert [int((inputs[name] != plain[name]).sum()) for name in "QKV"] == [1, 1, 1]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Edit("O", (0, 0, 0, 0), 1.0), "array 'O'"),
        (Edit("K", (0, 1, 0, 0), 1.0), "head 1; it has 1"),
        (Edit("Q", (0, 0, 3, 0), 1.0), "row 3; it has 3"),
        (Edit("V", (0, 0, 0, -1), 1.0), "column -1"),
    ],
)
def test_an_edit_outside_of_its_array_is_told(edit: Edit, message: str):
    with pytest.raises(UsageError, match=message):
        Case(SMALL, edits=(edit,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"q_len": 3, "colour": 1}',
        '{"edits": [["K", 0]]}',
        '{"edits": [["K", 0, 0, 0, 0, "x"]]}',
        '{"seed": "a"}',
    ],
)
def test_what_is_no_case_is_told_in_one_line(text: str):
    with pytest.raises(UsageError) as told:
        Case.from_json(text)
    assert "\n" not in str(told.value)


def test_a_problem_that_is_none_says_so():
    with pytest.raises(ProblemError, match="q_len is 0"):
        Case.from_json('{"q_len": 0}')


def test_a_case_with_nan_equals_itself_however_it_came_about():
    case = Case(Problem(heads=1, q_len=2, kv_len=2, head_dim=4), edits=(Edit("V", (0, 0, 1, 2), math.nan),))
    others = [
        Case.from_json(case.to_json()),
        pickle.loads(pickle.dumps(case)),
        Case(case.problem, edits=(Edit("V", (0, 0, 1, 2), float("nan")),)),
    ]
    assert all(other == case and hash(other) == hash(case) for other in others)
