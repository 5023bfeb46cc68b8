"""Minimizes a failing case along the problem's own fields, after Hypothesis has shrunk its draws.

Hypothesis shrinks one draw or a few at a time. Some smaller problems are similar in meaning but far away in draws; the
operation lists them (`Operation.simpler`).

A simpler problem has other inputs, which may hide the failure: without a mask, the regime `non-finite` puts no NaN into
K, and a shorter K lacks the row that was edited. A simpler problem is therefore also tried with the same inputs or, if
their shapes differ, with the same edits. If no simpler case fails, each simpler problem is tried once more with
another seed, since its inputs may have been harmless by chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import Operation, operation_of

MOST_EDITS = 3
"""Maximum number of elements that are edited to give a simpler problem the same inputs."""
MOST_COMPARED_EDITS = 4096
"""The same for cases that are only run to find out whether a feature is needed."""


def simplify(
    case: Case,
    fails: Callable[[Case], bool],
    builds: Builds,
    expect: Callable[[Sequence[Case]], None] = lambda candidates: None,
) -> Case:
    """The smallest case for which `fails` is true, reached by steps of `Operation.simpler` from `case`, which fails.

    Each step takes the first simpler case that fails, in the operation's order. `expect` is called with all cases that
    may be tried next, in that order, so that several can be examined concurrently.
    """
    operation = operation_of(case.problem)
    improved = True
    while improved:
        improved = False
        size = operation.size(case, builds)
        simpler = [*_simpler(operation, case, builds, size)]
        redrawn = [dataclasses.replace(each, seed=each.seed ^ 1) for each in simpler if each.problem != case.problem]
        for tried in (simpler, redrawn):
            candidates = [each for each in tried if operation.size(each, builds) < size]
            expect(candidates)
            found = next((candidate for candidate in candidates if fails(candidate)), None)
            if found is not None:
                case, improved = found, True
                break
    return case


def _simpler(operation: Operation, case: Case, builds: Builds, size: tuple[object, ...]) -> Iterator[Case]:
    """What `Operation.simpler` yields below a size, each problem also with the inputs or with the edits of `case`.

    These are only larger, so inputs are not drawn to compare them where the problem alone is too large.
    """
    for each in operation.simpler(case, builds):
        if operation.size(each, builds) >= size:
            continue
        same = _with_same_inputs(each, case, MOST_EDITS)
        if same is None and each.problem != case.problem:
            same = each.with_edits_of(case)
        yield from dict.fromkeys((each, same or each))


def _with_same_inputs(simpler: Case, case: Case, most_edits: int) -> Case | None:
    """Another problem with the inputs of `case`; None if its regime is another one, too, or its inputs' layout."""
    if simpler.problem == case.problem or simpler.regime != case.regime:
        return None
    return simpler.with_inputs_of(case, most_edits)


def needed_features(case: Case, tiles: Sequence[int], builds: Builds, fails: Callable[[Case], bool]) -> tuple[str, ...]:
    """The features of `case`, in words, without which the same inputs do not fail; `case` fails.

    `tiles` are those of `case`, as `Operation.peculiarities` takes them. A feature that determines the layout of inputs
    is always named, such as the number of rows.
    """
    operation = operation_of(case.problem)
    assumed = builds.of(case).assumed_tile
    needed = operation.peculiarities(case, tiles, assumed)
    improved = True
    while improved:
        improved = False
        for each in operation.simpler(case, builds):
            same = _with_same_inputs(each, case, MOST_COMPARED_EDITS)
            fewer = [] if same is None else operation.peculiarities(same, tiles, assumed)
            if same is not None and set(fewer) < set(needed) and fails(same):
                case, needed, improved = same, fewer, True
                break
    return tuple(needed)
