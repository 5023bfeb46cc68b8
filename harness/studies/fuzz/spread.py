"""A campaign's cases spread over the workers of a crew. What is asked, in which order, stays the campaign's own affair.

Cases go in batches, searches as a whole; simpler cases of a failure go one by one, all of them at once. An answer is
looked at when it is its turn, so what a campaign finds does not depend on how many workers there are, nor on which of
them is the quicker.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from harness.execution.cluster.crew import Crew
from harness.execution.cluster.job import Job, WorkerLost
from harness.execution.cluster.shipping import load_here
from harness.execution.cluster.worker_side import Unfit, is_abandoned, state
from harness.execution.isolation.server import Load
from harness.model.build import Build
from harness.model.case import Case
from harness.options.machine import Machine
from harness.studies.fuzz.examiners import Searched
from harness.studies.fuzz.finding import CRASH, Answer, Finding
from harness.studies.fuzz.search import Held, Search
from harness.studies.fuzz.workers import Workers
from harness.support.errors import SandboxError

ROUNDS_AHEAD = 96
"""Entries of the sequence per worker that are begun before their turn: about as many as there are, per worker, while a
search, which is one after the other, is at the examples of half a round."""
BATCH_SECONDS = 0.25
"""What a batch of cases is to take."""
MOST_IN_BATCH = 32
FIRST_BATCH = 4


@dataclass(frozen=True)
class Assignment:
    """What a worker has to know of a campaign, once."""

    name: str
    """Different for each campaign, and for each fresh start of its processes."""
    load: Load
    machine: Machine
    case_seconds: float
    builds: tuple[Build, ...]


@dataclass(frozen=True)
class Batch:
    """Cases to examine one after the other."""

    assignment: Assignment
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class SearchOf:
    """A search to make."""

    assignment: Assignment
    search: Search


@dataclass(frozen=True)
class Description:
    """What a variant says of itself: see `Examiners`."""

    builds: tuple[Build, ...]
    takes: tuple[str, ...]
    fails_in: tuple[str, ...]


class _Stop(BaseException):
    """Something fails: whoever asked goes on from here."""


# In a worker.


def begin(assignment: Assignment) -> None:
    """Start its process, without waiting until it is ready."""
    _examiner(assignment, wait=False)


def describe(assignment: Assignment) -> Description:
    """What the variant says of itself. Raises `SandboxError` where it cannot be had."""
    workers = _examiner(assignment)
    return Description(workers.builds, workers.takes, workers.fails_in)


def examine(batch: Batch) -> list[Answer]:
    """An answer for each case. Raises `Unfit` where no process can be had that examines them."""
    workers = _examiner(batch.assignment)
    try:
        for case in batch.cases:
            workers.expect(case)
        return [workers.ask(case) for case in batch.cases if not is_abandoned()]
    except SandboxError as error:
        raise Unfit(str(error)) from error
    finally:
        workers.forget()


def make_search(asked: SearchOf) -> list[tuple[Case, Answer]]:
    """What the search met, in order, up to the first that fails. Raises as `examine` does."""
    workers = _examiner(asked.assignment)
    met: dict[Case, Answer] = {}

    def hold(case: Case) -> Held:
        if is_abandoned():
            raise _Stop
        answer = met.get(case)
        if answer is None:
            try:
                answer = met[case] = workers.ask(case)
            except SandboxError as error:
                raise _Stop(str(error)) from error
        if answer.finding is not None:
            raise _Stop
        return False, answer.error_over_budget

    try:
        asked.search.run(hold)
    except _Stop as stop:
        if stop.args:
            raise Unfit(*stop.args) from stop.__cause__
    return list(met.items())


def _examiner(assignment: Assignment, wait: bool = True) -> Workers:
    def make() -> Workers:
        return Workers(load_here(assignment.load), assignment.machine, assignment.case_seconds, assignment.builds)

    workers: Workers = state(f"campaign:{assignment.name}", make)
    if wait:
        workers.start()
    else:
        workers.begin()
    return workers


# At the client.


class SpreadWorkers:
    """`Examiners` that are a crew's. A context manager; one thread may use it."""

    def __init__(
        self, crew: Crew, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()
    ) -> None:
        """For what is not the crew, see `Worker`."""
        self._crew = crew
        self._assignment = Assignment(secrets.token_hex(8), load, machine, case_seconds, builds)
        self._said = Description(builds, (), ())
        self._batch: list[Case] = []
        self._jobs: dict[Case | Search, tuple[Job, int]] = {}
        """What was begun, and which place of a batch's answers is its own."""
        self._batch_size = FIRST_BATCH
        self._is_shrinking = False
        self._began, self._answered = time.monotonic(), 0

    def __enter__(self) -> SpreadWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.forget()

    @property
    def builds(self) -> tuple[Build, ...]:
        """See `Examiners`."""
        return self._said.builds

    @property
    def takes(self) -> tuple[str, ...]:
        """See `Examiners`."""
        return self._said.takes

    @property
    def fails_in(self) -> tuple[str, ...]:
        """See `Examiners`."""
        return self._said.fails_in

    def start(self) -> None:
        """See `Examiners`."""
        self._crew.equip(begin, self._assignment)
        self._said = self._crew.wait(self._crew.begin(describe, self._assignment))
        self._began = time.monotonic()

    def ahead(self, usual: int) -> int:
        """See `Examiners`."""
        self._crew.attend()
        return ROUNDS_AHEAD * max(1, self._crew.size)

    def ahead_of(self, search: Search) -> int:
        """See `Examiners`."""
        return self.ahead(0)

    def expect(self, case: Case) -> None:
        """See `Examiners`."""
        self._batch.append(case)
        if len(self._batch) >= self._batch_size:
            self._send()

    def expect_search(self, search: Search) -> None:
        """See `Examiners`."""
        self._send()
        self._jobs[search] = self._crew.begin(make_search, SearchOf(self._assignment, search)), 0

    def searched(self, search: Search) -> Searched | None:
        """See `Examiners`."""
        if search not in self._jobs:
            return None
        job, _ = self._jobs.pop(search)
        try:
            found: Searched = self._crew.wait(job)
        except WorkerLost:
            return None  # it is made here, where each case that loses its worker is told on its own
        return found

    def candidates(self, number: int) -> int:
        """See `Examiners`."""
        self._is_shrinking, self._batch_size = True, 1
        return min(number, 4 * max(1, self._crew.size))

    def ask(self, case: Case) -> Answer:
        """See `Examiners`."""
        if case in self._batch:
            self._send()
        if case not in self._jobs:
            self._begin((case,), first=True)
        job, place = self._jobs.pop(case)
        try:
            answer: Answer = self._crew.wait(job)[place]
        except WorkerLost as lost:
            answer = self._alone(case, job, lost)
        self._answered += 1
        self._adapt()
        return answer

    def forget(self) -> None:
        """See `Examiners`."""
        self._crew.forget()
        self._jobs.clear()
        self._batch.clear()

    def end(self) -> None:
        """See `Examiners`."""
        self.forget()
        old = self._assignment
        self._assignment = Assignment(secrets.token_hex(8), old.load, old.machine, old.case_seconds, old.builds)

    def _send(self) -> None:
        if self._batch:
            self._begin(tuple(self._batch))
            self._batch.clear()

    def _begin(self, cases: tuple[Case, ...], first: bool = False) -> None:
        job = self._crew.begin(examine, Batch(self._assignment, cases), first=first)
        for place, case in enumerate(cases):
            self._jobs[case] = job, place

    def _alone(self, case: Case, job: Job, lost: WorkerLost) -> Answer:
        """A case of a batch that lost its workers: it need not be the guilty one."""
        batch: Batch = job.argument
        if len(batch.cases) > 1:
            self._begin((case,), first=True)
            alone, _ = self._jobs.pop(case)
            try:
                answers: list[Answer] = self._crew.wait(alone)
                return answers[0]
            except WorkerLost as error:
                lost = error
        return Answer(Finding(CRASH, str(lost)))

    def _adapt(self) -> None:
        """Batches that take about `BATCH_SECONDS`, by what cases took so far."""
        if self._is_shrinking:
            self._batch_size = 1
            return
        seconds = (time.monotonic() - self._began) * max(1, self._crew.size) / self._answered
        self._batch_size = max(1, min(MOST_IN_BATCH, int(BATCH_SECONDS / max(seconds, 1e-4))))
