"""Distributes a campaign's cases over the workers of a cluster. The campaign determines the cases and their order.

Cases are sent in batches, searches whole, and simpler cases of a failure one by one, all at the same time. Answers are
consumed in the campaign's order, so its findings depend neither on the number of workers nor on their speed.
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
"""Entries of the sequence per worker that are started ahead of their turn: about as many as each worker completes while
a sequential search covers half a round."""
BATCH_SECONDS = 0.25
"""Intended duration of a batch of cases."""
MOST_IN_BATCH = 32
FIRST_BATCH = 4


@dataclass(frozen=True)
class Assignment:
    """What a worker needs to know of a campaign; it is sent once."""

    name: str
    """Unique for each campaign, and for each restart of its processes."""
    load: Load
    machine: Machine
    case_seconds: float
    builds: tuple[Build, ...]


@dataclass(frozen=True)
class Batch:
    """Cases to examine in sequence."""

    assignment: Assignment
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class SearchOf:
    """A search to run."""

    assignment: Assignment
    search: Search


@dataclass(frozen=True)
class Description:
    """The variant's properties: the builds, features and declared failures of `Examiners`."""

    builds: tuple[Build, ...]
    takes: tuple[str, ...]
    fails_in: tuple[str, ...]


class _Stop(BaseException):
    """A case fails: the caller continues from here."""


# In a worker.


def begin(assignment: Assignment) -> None:
    """Start the assignment's process in this worker, without waiting until it is ready."""
    _examiner(assignment, wait=False)


def describe(assignment: Assignment) -> Description:
    """Query the variant's properties. Raises `SandboxError` if it cannot be loaded."""
    workers = _examiner(assignment)
    return Description(workers.builds, workers.takes, workers.fails_in)


def examine(batch: Batch) -> list[Answer]:
    """An answer for each case. Raises `Unfit` if no process can be started to examine them."""
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
    """The cases and answers of the search, in order, up to the first failure. Raises as `examine` does."""
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


# In the client.


class SpreadWorkers:
    """Examiners that use the workers of a cluster. A context manager for use by one thread."""

    def __init__(
        self, crew: Crew, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()
    ) -> None:
        """Parameters other than `crew` are as in `Worker`."""
        self._crew = crew
        self._assignment = Assignment(secrets.token_hex(8), load, machine, case_seconds, builds)
        self._said = Description(builds, (), ())
        self._batch: list[Case] = []
        self._jobs: dict[Case | Search, tuple[Job, int]] = {}
        """The started jobs, and the index of the case's answer within its batch."""
        self._batch_size = FIRST_BATCH
        self._is_shrinking = False
        self._began, self._answered = time.monotonic(), 0

    def __enter__(self) -> SpreadWorkers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.forget()

    @property
    def builds(self) -> tuple[Build, ...]:
        """The builds of kernels, with the variant's own tiles."""
        return self._said.builds

    @property
    def takes(self) -> tuple[str, ...]:
        """The problem features that the variant supports."""
        return self._said.takes

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""
        return self._said.fails_in

    def start(self) -> None:
        """Set up all workers, and query the variant's properties from one of them."""
        self._crew.equip(begin, self._assignment)
        self._said = self._crew.wait(self._crew.begin(describe, self._assignment))
        self._began = time.monotonic()

    def ahead(self, usual: int) -> int:
        """A multiple of the number of workers."""
        self._crew.attend()
        return ROUNDS_AHEAD * max(1, self._crew.size)

    def ahead_of(self, search: Search) -> int:
        """A multiple of the number of workers, as for other entries."""
        return self.ahead(0)

    def expect(self, case: Case) -> None:
        """Add the case to the current batch, and send the batch when it is full."""
        self._batch.append(case)
        if len(self._batch) >= self._batch_size:
            self._send()

    def expect_search(self, search: Search) -> None:
        """Send the search to a worker."""
        self._send()
        self._jobs[search] = self._crew.begin(make_search, SearchOf(self._assignment, search)), 0

    def searched(self, search: Search) -> Searched | None:
        """Wait for the result of an announced search; None if it was not announced or lost its worker."""
        if search not in self._jobs:
            return None
        job, _ = self._jobs.pop(search)
        try:
            found: Searched = self._crew.wait(job)
        except WorkerLost:
            return None  # the search runs here, so that a case that loses its worker is reported separately
        return found

    def candidates(self, number: int) -> int:
        """Up to four simpler cases per worker. From now on, batches have one case."""
        self._is_shrinking, self._batch_size = True, 1
        return min(number, 4 * max(1, self._crew.size))

    def ask(self, case: Case) -> Answer:
        """Wait for the answer to the case. A case that loses its worker is sent again on its own."""
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
        """Cancel all jobs."""
        self._crew.forget()
        self._jobs.clear()
        self._batch.clear()

    def end(self) -> None:
        """Cancel all jobs, and let workers start fresh processes for what follows."""
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
        """The answer to a case whose batch lost its workers; another case of the batch may be the cause."""
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
        """Adjust the batch size to take about `BATCH_SECONDS`, based on the cases so far."""
        if self._is_shrinking:
            self._batch_size = 1
            return
        seconds = (time.monotonic() - self._began) * max(1, self._crew.size) / self._answered
        self._batch_size = max(1, min(MOST_IN_BATCH, int(BATCH_SECONDS / max(seconds, 1e-4))))
