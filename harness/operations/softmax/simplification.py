"""A failing case made smaller along its own fields, after Hypothesis made its draws simpler."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.probed_axis import ProbedAxis
from harness.operations.softmax.build import BLOCK_COLUMNS
from harness.operations.softmax.inputs import REGIMES
from harness.operations.softmax.problem import SoftmaxProblem

FEW_COLUMNS = (1, 2, 31, 32, 33, BLOCK_COLUMNS - 1, BLOCK_COLUMNS, BLOCK_COLUMNS + 1)
FEWEST_COLUMNS = 16
"""Columns of the shortest problem."""


def size(case: Case, builds: Builds) -> tuple[object, ...]:
    """How large a case is: elements first, then the build, and how plain the inputs are."""
    p = case.problem
    rows, runs = builds.of(case).tiles(p)
    return (
        rows * runs,
        p.rows,
        p.columns,
        len(case.edits),
        case.check is not None,
        builds.rank(case),
        list(REGIMES).index(case.regime),
        case.seed,
    )


def simpler(case: Case, builds: Builds) -> Iterator[Case]:
    """Cases that are smaller in one respect, the most worthwhile first; a few of them are not smaller at all."""
    p: SoftmaxProblem = case.problem
    for rows in dict.fromkeys((1, 2, p.rows // 2, p.rows - 1)):
        if 1 <= rows < p.rows:
            yield _changed(case, rows=rows)
    for columns in dict.fromkeys((*FEW_COLUMNS, p.columns // 2, p.columns - BLOCK_COLUMNS, p.columns - 1)):
        if 1 <= columns < p.columns:
            yield _changed(case, columns=columns)
            # Inputs under which every further column matters: where fewer of them hide a mistake.
            yield dataclasses.replace(_changed(case, columns=columns), regime="rising")
    for left_out in range(len(case.edits)):
        yield dataclasses.replace(case, edits=case.edits[:left_out] + case.edits[left_out + 1 :])
    if case.check is not None:
        yield dataclasses.replace(case, check=None)
    for build in builds.simplified(builds.of(case)):
        yield dataclasses.replace(_changed(case, dtype=build.dtype), tile=build.tile)
    for regime in REGIMES:
        if regime == case.regime:
            break
        yield dataclasses.replace(case, regime=regime)
    for seed in (0, 1):
        yield dataclasses.replace(case, seed=seed)


def enlarged(case: Case, builds: Builds) -> Case:
    """A larger case with the same inputs: several rows, more than two blocks of columns."""
    p: SoftmaxProblem = case.problem
    return _changed(case, rows=max(p.rows, 4), columns=max(p.columns, 2 * BLOCK_COLUMNS + BLOCK_COLUMNS // 3))


def probed_axes(case: Case, builds: Builds) -> list[ProbedAxis]:
    """Columns, then rows, each alone."""
    p: SoftmaxProblem = case.problem
    return [
        ProbedAxis("columns", p.columns, BLOCK_COLUMNS, lambda length: _changed(case, columns=length)),
        ProbedAxis("rows", p.rows, 1, lambda length: _changed(case, rows=length)),
    ]


def peculiarities(case: Case, tiles: Sequence[int]) -> list[str]:
    """What a case has beyond the plainest, in words."""
    p: SoftmaxProblem = case.problem
    takes = []
    if p.rows > 1:
        takes.append(f"{p.rows} rows")
    if p.columns > 1:
        takes.append(f"{p.columns} columns")
    if p.dtype != "float32":
        takes.append(p.dtype)
    return takes


def shorter(problem: SoftmaxProblem) -> Iterator[tuple[str, SoftmaxProblem]]:
    """The problem with half as many columns, and so on, each with the option that sets them."""
    columns = problem.columns // 2
    while columns >= FEWEST_COLUMNS:
        yield f"--columns {columns}", dataclasses.replace(problem, columns=columns)
        columns //= 2


def _changed(case: Case, **fields: object) -> Case:
    """With these fields of its problem, and without the edits that lie outside of it then."""
    problem = dataclasses.replace(case.problem, **fields)
    kept = tuple(edit for edit in case.edits if all(i < extent for i, extent in zip(edit.index, problem.shape)))
    return dataclasses.replace(case, problem=problem, edits=kept)
