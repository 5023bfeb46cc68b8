"""A softmax problem: its fields, its tensors, what it costs at least."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from harness.model.cases.case import Case, Edit
from harness.model.operation import WHOLE, operation_named
from harness.operations.softmax.operation import ELEMENT_FLOPS, choose_parts
from harness.operations.softmax.problem import SoftmaxProblem
from harness.support.errors import ProblemError, UsageError

OPERATION = operation_named("softmax")


def test_tensors_and_costs():
    problem = SoftmaxProblem(rows=3, columns=5, dtype="float16")
    assert [(t.name, t.shape, t.axes) for t in problem.tensors] == [
        ("X", (3, 5), ("row", "column")),
        ("Y", (3, 5), ("row", "column")),
    ]
    assert problem.compulsory_read_bytes == problem.compulsory_write_bytes == 30
    assert problem.flops == 3 * 15
    assert problem.headline == "softmax, 3 rows x 5 columns, float16"
    assert SoftmaxProblem.from_fields(problem.to_short_fields()) == problem


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"rows": 0}, "rows is 0; it has to be a whole number of at least 1"),
        ({"columns": 2.5}, "columns is 2.5"),
        ({"rows": True}, "rows is True"),
        ({"dtype": "float64"}, "choose one of float32, float16, bfloat16"),
    ],
)
def test_what_makes_no_sense_is_said(fields: dict[str, object], reason: str):
    with pytest.raises(ProblemError, match=reason):
        SoftmaxProblem(**fields)


def test_a_case_goes_through_json():
    case = Case(SoftmaxProblem(rows=2, columns=3), "rising", 5, (Edit("X", (1, 2), float("nan")),), check="shift")
    again = Case.from_json(case.to_json())
    assert (again.problem, again.regime, again.seed, again.check) == (case.problem, "rising", 5, "shift")
    assert again.inputs()["X"].tobytes() == case.inputs()["X"].tobytes()


def test_parts_of_a_large_problem_reach_from_the_first_row_to_the_last():
    problem = SoftmaxProblem(rows=1000, columns=100)
    assert choose_parts(problem, 1000 * 100 * ELEMENT_FLOPS) == (WHOLE,)
    parts = choose_parts(problem, 240 * 100 * ELEMENT_FLOPS)
    rows = [part.where[0] for part in parts]
    assert rows[0].start == 0 and rows[-1].stop == 1000
    assert all(one.stop <= other.start for one, other in itertools.pairwise(rows))
    assert sum(each.stop - each.start for each in rows) == 240
    assert choose_parts(problem, 1.0)[0].where == (slice(0, 1),)


def test_only_what_ends_soon_may_be_swept():
    OPERATION.require_sweepable(SoftmaxProblem(rows=2**22))
    with pytest.raises(UsageError, match="the most is 4,194,304 either way"):
        OPERATION.require_sweepable(SoftmaxProblem(columns=2**22 + 1))


def test_arrays_pose_a_problem():
    problem = OPERATION.problem_of_arrays({"X": np.empty((4, 7))}, "bfloat16", {})
    assert problem == SoftmaxProblem(rows=4, columns=7, dtype="bfloat16")
