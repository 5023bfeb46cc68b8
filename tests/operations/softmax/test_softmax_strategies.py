"""What campaigns of softmax draw, and how cases are made smaller."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import HealthCheck, find, given, settings

from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.operation import operation_named
from harness.operations.softmax.cases import BUILDS
from harness.operations.softmax.inputs import BEYOND_EXP
from harness.operations.softmax.problem import SoftmaxProblem
from harness.operations.softmax.strategies import MOST_TILES, cases, problems
from harness.studies.fuzz.shrinking.simplification import simplify

OPERATION = operation_named("softmax")
ALL = Builds(BUILDS)
QUICK = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@given(problem=problems(most_tiles=10))
@QUICK
def test_problems_are_as_large_as_asked(problem: SoftmaxProblem):
    rows, runs = BUILDS[0].tiles(problem)
    assert rows * runs <= 11  # one column beyond the last run is an edge, too


def test_edges_long_rows_and_every_dtype_are_drawn():
    for columns in (1, 31, 32, 33, 127, 128, 129, 5119, 5120, 5121):
        found = find(
            problems(), lambda problem, n=columns: problem.columns == n, settings=settings(QUICK, max_examples=20_000)
        )
        rows, runs = BUILDS[0].tiles(found)
        assert rows * runs <= MOST_TILES
    drawn = {find(problems(), lambda p, d=d: p.dtype == d, settings=QUICK).dtype for d in ("float16", "bfloat16")}
    assert drawn == {"float16", "bfloat16"}


@given(case=cases(checks=("shift",)))
@QUICK
def test_outside_the_regimes_that_are_beyond_it_exp_stays_within_float32(case: Case):
    if case.regime in BEYOND_EXP:
        return
    X = case.inputs()["X"].astype(np.float32)
    rows = X[~np.isnan(X).any(axis=1) & ~np.isneginf(X).all(axis=1)]
    sums = np.exp(rows).sum(axis=1, dtype=np.float32)
    assert np.isfinite(sums).all() and (sums > 0).all()


def test_a_failure_is_made_as_small_as_it_can_be():
    start = Case(
        SoftmaxProblem(rows=7, columns=700, dtype="float16"),
        "hot",
        99,
        (Edit("X", (6, 650), 1.0), Edit("X", (0, 0), math.inf)),
        check="shift",
    )

    def fails(case: Case) -> bool:
        return case.problem.columns > 128 and case.problem.rows > 1

    smallest = simplify(start, fails, ALL)
    assert smallest == Case(SoftmaxProblem(rows=2, columns=129))
    assert OPERATION.peculiarities(smallest, (2, 2)) == ["2 rows", "129 columns"]
    larger = OPERATION.enlarged(smallest, ALL)
    assert fails(larger) and larger.problem.rows >= 4 and larger.problem.columns > 2 * 128


def test_edits_outside_of_a_smaller_problem_are_dropped():
    case = Case(SoftmaxProblem(rows=2, columns=40), edits=(Edit("X", (1, 39), 1.0),))
    for simpler in OPERATION.simpler(case, ALL):
        simpler.inputs()  # an edit beyond the end would raise
