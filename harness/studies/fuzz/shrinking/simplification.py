"""Minimizes a failing case along the problem's own fields, after Hypothesis has shrunk its draws.

Hypothesis shrinks one draw or a few at a time. Some smaller problems are similar in meaning but far away in draws; the
operation lists them (`Operation.simpler`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import operation_of


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
        candidates = [each for each in operation.simpler(case, builds) if operation.size(each, builds) < size]
        expect(candidates)
        for candidate in candidates:
            if fails(candidate):
                case, improved = candidate, True
                break
    return case
