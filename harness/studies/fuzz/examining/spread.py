"""Distributes a campaign's cases over the workers of a cluster. The campaign determines the cases and their order.

Cases are sent in batches, searches whole, and simpler cases of a failure one by one, all at the same time. Answers are
consumed in the campaign's order, so its findings depend neither on the number of workers nor on their speed.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from dataclasses import dataclass

from harness.execution.cluster.cluster_client import ClusterClient, Task, WorkerLost
from harness.execution.cluster.shipping import load_here
from harness.execution.cluster.worker_side import Unfit, is_cancelled, state
from harness.execution.isolation.server import Load
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.options.machine import Machine
from harness.studies.fuzz.drawing.search import CaseResult, Search
from harness.studies.fuzz.examining.examiners import Searched
from harness.studies.fuzz.examining.workers import Workers
from harness.studies.fuzz.finding import CRASH, Answer, Finding
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
class Description:
    """What a variant declares: the fields that `Examiners` has of it."""

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


def examine(assignment: Assignment, cases: tuple[Case, ...]) -> list[Answer]:
    """An answer for each case. Raises `Unfit` if no process can be started that examines them."""
    workers = _examiner(assignment)
    try:
        for case in cases:
            workers.expect(case)
        return [workers.ask(case) for case in cases if not is_cancelled()]
    except SandboxError as error:
        raise Unfit(str(error)) from error
    finally:
        workers.cancel_all()


def make_search(assignment: Assignment, search: Search) -> list[tuple[Case, Answer]]:
    """The cases of a search with their answers, up to the first that fails. Raises as `examine` does."""
    workers = _examiner(assignment)
    met: dict[Case, Answer] = {}

    def check(case: Case) -> CaseResult:
        if is_cancelled():
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
        search.run(check)
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


class ClusterExaminers:
    """Examiners that use the workers of a cluster. A context manager for use by one thread."""

    def __init__(
        self, cluster: ClusterClient, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()
    ) -> None:
        """For all arguments but `cluster`, see `Worker`."""
        self._cluster = cluster
        self._assignment = Assignment(secrets.token_hex(8), load, machine, case_seconds, builds)
        self._description = Description(builds, (), ())
        self._batch: list[Case] = []
        self._tasks: dict[Case | Search, tuple[Task, int]] = {}
        """What was submitted: its task, and its place in that task's answers."""
        self._batch_size = FIRST_BATCH
        self._is_shrinking = False
        self._began, self._answered = time.monotonic(), 0

    def __enter__(self) -> ClusterExaminers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel_all()

    @property
    def builds(self) -> tuple[Build, ...]:
        """What kernels may have compiled in, with the variant's own tiles."""
        return self._description.builds

    @property
    def takes(self) -> tuple[str, ...]:
        """The features of problems that the variant takes."""
        return self._description.takes

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""
        return self._description.fails_in

    def start(self) -> None:
        """Start processes in all workers, and wait until one of them has loaded the variant."""
        self._cluster.broadcast_setup(begin, self._assignment)
        self._description = self._cluster.result(self._cluster.submit(describe, self._assignment))
        self._began = time.monotonic()

    def ahead(self, usual: int) -> int:
        """How many entries of the sequence to submit before their turn."""
        self._cluster.poll()
        return ROUNDS_AHEAD * max(1, self._cluster.size)

    def ahead_of(self, search: Search) -> int:
        """How many entries to submit while a search runs: as many as without one."""
        return self.ahead(0)

    def expect(self, case: Case) -> None:
        """Submit `case`, in a batch with those expected before and after it."""
        self._batch.append(case)
        if len(self._batch) >= self._batch_size:
            self._submit_batch()

    def expect_search(self, search: Search) -> None:
        """Submit a whole search as one task."""
        self._submit_batch()
        self._tasks[search] = self._cluster.submit(make_search, self._assignment, search), 0

    def searched(self, search: Search) -> Searched | None:
        """The outcome of a submitted search; None if the caller has to make it itself."""
        if search not in self._tasks:
            return None
        task, _ = self._tasks.pop(search)
        try:
            found: Searched = self._cluster.result(task)
        except WorkerLost:
            return None  # the search runs here, so that a case that loses its worker is reported separately
        return found

    def candidates(self, number: int) -> int:
        """Up to four simpler cases per worker. From now on, batches have one case."""
        self._is_shrinking, self._batch_size = True, 1
        return min(number, 4 * max(1, self._cluster.size))

    def ask(self, case: Case) -> Answer:
        """Wait for the answer to the case. A case that loses its worker is sent again on its own."""
        if case in self._batch:
            self._submit_batch()
        if case not in self._tasks:
            self._submit((case,), first=True)
        task, place = self._tasks.pop(case)
        try:
            answer: Answer = self._cluster.result(task)[place]
        except WorkerLost as lost:
            answer = self._answer_alone(case, task, lost)
        self._answered += 1
        self._adapt_batch_size()
        return answer

    def cancel_all(self) -> None:
        """Cancel everything that is expected."""
        self._cluster.cancel_all()
        self._tasks.clear()
        self._batch.clear()

    def end(self) -> None:
        """Let the next case run in a fresh process."""
        self.cancel_all()
        self._assignment = dataclasses.replace(self._assignment, name=secrets.token_hex(8))

    def _submit_batch(self) -> None:
        if self._batch:
            self._submit(tuple(self._batch))
            self._batch.clear()

    def _submit(self, cases: tuple[Case, ...], first: bool = False) -> None:
        task = self._cluster.submit(examine, self._assignment, cases, first=first)
        for place, case in enumerate(cases):
            self._tasks[case] = task, place

    def _answer_alone(self, case: Case, task: Task, lost: WorkerLost) -> Answer:
        """The answer to a case whose batch lost its workers, examined without the others of its batch."""
        if len(task.arguments[1]) > 1:
            self._submit((case,), first=True)
            alone, _ = self._tasks.pop(case)
            try:
                answers: list[Answer] = self._cluster.result(alone)
                return answers[0]
            except WorkerLost as error:
                lost = error
        return Answer(Finding(CRASH, str(lost)))

    def _adapt_batch_size(self) -> None:
        """Let a batch take about `BATCH_SECONDS`, by the cases so far."""
        if self._is_shrinking:
            return
        seconds = (time.monotonic() - self._began) * max(1, self._cluster.size) / self._answered
        self._batch_size = max(1, min(MOST_IN_BATCH, int(BATCH_SECONDS / max(seconds, 1e-4))))
