"""The local worker processes of one campaign: they examine upcoming cases concurrently.

A campaign knows most of its cases before it has the answers to earlier ones. Announced cases are started early,
preferably by a worker that has already loaded their kernel, since each worker compiles or loads kernels for itself. The
campaign determines the cases and their order, so its findings depend neither on the number of workers nor on their
speed.
"""

from __future__ import annotations

from multiprocessing.connection import wait

from harness.execution.isolation.server import Load
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.options.machine import Machine
from harness.studies.fuzz.drawing.search import Search
from harness.studies.fuzz.examining.examiners import Searched
from harness.studies.fuzz.examining.isolation import Kernel, Worker, kernel_of
from harness.studies.fuzz.finding import Answer
from harness.support.processes.child_process import LOOK_SECONDS

MOST_AHEAD = 64
"""Chosen cases that are announced ahead of their turn: as many short ones as take the time of a long one."""
AHEAD_OF_SEARCH = 2
"""Announced cases of the next round per example of a Hypothesis search, which uses one worker at a time."""
MOST_HANDED = 2
"""Maximum cases queued at a worker: the current one, and one to begin immediately after it."""


class Workers:
    """Processes that examine cases. A context manager for use by one thread."""

    def __init__(
        self, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = (), number: int = 1
    ) -> None:
        """`number` is the number of processes; the other parameters are as in `Worker`."""
        self._workers = [Worker(load, machine, case_seconds, builds) for _ in range(number)]
        self._first = self._workers[0]
        self._waiting: dict[Case, Kernel] = {}
        self._handed: set[Case] = set()
        self._answers: dict[Case, Answer] = {}
        self._keeps_first = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for worker in self._workers:
            worker.__exit__(*exception)

    @property
    def builds(self) -> tuple[Build, ...]:
        """The requested builds; after `start`, those that the variant supports, with its tiles."""
        return self._first.builds

    @property
    def takes(self) -> tuple[str, ...]:
        """The problem features that the variant supports."""
        return self._first.takes

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""
        return self._first.fails_in

    def begin(self) -> None:
        """Start the processes that do not run, without waiting for them."""
        for worker in self._workers:
            worker.begin()

    def start(self) -> None:
        """Wait until one process is ready; the others may take longer. Raises as `Worker.start` does."""
        self.begin()
        self._first.start()

    def ahead(self, usual: int) -> int:
        """`usual`, up to a maximum."""
        return min(usual, MOST_AHEAD)

    def ahead_of(self, search: Search) -> int:
        """A multiple of the search's examples."""
        return AHEAD_OF_SEARCH * search.examples

    def expect_search(self, search: Search) -> None:
        """Does nothing: the campaign searches by itself and asks about one case after the other."""

    def searched(self, search: Search) -> Searched | None:
        """None: the campaign searches by itself."""
        return None

    def candidates(self, number: int) -> int:
        """0: announcing does not pay, since most simpler cases fail, and a failing case may cost its process."""
        return 0

    def expect(self, case: Case) -> None:
        """Queue `case`, which is examined as soon as a worker is free. Raises as `start` does."""
        self._waiting[case] = kernel_of(case)
        self._collect()
        self._feed()

    def ask(self, case: Case) -> Answer:
        """The answer to `case`. A process that dies or hangs is an answer as well. Raises as `start` does."""
        is_expected = case in self._answers or case in self._handed or case in self._waiting
        # An unannounced case is likely to be followed by others, which would wait behind the queue.
        self._keeps_first = not is_expected
        self._waiting.pop(case, None)
        if case not in self._answers and case not in self._handed:
            self._hand(min(self._ready(), key=lambda worker: worker.load), case)
        self._collect()
        self._feed()
        while case not in self._answers:
            wait([each for worker in self._workers if worker.load for each in worker.resume()], timeout=LOOK_SECONDS)
            self._collect()
            self._feed()
        return self._answers.pop(case)

    def cancel_all(self) -> None:
        """Cancel all queued cases."""
        self._waiting.clear()
        self._handed.clear()
        self._answers.clear()

    def end(self) -> None:
        """End the processes. The next case runs in a fresh one."""
        self.cancel_all()
        for worker in self._workers:
            worker.end()

    def _ready(self) -> list[Worker]:
        """Workers that are ready. The first one always is, by waiting for it."""
        return [self._first, *(worker for worker in self._workers[1:] if worker.is_ready())]

    def _hand(self, worker: Worker, case: Case) -> None:
        self._handed.add(case)
        worker.hand(case)

    def _feed(self) -> None:
        ready = self._ready()
        for worker in ready[1:] if self._keeps_first else ready:
            while self._waiting and worker.load < MOST_HANDED:
                case = self._fitting(worker)
                del self._waiting[case]
                self._hand(worker, case)

    def _fitting(self, worker: Worker) -> Case:
        """The oldest queued case with kernels that this worker has loaded, else that no other has, else the oldest."""
        others = set[Kernel]().union(*(other.met for other in self._workers if other is not worker))
        among = self._waiting.items()
        own = next((case for case, kernel in among if kernel in worker.met), None)
        new = own or next((case for case, kernel in among if kernel not in others), None)
        return new or next(iter(self._waiting))

    def _collect(self) -> None:
        for worker in self._workers:
            while (found := worker.collect()) is not None:
                case, answer = found
                if case in self._handed:  # otherwise it was cancelled
                    self._handed.remove(case)
                    self._answers[case] = answer
