"""The workers of one campaign: while one examines a case, the others are at those that are known to come after it.

A campaign knows most of its cases before it knows what came of the ones before them. What it expects to ask is begun
early, by a worker that has its kernels, where there is one: a kernel is compiled, or loaded, by each worker for itself.
What the campaign asks and in which order stays its own affair, so that what it finds does not depend on how many
workers there are, nor on which is the quicker.
"""

from __future__ import annotations

from multiprocessing.connection import wait

from harness.execution.isolation.server import Load
from harness.model.build import Build
from harness.model.case import Case
from harness.options.machine import Machine
from harness.studies.fuzz.examiners import Searched
from harness.studies.fuzz.finding import Answer
from harness.studies.fuzz.isolation import Kernel, Worker, kernel_of
from harness.studies.fuzz.search import Search
from harness.support.child_process import LOOK_SECONDS

MOST_AHEAD = 64
"""Chosen cases that are drawn and not yet asked about: as many as short ones take a long one's time."""
AHEAD_OF_SEARCH = 2
"""Of the next round's, per example of Hypothesis's, who takes turns with one worker while the others are at them."""
MOST_HANDED = 2
"""Cases that a worker has at a time: the one that it is at, and one to begin at once after it."""


class Workers:
    """Processes that examine cases. A context manager; one thread may use it."""

    def __init__(
        self, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = (), number: int = 1
    ) -> None:
        """`number` of processes; for the others, see `Worker`."""
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
        """What kernels may have compiled in, with the variant's own tiles."""
        return self._first.builds

    @property
    def takes(self) -> tuple[str, ...]:
        """The features of problems that the variant takes."""
        return self._first.takes

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""
        return self._first.fails_in

    def begin(self) -> None:
        """Start the processes, where there are none, without waiting for them."""
        for worker in self._workers:
            worker.begin()

    def start(self) -> None:
        """One that is ready; the others may take longer. Raises as `Worker.start` does."""
        self.begin()
        self._first.start()

    def ahead(self, usual: int) -> int:
        """How many entries of the sequence to expect before their turn."""
        return min(usual, MOST_AHEAD)

    def ahead_of(self, search: Search) -> int:
        """How many entries to expect while that search runs."""
        return AHEAD_OF_SEARCH * search.examples

    def expect_search(self, search: Search) -> None:
        """The campaign searches itself, and asks about one case after the other."""

    def searched(self, search: Search) -> Searched | None:
        """None: the campaign searches itself."""
        return None

    def candidates(self, number: int) -> int:
        """What fails in its process costs that, and most simpler cases of what fails fail."""
        return 0

    def expect(self, case: Case) -> None:
        """Examine `case` as soon as a worker is free. Raises as `start` does."""
        self._waiting[case] = kernel_of(case)
        self._collect()
        self._feed()

    def ask(self, case: Case) -> Answer:
        """What comes of `case`. A process that dies or hangs is the answer too. Raises as `start` does."""
        is_expected = case in self._answers or case in self._handed or case in self._waiting
        # Whoever asks about what was not expected is going to do so again, and would wait behind what is.
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

    def forget(self) -> None:
        """Nothing is expected any more."""
        self._waiting.clear()
        self._handed.clear()
        self._answers.clear()

    def end(self) -> None:
        """End the processes, whatever they are doing; the next case meets a fresh one."""
        self.forget()
        for worker in self._workers:
            worker.end()

    def _ready(self) -> list[Worker]:
        """The first one always is: it is waited for."""
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
        """The oldest that waits whose kernels this worker has met, else that no other has; else the oldest of all."""
        others = set[Kernel]().union(*(other.met for other in self._workers if other is not worker))
        among = self._waiting.items()
        own = next((case for case, kernel in among if kernel in worker.met), None)
        new = own or next((case for case, kernel in among if kernel not in others), None)
        return new or next(iter(self._waiting))

    def _collect(self) -> None:
        for worker in self._workers:
            while (found := worker.collect()) is not None:
                case, answer = found
                if case in self._handed:  # else it was forgotten
                    self._handed.remove(case)
                    self._answers[case] = answer
