"""One campaign: cases for one variant, chosen on purpose or drawn by Hypothesis, examined, and shrunk where they fail.

The parent chooses and shrinks; the worker runs. A worker that dies takes one case with it and nothing of the search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis.strategies import SearchStrategy

from harness.emulator.launch.configuration import default_threads
from harness.execution.isolation.server import Load
from harness.model.build import Build, Builds
from harness.model.case import Case
from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named, operation_of
from harness.model.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.builds import sanitized_builds
from harness.studies.fuzz.chosen import ChosenCases
from harness.studies.fuzz.covering import Covering
from harness.studies.fuzz.database import PastFailures
from harness.studies.fuzz.finding import SUSPICIOUS, Answer, Finding
from harness.studies.fuzz.isolation import Worker
from harness.studies.fuzz.result import CampaignResult, Failure
from harness.studies.fuzz.rounds import FIRST_EXAMPLES, rounds
from harness.studies.fuzz.simplification import simplify
from harness.studies.fuzz.workers import Workers
from harness.support.errors import SandboxError, UsageError

DEFAULT_EXAMPLES = 200
FEWEST_DRAWN = 20
"""Per run of Hypothesis, which begins with the plainest example every time."""
MOST_AHEAD = 64
"""Chosen cases that are drawn and not yet asked about: as many as short ones take a long one's time."""
AHEAD_OF_SEARCH = 2
"""Of the next round's, per example of Hypothesis's, who takes turns with one worker while the others are at them."""
WORKERS = 2
"""Of a long campaign: more would wait for Hypothesis."""
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
    """Tiles that a problem has at most, none of them long then; None: the operation's own choice."""
    checks: tuple[str, ...] | None = None
    """Properties that are held in a share of the cases, `SANITIZER` among them; None: all that there are."""
    case_seconds: float = 10.0
    """How long one case may take, compilation apart."""
    shrink_seconds: float = 20.0
    """How long a failure is shrunk at most; then what is smallest so far is reported."""
    database: Path | None = None
    """Folder of past failures of this variant, which are tried first; None: none are kept."""


EMULATOR, USUAL = Machine(), CampaignSettings()
"""What campaigns have unless told otherwise."""


def run_campaign(
    name: str,
    load: Load,
    machine: Machine = EMULATOR,
    how: CampaignSettings = USUAL,
    progress: Progress = _ignore,
    operation: str = DEFAULT_OPERATION,
) -> CampaignResult:
    """Search for a case that breaks the variant that `load` makes, and shrink it.

    `load` is called in planner processes, so it has to be picklable (`Load`). Never raises for what a variant
    does; raises `UsageError` for settings that make no sense. `operation` is the variant's.
    """
    chosen = operation_named(operation)
    how = dataclasses.replace(
        how,
        builds=chosen.builds if how.builds is None else how.builds,
        checks=usual_checks(chosen, machine) if how.checks is None else how.checks,
    )
    _require_sensible(how, chosen, machine)
    with Workers(load, machine, how.case_seconds, how.builds or (), _workers(how, machine)) as workers:
        campaign = _Campaign(name, workers, how, progress, chosen, past=PastFailures(how.database))
        try:
            workers.start()
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
        _require_check(case.check, operation, machine)
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
    workers: Workers
    how: CampaignSettings
    progress: Progress
    operation: Operation
    began: float = field(default_factory=time.monotonic)
    answers: dict[Case, Answer] = field(default_factory=dict)
    """Of all cases so far. Hypothesis runs its smallest example again and must not find it flaky."""
    drawn: set[Case] = field(default_factory=set)
    """Of the chosen cases, those so far; some are yet to be asked about."""
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
    past: PastFailures = field(default_factory=lambda: PastFailures(None))
    covering: Covering | None = None
    remembered: bool = False

    def search(self) -> None:
        """All rounds, or until something is found and shrunk."""
        builds = self.workers.builds
        self.sizes = Builds(builds)
        self._try_past_failures()
        checks = self.how.checks or ()
        axes = self.operation.axes(self.how.most_tiles, checks, self.workers.takes)
        if axes is not None:
            self.covering = Covering(axes, builds, sanitized_builds(builds), self.workers.fails_in, self.how.seed)
        seeds = itertools.count(1)
        chosen: ChosenCases | None = None
        for part, following in itertools.pairwise(itertools.chain(rounds(builds, self.how.examples), (None,))):
            if self.first is not None or part is None:
                break
            if axes is not None and self.covering is not None:
                chosen = chosen or ChosenCases(axes, self.covering, part, self.how.seed)
                seed = self.how.seed
                after = None if following is None else ChosenCases(axes, self.covering, following, seed)
                self._cover(chosen, after)
                chosen = after
            # Hypothesis draws some cases twice, in different ways. They are not run twice and do not count; more are
            # drawn, until there are no others.
            self.until = part.until
            while self.first is None and self.examples < part.until:
                before = self.examples
                self._explore(part.builds, max(part.until - self.examples, FEWEST_DRAWN), next(seeds))
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
            left_out=self.workers.fails_in,
            coverage=None if self.covering is None else self.covering.coverage,
        )

    def _try_past_failures(self) -> None:
        """Those that this campaign could have drawn."""
        known = {build.key for build in self.sizes.known}
        for case in self.past.cases():
            known_check = case.check is None or case.check in (self.how.checks or ())
            to_be_asked = case.regime in self.operation.regimes and not self._is_declared(case)
            if (case.problem.build_key, case.tile) in known and known_check and to_be_asked:
                if self._fails(case):
                    self.remembered = True
                    return
                self.past.forget(case)

    def _cover(self, chosen: ChosenCases, following: ChosenCases | None) -> None:
        """The examples that are chosen on purpose; some of the following round's are drawn already."""
        assert self.covering is not None
        while self.first is None:
            # Two for one: so many rows at once would keep the first of them waiting.
            missing = self._draw_ahead(chosen, min(len(chosen.drawn) + 2, MOST_AHEAD))
            if missing and following is not None:
                part = chosen.part
                self._draw_ahead(following, AHEAD_OF_SEARCH * (part.until - part.chosen_until), after=part.until)
            if not chosen.drawn:
                return
            row, case = chosen.drawn.popleft()
            if case in self.answers:
                continue  # Hypothesis drew it, too, after it was drawn here
            self._fails(case)
            if self.answers[case].refusal is None:
                self.covering.took(row)

    def _draw_ahead(self, chosen: ChosenCases, number: int, after: int = 0) -> bool:
        """Until so many of the chosen cases are drawn and not asked about; whether there are no more than there are.

        The round, which begins when there are `after` examples, has an end, and not all cases are others.
        """
        most = min(number, chosen.part.chosen_until - max(self.examples, after))
        while len(chosen.drawn) < most:
            case = chosen.draw(self._is_left_out)
            if case is None:
                return True
            self.drawn.add(case)
            self.workers.expect(case)
        return len(chosen.drawn) < number

    def _explore(self, builds: tuple[Build, ...], examples: int, number: int) -> None:
        """Hypothesis's search, towards errors that are large for their budget, and its shrinking."""

        @settings(
            max_examples=examples,
            phases=(Phase.generate, Phase.target, Phase.shrink),
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
        )
        @seed(hash((self.how.seed, number)))
        @given(case=self._strategy(builds))
        def hold(case: Case) -> None:
            self._hold(case)

        with contextlib.suppress(_Found, _RoundOver):
            hold()

    def _strategy(self, builds: tuple[Build, ...]) -> SearchStrategy[Case]:
        # Where the sanitizer's cases are chosen on purpose, these are not: it compiles once more for each build.
        checks = [c for c in self.how.checks or () if c != SANITIZER or self.covering is None]
        cases = self.operation.cases(builds, self.how.most_tiles, checks, self.workers.takes)
        return cases.filter(lambda case: not self._is_declared(case)) if self.workers.fails_in else cases

    def _is_declared(self, case: Case) -> bool:
        """Whether the variant says that it may fail there."""
        declared = self.workers.fails_in
        return bool(declared) and (case.regime in declared or self.operation.leaves_regime(case))

    def _is_left_out(self, case: Case) -> bool:
        """Of the chosen cases."""
        return case in self.answers or case in self.drawn or self._is_declared(case)

    def _hold(self, case: Case) -> None:
        """One example of Hypothesis's."""
        if self.first is None and self.examples >= self.until:
            raise _RoundOver
        fails, ratio = self._fails(case), self.answers[case].error_over_budget
        if fails:
            raise _Found
        if ratio is not None and self.first is None:
            target(math.log10(max(ratio, SMALLEST_RATIO)))

    def _fails(self, case: Case) -> bool:
        """Whether the case fails, in the way that is shrunk if there is one; then it may be the smallest so far."""
        finding = self._answer(case).finding
        if finding is None:
            return False
        if self.first is None or (self.kind == SUSPICIOUS and finding.kind != SUSPICIOUS):
            self.kind, self.first, self.smallest = finding.kind, (case, finding), (case, finding)
            self.found_at, self.found_after = time.monotonic(), self.examples
            self.workers.forget()
        if finding.kind != self.kind:
            return False  # another mistake, met while shrinking: one at a time
        assert self.smallest is not None
        if self._size(case) < self._size(self.smallest[0]):
            self.smallest = (case, finding)
        return True

    def _answer(self, case: Case) -> Answer:
        self._mind_the_time()
        answer = self.answers.get(case)
        if answer is None:
            answer = self.answers[case] = self.workers.ask(case)
            self._count(case, answer)
        return answer

    def _size(self, case: Case) -> tuple[object, ...]:
        return self.operation.size(case, self.sizes)

    def _simplify(self) -> None:
        """What was found, or Hypothesis shrank to, made smaller; kept for the next campaign whenever that ends."""
        assert self.smallest is not None
        try:
            simplify(
                self.smallest[0],
                lambda case: not self._is_declared(case) and self._fails(case),
                self.sizes,
            )
        finally:
            self.past.keep(self.smallest[0])

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
        self.workers.end()
        again = self.workers.ask(case)
        larger = self.operation.enlarged(case, self.sizes)
        enlarged_finding = self.workers.ask(larger).finding
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


def usual_checks(operation: Operation, machine: Machine) -> tuple[str, ...]:
    """What is held in a share of the cases unless something else is said."""
    return (*operation.properties, *(() if machine.kind == "gpu" else (SANITIZER,)))


def _workers(how: CampaignSettings, machine: Machine) -> int:
    """A usual campaign is over before a further one has started and compiled what the first one has."""
    is_long = how.examples is None or how.examples > FIRST_EXAMPLES
    return min(WORKERS, default_threads()) if is_long and machine.kind == "emulator" else 1


def _require_check(check: str, operation: Operation, machine: Machine) -> None:
    if check == SANITIZER and machine.kind == "gpu":
        raise UsageError("the sanitizer looks on where the emulator runs; add --device emulator")
    if check != SANITIZER and check not in operation.properties:
        raise UsageError(f"no property {check!r}; there are {', '.join((*operation.properties, SANITIZER))}")


def _require_sensible(how: CampaignSettings, operation: Operation, machine: Machine) -> None:
    if how.examples is None and how.seconds is None:
        raise UsageError("a campaign needs an end: a number of examples, of seconds, or both")
    for name, value in (("examples", how.examples), ("seconds", how.seconds), ("tiles", how.most_tiles)):
        if value is not None and not value > 0:
            raise UsageError(f"--{name} is {value:g}; it has to be more than 0")
    for check in how.checks or ():
        _require_check(check, operation, machine)
