"""One campaign: Hypothesis draws cases for one variant, a worker examines them, and a failure is shrunk.

The parent draws and shrinks; the worker runs. A worker that dies takes one case with it and nothing of the search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.strategies import SearchStrategy

from harness.model.build import Build, Builds
from harness.model.case import Case
from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named, operation_of
from harness.options.machine import Machine
from harness.studies.fuzz.database import no_pareto_front
from harness.studies.fuzz.finding import SUSPICIOUS, Answer, Finding
from harness.studies.fuzz.isolation import Worker
from harness.studies.fuzz.rounds import rounds
from harness.studies.fuzz.simplification import simplify
from harness.studies.fuzz.worker import Load
from harness.support.errors import SandboxError, UsageError

DEFAULT_EXAMPLES = 200
FEWEST_DRAWN = 20
"""Per run of Hypothesis, which begins with the plainest example every time."""
SMALLEST_RATIO = 1e-9
"""What `target` takes for an error of 0."""

Progress = Callable[[int, float], None]
"""Told, after each example, how many there were and what part of the campaign is done."""


def _ignore(examples: int, part: float) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class CampaignSettings:
    """How far a campaign goes."""

    examples: int | None = DEFAULT_EXAMPLES
    """Cases to draw; None: as many as `seconds` allow."""
    seconds: float | None = None
    """When to stop searching; shrinking comes on top."""
    seed: int = 0
    """Same seed, same cases, on the same version of Hypothesis."""
    builds: tuple[Build, ...] | None = None
    """What kernels may have compiled in, the plainest first; None: the operation's own choice."""
    most_tiles: int | None = None
    """Tiles that a problem has at most; None: the operation's own choice."""
    checks: tuple[str, ...] | None = None
    """Properties that are held in a share of the cases; None: all of the operation's."""
    case_seconds: float = 10.0
    """How long one case may take, compilation apart."""
    shrink_seconds: float = 20.0
    """How long a failure is shrunk at most; then what is smallest so far is reported."""
    database: Path | None = None
    """Folder of past failures of this variant, which are tried first; None: none are kept."""


EMULATOR, USUAL = Machine(), CampaignSettings()
"""What campaigns have unless told otherwise."""


@dataclass(frozen=True)
class Failure:
    """What a campaign found, shrunk."""

    case: Case
    """The smallest that fails in the same way."""
    finding: Finding
    """What is wrong with it."""
    tiles: tuple[int, ...]
    """How many tiles `case` has, each way, such as of rows and of keys per head."""
    first_case: Case
    """The one that was drawn."""
    first_finding: Finding
    """What was wrong with that."""
    larger_case: Case
    """One that is not small at all and fails in the same way: there the pattern of the mistake has room to show."""
    larger_finding: Finding
    """What is wrong with that."""
    examples: int
    """How many were drawn up to that one."""
    shrinking: int
    """How many more were run to shrink it."""
    repeatable: bool
    """Whether the smallest case failed in the same way once more, in a fresh process."""
    remembered: bool
    """Whether it came from the database of past failures."""


@dataclass(frozen=True)
class CampaignResult:
    """What one campaign came to."""

    variant: str
    verdict: str
    """`pass`, `fail`, or `error`: the variant could not be loaded, or took none of the problems."""
    reason: str | None
    """Why it is not `pass`, in one line."""
    failure: Failure | None
    examples: int
    """Cases run before a failure was found, or in all; those that the variant refused are among them."""
    refused: int
    """Cases that the variant did not take: nothing is known about those."""
    refusals: tuple[tuple[str, int], ...]
    """Its reasons, the most frequent first, and how often each came."""
    seconds: float
    """Wall-clock time of the search, shrinking left out."""
    shrink_seconds: float
    """Wall-clock time of shrinking."""
    seed: int
    hardest: Case | None
    """The case with the largest error over budget among those that passed."""
    hardest_ratio: float | None
    """That ratio."""

    @property
    def examples_per_second(self) -> float:
        """Of the search."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan


def run_campaign(
    name: str,
    load: Load,
    machine: Machine = EMULATOR,
    how: CampaignSettings = USUAL,
    progress: Progress = _ignore,
    operation: str = DEFAULT_OPERATION,
) -> CampaignResult:
    """Search for a case that breaks the variant that `load` makes, and shrink it.

    `load` is called in worker processes, so it has to be picklable (`worker.Load`). Never raises for what a variant
    does; raises `UsageError` for settings that make no sense. `operation` is the variant's.
    """
    chosen = operation_named(operation)
    how = dataclasses.replace(
        how,
        builds=chosen.builds if how.builds is None else how.builds,
        checks=tuple(chosen.properties) if how.checks is None else how.checks,
    )
    _require_sensible(how, chosen)
    with Worker(load, machine, how.case_seconds, how.builds or ()) as worker:
        campaign = _Campaign(name, worker, how, progress, chosen)
        try:
            worker.start()
            campaign.began = time.monotonic()
            with contextlib.suppress(_Over):
                campaign.search()
            return campaign.conclude()
        except SandboxError as error:
            return campaign.result("error", str(error))


def replay(case: Case, load: Load, machine: Machine = EMULATOR, case_seconds: float = 60.0) -> Answer:
    """One case once more, in a worker process. Raises `UsageError` for a regime or property that does not exist."""
    operation = operation_of(case.problem)
    if case.regime not in operation.regimes:
        raise UsageError(f"no regime {case.regime!r}; there are {', '.join(operation.regimes)}")
    if case.check is not None:
        _require_property(case.check, operation)
    with Worker(load, machine, case_seconds) as worker:
        return worker.ask(case)


class _Found(Exception):
    """The case fails. All kinds are one to Hypothesis: it shrinks what raises this, and nothing else does."""


# No `Exception`, which Hypothesis would take for a failure.
class _Over(BaseException):
    """The time is up."""


class _RoundOver(BaseException):
    """There are as many examples as the round was to have."""


@dataclass
class _Campaign:
    name: str
    worker: Worker
    how: CampaignSettings
    progress: Progress
    operation: Operation
    began: float = field(default_factory=time.monotonic)
    answers: dict[Case, Answer] = field(default_factory=dict)
    """Of all cases so far. Hypothesis runs its smallest example again and must not find it flaky."""
    examples: int = 0
    until: float = math.inf
    """How many examples there are to be when the round ends."""
    refusals: Counter[str] = field(default_factory=Counter)
    hardest: tuple[float, Case] | None = None
    kind: str | None = None
    first: tuple[Case, Finding] | None = None
    smallest: tuple[Case, Finding] | None = None
    found_at: float | None = None
    found_after: int = 0
    sizes: Builds = field(default_factory=lambda: Builds(()))
    remembering: bool = False
    remembered: bool = False

    def search(self) -> None:
        """All rounds, or until something is found and shrunk."""
        self.sizes = Builds(self.worker.builds)
        if self.how.database is not None:
            self.remembering = True
            self._run(self.worker.builds, 1, (Phase.reuse, Phase.shrink), 0)
            self.remembering = False
        seeds = itertools.count(1)
        for part in rounds(self.worker.builds, self.how.examples):
            # Hypothesis draws some cases twice, in different ways. They are not run twice and do not count; more are
            # drawn, until there are no others.
            self.until = part.until
            while self.first is None and self.examples < part.until:
                before = self.examples
                missing = max(part.until - self.examples, FEWEST_DRAWN)
                self._run(part.builds, missing, (Phase.generate, Phase.target, Phase.shrink), next(seeds))
                if self.examples == before:
                    break
        if self.first is not None:
            self._simplify()

    def conclude(self) -> CampaignResult:
        """The result, after the smallest failure ran once more in a fresh process."""
        if self.first is not None:
            assert self.smallest is not None
            failure = self._failure()
            return self.result("fail", f"{failure.finding.kind}: {failure.finding.reason}", failure)
        refused = self.refusals.total()
        if refused == self.examples:
            why = f"it took none of the {refused:,} problems"
            reason, _ = self.refusals.most_common(1)[0] if refused else ("no example was run", 0)
            return self.result("error", f"{why}, so nothing is known about it: {reason}")
        return self.result("pass", None)

    def result(self, verdict: str, reason: str | None, failure: Failure | None = None) -> CampaignResult:
        """With the counts of now."""
        now = time.monotonic()
        return CampaignResult(
            variant=self.name,
            verdict=verdict,
            reason=reason,
            failure=failure,
            examples=self.found_after or self.examples,
            refused=self.refusals.total(),
            refusals=tuple(self.refusals.most_common()),
            seconds=(self.found_at or now) - self.began,
            shrink_seconds=now - self.found_at if self.found_at else 0.0,
            seed=self.how.seed,
            hardest=self.hardest[1] if self.hardest else None,
            hardest_ratio=self.hardest[0] if self.hardest else None,
        )

    def _run(self, builds: tuple[Build, ...], examples: int, phases: tuple[Phase, ...], number: int) -> None:
        how = settings(
            max_examples=examples,
            phases=phases,
            deadline=None,
            database=None if self.how.database is None else DirectoryBasedExampleDatabase(self.how.database),
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )

        # The database knows an example by this function's source, whatever the round. `seed` takes the database away,
        # so the settings come after it.
        @how
        @seed(hash((self.how.seed, number)))
        @given(case=self._strategy(builds))
        def hold(case: Case) -> None:
            self._hold(case)

        # SkipTest: the database had nothing, and nothing was to be drawn.
        with no_pareto_front(), contextlib.suppress(_Found, _RoundOver, unittest.SkipTest):
            hold()

    def _strategy(self, builds: tuple[Build, ...]) -> SearchStrategy[Case]:
        return self.operation.cases(builds, self.how.most_tiles, self.how.checks or (), self.worker.takes)

    def _hold(self, case: Case) -> None:
        if self.first is None and self.examples >= self.until:
            raise _RoundOver
        answer = self._answer(case)
        finding = answer.finding
        if finding is None:
            if answer.error_over_budget is not None and self.first is None:
                target(math.log10(max(answer.error_over_budget, SMALLEST_RATIO)))
            return
        if self.first is None or (self.kind == SUSPICIOUS and finding.kind != SUSPICIOUS):
            self.kind, self.first, self.smallest = finding.kind, (case, finding), (case, finding)
            self.found_at, self.found_after = time.monotonic(), self.examples
            self.remembered = self.remembering
        if finding.kind != self.kind:
            return  # another mistake, met while shrinking: one at a time
        assert self.smallest is not None
        if self._size(case) < self._size(self.smallest[0]):
            self.smallest = (case, finding)
        raise _Found(finding.reason)

    def _answer(self, case: Case) -> Answer:
        self._mind_the_time()
        answer = self.answers.get(case)
        if answer is None:
            answer = self.answers[case] = self.worker.ask(case)
            self._count(case, answer)
        return answer

    def _size(self, case: Case) -> tuple[object, ...]:
        return self.operation.size(case, self.sizes)

    def _simplify(self) -> None:
        """What Hypothesis shrank to, shrunk further."""
        assert self.smallest is not None

        def fails(case: Case) -> bool:
            finding = self._answer(case).finding
            if finding is None or finding.kind != self.kind:
                return False
            self.smallest = (case, finding)
            return True

        simplify(self.smallest[0], fails, self.sizes)

    def _count(self, case: Case, answer: Answer) -> None:
        if self.first is not None:
            return
        self.examples += 1
        if answer.refusal is not None:
            self.refusals[answer.refusal] += 1
        ratio = answer.error_over_budget
        if answer.finding is None and ratio is not None and (self.hardest is None or ratio > self.hardest[0]):
            self.hardest = (ratio, case)
        parts = [0.0]
        if self.how.examples is not None:
            parts.append(self.examples / self.how.examples)
        if self.how.seconds is not None:
            parts.append((time.monotonic() - self.began) / self.how.seconds)
        self.progress(self.examples, min(1.0, max(parts)))

    def _mind_the_time(self) -> None:
        now = time.monotonic()
        if self.found_at is not None:
            if now - self.found_at > self.how.shrink_seconds:
                raise _Over
        elif self.how.seconds is not None and now - self.began > self.how.seconds:
            raise _Over

    def _failure(self) -> Failure:
        assert self.first is not None and self.smallest is not None
        case, finding = self.smallest
        self.worker.end()
        again = self.worker.ask(case)
        larger = self.operation.enlarged(case, self.sizes)
        enlarged_finding = self.worker.ask(larger).finding
        if enlarged_finding is None or enlarged_finding.kind != finding.kind:
            larger, enlarged_finding = self.first
        return Failure(
            case=case,
            finding=finding,
            tiles=self.sizes.of(case).tiles(case.problem),
            first_case=self.first[0],
            first_finding=self.first[1],
            larger_case=larger,
            larger_finding=enlarged_finding,
            examples=self.found_after,
            shrinking=len(self.answers) - self.found_after,
            repeatable=again.finding is not None and again.finding.kind == finding.kind,
            remembered=self.remembered,
        )


def _require_property(check: str, operation: Operation) -> None:
    if check not in operation.properties:
        raise UsageError(f"no property {check!r}; there are {', '.join(operation.properties) or 'none'}")


def _require_sensible(how: CampaignSettings, operation: Operation) -> None:
    if how.examples is None and how.seconds is None:
        raise UsageError("a campaign needs an end: a number of examples, of seconds, or both")
    for name, value in (("examples", how.examples), ("seconds", how.seconds), ("tiles", how.most_tiles)):
        if value is not None and not value > 0:
            raise UsageError(f"--{name} is {value:g}; it has to be more than 0")
    for check in how.checks or ():
        _require_property(check, operation)
