"""Runs one case again and, if its values are wrong, a larger one, which shows more of a pattern."""

from __future__ import annotations

from harness.execution.isolation.server import Load
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import operation_of
from harness.options.machine import Machine
from harness.studies.fuzz.examining.isolation import Worker
from harness.studies.fuzz.finding import Answer, Finding
from harness.studies.fuzz.settings import require_check
from harness.support.errors import UsageError

EMULATOR = Machine()


def replay(case: Case, load: Load, machine: Machine = EMULATOR, case_seconds: float = 60.0) -> Answer:
    """Run one case again in a worker process. Raises `UsageError` for an unknown regime or property."""
    return replay_with_larger(case, load, machine, case_seconds)[0]


def replay_with_larger(
    case: Case, load: Load, machine: Machine = EMULATOR, case_seconds: float = 60.0
) -> tuple[Answer, tuple[Case, Finding] | None]:
    """As `replay`, with a larger case that fails in the same way.

    None if there is none, if no values are wrong, or if the case has compile-time parameters that no campaign draws.
    """
    operation = operation_of(case.problem)
    if case.regime not in operation.regimes:
        raise UsageError(f"no regime {case.regime!r}; there are {', '.join(operation.regimes)}")
    if case.check is not None:
        require_check(case.check, operation, machine)
    with Worker(load, machine, case_seconds, operation.builds) as worker:
        answer = worker.ask(case)
        finding = answer.finding
        if finding is None or finding.wrong is None:
            return answer, None
        builds = Builds(worker.builds)
        if builds.find(case) is None:
            return answer, None
        larger = operation.enlarged(case, builds)
        found = None if larger == case else worker.ask(larger).finding
    return answer, None if found is None or found.kind != finding.kind else (larger, found)
