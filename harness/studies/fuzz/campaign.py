"""One campaign on one variant.

Cases are chosen systematically or drawn by Hypothesis, examined, and shrunk if they fail. The parent process chooses
and shrinks; worker processes run cases. A worker that dies loses one case and none of the search.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.execution.isolation.server import Load
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named
from harness.options.machine import Machine
from harness.studies.fuzz.database import PastFailures
from harness.studies.fuzz.drawing.builds import builds_with, sanitized_builds
from harness.studies.fuzz.drawing.chosen_cases import SANITIZED_EACH
from harness.studies.fuzz.drawing.covering import Covering
from harness.studies.fuzz.drawing.search import FEWEST_DRAWN, CaseResult, Search, is_declared
from harness.studies.fuzz.drawing.sequence import Chosen, ExampleSequence, Upcoming
from harness.studies.fuzz.examining.chosen_examiners import examiners_of
from harness.studies.fuzz.examining.examiners import Examiners
from harness.studies.fuzz.finding import SUSPICIOUS, WRONG_ANSWER, Answer, Finding
from harness.studies.fuzz.log import CampaignLog
from harness.studies.fuzz.result import INCOMPLETE, CampaignResult, Failure
from harness.studies.fuzz.settings import (
    DEFAULT_EXAMPLES,
    CampaignSettings,
    require_sensible,
    usual_checks,
)
from harness.studies.fuzz.shrinking.aftermath import HarnessFaults, look_into
from harness.studies.fuzz.shrinking.simplification import simplify
from harness.support.errors import SandboxError, WorkersGone
from harness.support.exception_place import place_in_harness

if TYPE_CHECKING:
    from harness.execution.cluster.cluster_client import ClusterClient

REPLACED_AT_A_TIME = 32
"""Examples per search when repeated examples are replaced, so that several workers are busy."""

Progress = Callable[[int, float, str], None]
"""Callback after each example with the number of examples, the completed fraction, and a summary of the coverage."""


def _ignore(examples: int, part: float, met: str) -> None:
    pass


EMULATOR, USUAL = Machine(), CampaignSettings()
"""The default machine and settings."""


def run_campaign(
    name: str,
    load: Load,
    machine: Machine = EMULATOR,
    how: CampaignSettings = USUAL,
    progress: Progress = _ignore,
    operation: str = DEFAULT_OPERATION,
    cluster: ClusterClient | None = None,
    log: CampaignLog | None = None,
) -> CampaignResult:
    """Search for a case on which the variant fails, and minimize it.

    `load` is called in planner processes, so it has to be picklable (`Load`). `operation` is the variant's. Cases are
    distributed over the workers of `cluster` if given, else over one or two processes of this machine. `log` has the
    results of an interrupted run. Failures of the variant are not raised. Raises `UsageError` for invalid settings, and
    `WorkersGone`.
    """
    chosen = operation_named(operation)
    how = dataclasses.replace(
        how,
        builds=chosen.builds_of(how.seed) if how.builds is None else how.builds,
        checks=(SANITIZER,)
        if how.only_sanitizer
        else usual_checks(chosen, machine)
        if how.checks is None
        else how.checks,
    )
    require_sensible(how, chosen, machine)
    with examiners_of(load, machine, how, cluster) as workers:
        campaign = _Campaign(
            name, workers, how, progress, chosen, past=PastFailures(how.database), log=log or CampaignLog(),
            sanitizes=machine.kind == "emulator" and not machine.settings.sanitize,
        )  # fmt: skip
        try:
            workers.start()
            campaign.began = time.monotonic() - campaign.log.seconds
            campaign.search_until_time_is_up()
        except WorkersGone:
            raise
        except Exception as error:
            text = str(error) if isinstance(error, SandboxError) else f"the harness itself: {place_in_harness(error)}"
            if campaign.first is None:
                return campaign.result("error", text)
            campaign.faults.add(text)  # the findings so far are reported nevertheless
        return campaign.conclude()


# Not derived from `Exception`, which Hypothesis would treat as a failure.
class _TimeIsUp(BaseException):
    """The time limit was reached."""


class _ExamplesDone(BaseException):
    """The requested number of examples was reached."""


@dataclass
class _Campaign:
    name: str
    workers: Examiners
    how: CampaignSettings
    progress: Progress
    operation: Operation
    began: float = field(default_factory=time.monotonic)
    answers: dict[Case, Answer] = field(default_factory=dict)
    """Answers to all cases so far. Hypothesis runs its smallest example again and must get the same answer."""
    known: dict[Case, Answer] = field(default_factory=dict)
    """Answers from searches made by workers, to cases that are not yet counted."""
    examples: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    undecided: Counter[str] = field(default_factory=Counter)
    """Number of undecided cases by the wrong answer that would pass as well."""
    hardest: tuple[float, Case] | None = None
    """The largest error over budget of a passing case, and that case."""
    first: tuple[Case, Finding] | None = None
    smallest: tuple[Case, Finding] | None = None
    found_at: float | None = None
    found_after: int = 0
    sizes: Builds = field(default_factory=lambda: Builds(()))
    past: PastFailures = field(default_factory=lambda: PastFailures(None))
    covering: Covering | None = None
    remembered: bool = False
    stored_failures: int = 0
    """Number of past failures that were tried first."""
    log: CampaignLog = field(default_factory=CampaignLog)
    sanitizes: bool = False
    """Whether the sanitizer is available but not applied to all cases."""
    faults: HarnessFaults = field(default_factory=HarnessFaults)
    unexamined: int = 0
    """Number of examples without a result because of an error of the harness."""
    out_of_time: bool = False
    """Whether the time limit ended the search."""

    def search_until_time_is_up(self) -> None:
        """Run `search` until the time limit."""
        try:
            with contextlib.suppress(_ExamplesDone):
                self.search()
        except _TimeIsUp:
            self.out_of_time = self.first is None

    def search(self) -> None:
        """Run all examples, or until a failure is found and minimized."""
        workers, how = self.workers, self.how
        if not set(self.operation.regimes) - set(workers.fails_in):
            raise SandboxError(
                "it declares (fails_in) that it fails with inputs of every regime, so there is nothing to try, and "
                "nothing is known about it"
            )
        self.sizes = Builds(workers.builds)
        if self.log.tried is None:
            self._try_past_failures()
            self.log.begin(self.examples)
        else:
            self.examples = self.log.tried
        self.stored_failures = self.examples
        self.known.update(self.log.answers)
        checks = how.checks or ()
        sanitized = sanitized_builds(workers.builds)
        builds = sanitized if how.only_sanitizer else workers.builds
        axes = self.operation.axes(how.most_tiles, checks, workers.takes)
        if axes is not None:
            self.covering = Covering(axes, builds, sanitized, workers.fails_in, how.seed)
        sequence = ExampleSequence(
            operation=self.operation,
            builds=builds,
            examples=how.examples,
            seed=how.seed,
            most_tiles=how.most_tiles,
            checks=checks,
            takes=workers.takes,
            fails_in=workers.fails_in,
            axes=axes,
            covering=self.covering,
            sanitized_each=1 if how.only_sanitizer else SANITIZED_EACH,
        )
        upcoming = Upcoming(sequence.entries(self.examples), workers, self._is_known)
        searches = 0
        while self.first is None and (entry := upcoming.next()) is not None:
            if isinstance(entry, Search):
                searches = entry.number
                self._explore(entry)
            else:
                self._run_and_record(entry.case)
                if self.covering is not None and self.answers[entry.case].refusal is None:
                    self.covering.took(entry.row)
        self._make_up_for_repeated(sequence, searches)
        if self.first is not None:
            self._simplify()

    def _make_up_for_repeated(self, sequence: ExampleSequence, searches: int) -> None:
        """Replace examples that several searches repeated, as long as there are new ones."""
        before = -1
        while self.first is None and before < self.examples < (self.how.examples or 0):
            before = self.examples
            more = []
            for first in range(before, self.how.examples or 0, REPLACED_AT_A_TIME):
                searches += 1
                examples = min(REPLACED_AT_A_TIME, (self.how.examples or 0) - first)
                more.append(sequence.search(sequence.builds, max(FEWEST_DRAWN, examples), searches, True))
            upcoming = Upcoming(iter(more), self.workers, self._is_known)
            with contextlib.suppress(_ExamplesDone):
                while self.first is None and (search := upcoming.next()) is not None:
                    assert isinstance(search, Search)
                    self._explore(search)

    def conclude(self) -> CampaignResult:
        """Run the smallest failure again in a fresh process and return the result."""
        if self.first is not None:
            assert self.smallest is not None
            failure = self._failure()
            return self.result("fail", f"{failure.finding.kind}: {failure.finding.reason}", failure)
        refused = self.refusals.total()
        if self.unexamined:
            fault = next(iter(self.faults.texts))
            where = f"in {self.unexamined:,} of {self.examples:,} examples, whose results are unknown"
            return self.result("error", f"the harness itself failed {where}: {fault}")
        wanted = self.how.examples or DEFAULT_EXAMPLES
        if self.out_of_time and self.examples < wanted and (refused < self.examples or not self.examples):
            over = f"the time limit was reached after {self.examples:,} of {wanted:,} examples"
            return self.result(INCOMPLETE, f"{over}, none of which failed; increase --seconds")
        if refused == self.examples:
            why = f"it supports none of the {refused:,} problems"
            reason, _ = self.refusals.most_common(1)[0] if refused else ("no example was run", 0)
            return self.result("error", f"{why}, so nothing is known about it: {reason}")
        if self.undecided.total() == self.examples - refused:
            nearest, _ = self.undecided.most_common(1)[0]
            why = f"none of the {self.undecided.total():,} examples proves anything"
            return self.result("undecided", f"{why}: {nearest} would pass, too; try more, or leave out --tiles")
        return self.result("pass", None)

    def result(self, verdict: str, reason: str | None, failure: Failure | None = None) -> CampaignResult:
        """A result with the current counts."""
        now = time.monotonic()
        return CampaignResult(
            variant=self.name,
            verdict=verdict,
            reason=reason,
            failure=failure,
            examples=self.found_after or self.examples,
            refused=self.refusals.total(),
            refusals=tuple(self.refusals.most_common()),
            undecided=self.undecided.total(),
            seconds=(self.found_at or now) - self.began,
            shrink_seconds=now - self.found_at if self.found_at else 0.0,
            seed=self.how.seed,
            hardest=self.hardest[1] if self.hardest else None,
            hardest_ratio=self.hardest[0] if self.hardest else None,
            left_out=self.workers.fails_in,
            coverage=None if self.covering is None else self.covering.coverage,
            faults=tuple(self.faults.texts),
            stored_failures=self.stored_failures,
        )

    def _try_past_failures(self) -> None:
        """Run past failures that this campaign, with any seed, could have drawn."""
        for case in self.past.cases():
            known_check = case.check is None or case.check in (self.how.checks or ())
            is_relevant = case.regime in self.operation.regimes and not self._is_declared(case)
            sizes = builds_with(self.sizes, case) if known_check and is_relevant else None
            if sizes is not None:
                self.sizes = sizes
                if self._run_and_record(case):
                    self.remembered = True
                    return
                self.past.forget(case)

    def _explore(self, search: Search) -> None:
        """Run a Hypothesis search, here or in a worker, and shrink a failure, which always happens here."""
        self._check_time()
        found = self.log.searches.get(search.number) or self.workers.searched(search)
        met: dict[Case, None] = {}
        if found is None:
            search.run(lambda case: self._check(met.setdefault(case) or case))
        else:
            self.known.update((case, answer) for case, answer in found if case not in self.answers)
            for case, _ in found:
                met[case] = None
                if self._check(case)[0]:
                    search.run(self._check)  # with the same answers so far
        if self.first is None:
            self.log.searched(search.number, met)

    def _is_known(self, entry: Chosen | Search) -> bool:
        """Whether an entry was finished before the campaign was interrupted."""
        return entry.number in self.log.searches if isinstance(entry, Search) else entry.case in self.log.answers

    def _check(self, case: Case) -> CaseResult:
        if self.first is None and self.how.examples is not None and self.examples >= self.how.examples:
            raise _ExamplesDone
        if self.how.only_sanitizer:
            case = dataclasses.replace(case, check=SANITIZER)
        return self._run_and_record(case), self.answers[case].error_over_budget

    def _is_declared(self, case: Case) -> bool:
        """Whether the variant declares that it may fail on the case."""
        return is_declared(case, self.workers.fails_in, self.operation)

    def _run_and_record(self, case: Case) -> bool:
        """Run the case unless its answer is known, and record a failure. True if it fails as what is being shrunk."""
        finding = self._answer(case).finding
        if finding is None:
            return False
        known = None if self.smallest is None else self.smallest[1].kind
        if known is None or (known == SUSPICIOUS and finding.kind != SUSPICIOUS):
            self.first = self.smallest = (case, finding)
            self.found_at, self.found_after = time.monotonic(), self.examples
            self.workers.cancel_all()
        assert self.smallest is not None
        is_smaller = self._size(case) < self._size(self.smallest[0])
        # What makes an lse wrong may make O wrong in a simpler case. Any other kind of finding is another mistake.
        shows_in_main = is_smaller and finding.kind == WRONG_ANSWER and self.smallest[1].is_of_optional_output
        # An offset of too few bits leaves its buffer at one distance and is merely wrong at another.
        shows_at_distance = is_smaller and case.problem.spread is not None and not finding.is_without_run
        if finding.kind != self.smallest[1].kind and not (shows_in_main or shows_at_distance):
            return False
        if is_smaller:
            self.smallest = (case, finding)
        return True

    def _answer(self, case: Case) -> Answer:
        self._check_time()
        answer = self.answers.get(case)
        if answer is None:
            known = self.known.pop(case, None)
            answer = self.workers.ask(case) if known is None else known
            if self.how.only_sanitizer and answer.finding is not None and answer.finding.is_of_values:
                answer = dataclasses.replace(answer, finding=None)
            self.answers[case] = answer
            self._count(case, answer)
            if answer.fault is not None:
                self.faults.add(answer.fault)
        return answer

    def _size(self, case: Case) -> tuple[object, ...]:
        return self.operation.size(case, self.sizes)

    def _simplify(self) -> None:
        """Minimize the failure further, and store it for the next campaign even if interrupted."""
        assert self.smallest is not None
        try:
            with self.faults.listed("shrinking the failure"):
                simplify(
                    self.smallest[0],
                    lambda case: not self._is_declared(case) and self._run_and_record(case),
                    self.sizes,
                    self._expect_candidates,
                )
        finally:
            self.past.keep(self.smallest[0])

    def _expect_candidates(self, candidates: Iterable[Case]) -> None:
        self.workers.cancel_all()
        new = [case for case in dict.fromkeys(candidates) if case not in self.answers and not self._is_declared(case)]
        for case in new[: self.workers.candidates(len(new))]:
            self.workers.expect(case)

    def _count(self, case: Case, answer: Answer) -> None:
        if self.first is not None:
            return
        self.examples += 1
        self.unexamined += answer.finding is None and answer.fault is not None
        if answer.finding is None and answer.fault is None:
            self.log.counted(case, answer)
        if answer.refusal is not None:
            self.refusals[answer.refusal] += 1
        if answer.undecided is not None:
            self.undecided[answer.undecided] += 1
        ratio = answer.error_over_budget
        if answer.finding is None and ratio is not None and (self.hardest is None or ratio > self.hardest[0]):
            self.hardest = (ratio, case)
        parts = [0.0 if self.how.examples is None else self.examples / self.how.examples]
        if self.how.seconds is not None:
            parts.append((time.monotonic() - self.began) / self.how.seconds)
        self.progress(self.examples, min(1.0, max(parts)), "" if self.covering is None else self.covering.so_far)

    def _check_time(self) -> None:
        now = time.monotonic()
        if self.found_at is not None:
            if now - self.found_at > self.how.shrink_seconds:
                raise _TimeIsUp
        elif self.how.seconds is not None and now - self.began > self.how.seconds:
            raise _TimeIsUp

    def _failure(self) -> Failure:
        assert self.first is not None and self.smallest is not None
        case, finding = self.smallest
        more = look_into(
            self.smallest,
            self.operation,
            self.workers,
            self.sizes,
            self.faults,
            # Similar cases would be compared by their values as well.
            shrink_seconds=0.0 if self.how.only_sanitizer else self.how.shrink_seconds,
            sanitizes=self.sanitizes,
            known=self.answers,
        )
        larger_case, larger_finding = more.larger or self.first
        return Failure(
            case=case,
            finding=finding,
            tiles=more.tiles,
            takes=more.takes,
            first_case=self.first[0],
            first_finding=self.first[1],
            larger_case=larger_case,
            larger_finding=larger_finding,
            examples=self.found_after,
            shrinking=len(self.answers) - self.found_after,
            repeatable=more.repeatable,
            remembered=self.remembered,
            lengths=more.lengths,
            sanitized=more.sanitized,
        )
