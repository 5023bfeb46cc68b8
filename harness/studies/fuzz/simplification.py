"""A failing case made smaller along its own fields, after Hypothesis made its draws simpler.

Hypothesis shrinks what was drawn, one draw or a few at a time. Some smaller problems are far away in draws and near in
what they mean; the operation knows them (`Operation.simpler`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.model.build import Builds
from harness.model.case import Case
from harness.model.operation import operation_of


def simplify(
    case: Case,
    fails: Callable[[Case], bool],
    builds: Builds,
    expect: Callable[[Sequence[Case]], None] = lambda candidates: None,
) -> Case:
    """The smallest case that `fails` and that steps of `Operation.simpler` lead to; `case` itself fails.

    The first simpler case that fails is gone on with, in the operation's order. `expect` is told all that may be asked
    about next, in that order, for whoever can examine several at a time.
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
