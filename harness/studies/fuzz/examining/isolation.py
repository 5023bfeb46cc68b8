"""The parent's side of a worker process that examines cases.

It enforces time limits and replaces a process that dies or hangs. Whatever a kernel does to its process (a segmentation
fault, an endless loop) becomes the answer to the current case; the next case runs in a fresh process. The variant's own
code does not run there: the worker, which knows the oracle, delegates it to a planner process
(`harness.execution.isolation`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Hashable
from multiprocessing.connection import Connection, wait

from harness.execution.isolation.server import Load, preload
from harness.execution.isolation.worker_process import WorkerProcess
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.examining.worker import IN_PROGRESS, serve
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer, Finding
from harness.support.errors import SandboxError
from harness.support.processes.child_process import LOOK_SECONDS, CpuTimeSample

START_SECONDS = 120.0
"""Time limit for imports and, on a GPU, a context, on a busy machine."""
COMPILE_SECONDS = 60.0
"""Time added to a case's limit if the worker may have to compile for it."""
PATIENCE = 20.0
"""Ratio of the wall-clock limit to the processor-time limit, because of other load and waits for a GPU."""
STEADY = 6.0
"""Factor on the time limit of a case whose thread blocks keep finishing: slow, but not stuck."""
SANITIZED = 10.0
"""Factor on the time limit of a sanitized case, which runs several times and slowly."""


Kernel = tuple[Hashable, ...]
"""Cases with an equal one share their kernels."""


class Worker(WorkerProcess):
    """Examines cases in a process of its own. A context manager; one thread may use it."""

    def __init__(self, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()) -> None:
        """`case_seconds` limits the time of a case, after compilation, until one of its thread blocks finishes.

        It is processor time, so that a busy machine does not make a fast kernel slow. The limit is larger for the
        sanitizer, and for a case whose blocks keep finishing.
        """
        super().__init__()
        self._load, self._machine, self._case_seconds = load, machine, case_seconds
        self.builds = builds
        """The requested builds; after the first start, those that the variant supports, with its tiles."""
        self.takes: tuple[str, ...] = ()
        """Problem features that the variant supports; known after the first start."""
        self.fails_in: tuple[str, ...] = ()
        """Regimes in which the variant declares that it fails; known once a process has started."""
        self._is_ready = False
        self._handed: deque[Case] = deque()
        self._looked_at = 0.0
        self._begun: CpuTimeSample | None = None
        """When the process was first seen at its oldest case."""
        self._progressed: CpuTimeSample | None = None
        """When it was first seen so after it was last heard of."""
        self._compiled: set[Kernel] = set()
        self.met: set[Kernel] = set()
        """Kernels of the cases that its process was given."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._log.close()

    def begin(self) -> None:
        """Start a process if there is none, without waiting until it is ready."""
        if self._process is not None:
            return
        # Spawned, not forked: CUDA and LLVM do not survive a fork, and the child must inherit no state.
        preload(serve.__module__)
        self._start_process(serve, self._load, self._machine, self.builds, daemon=False)  # it has a planner of its own
        self._compiled, self.met = set(), set()

    def start(self) -> None:
        """Start a process and wait until it is ready.

        Raises `SandboxError` if the variant or the executor cannot be loaded there.
        """
        self.begin()
        if not self.is_ready(START_SECONDS):
            self.end()
            raise SandboxError(f"a worker process was not ready within {START_SECONDS:g} s")

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for the process to be ready, and return whether it is. Raises as `start` does."""
        if self._is_ready:
            return True
        if self._process is None or not self._waited(seconds):
            return False
        assert self._connection is not None
        try:
            said = self._connection.recv()
        except (EOFError, ConnectionResetError):
            reason = self._death()
            self.end()
            raise SandboxError(
                f"a worker process died while it loaded the variant: the process that ran it ended with {reason}"
            ) from None
        if isinstance(said, str):
            self.end()
            raise SandboxError(said)
        self._is_ready = True
        if self.started == 1:
            self.builds, self.takes, self.fails_in = said
        return True

    def ask(self, case: Case) -> Answer:
        """The answer to `case`. A process that dies or hangs is an answer as well. Raises as `start` does."""
        self.hand(case)
        while (found := self.collect()) is None:
            wait(self.resume(), timeout=LOOK_SECONDS)
        return found[1]

    @property
    def load(self) -> int:
        """Number of cases that were sent and whose answers were not yet collected."""
        return len(self._handed)

    def hand(self, case: Case) -> None:
        """Queue a case for the process. Raises as `start` does."""
        self.resume()
        self._handed.append(case)
        self.met.add(kernel_of(case))
        if len(self._handed) == 1:
            self._begin_oldest()
        self._send(case)

    def resume(self) -> list[Connection | int]:
        """The objects to wait on for answers.

        A fresh process is started with the queued cases if the last one was lost. Raises as `start` does.
        """
        if not self._is_ready:
            self.start()
            self._begin_oldest()
            for case in self._handed:
                self._send(case)
        assert self._process is not None and self._connection is not None
        return [self._connection, self._process.sentinel]

    def collect(self) -> tuple[Case, Answer] | None:
        """The oldest queued case with its answer, if available; the death or hang of its process is an answer as well.

        The cases queued behind it then go to a fresh process.
        """
        if not self._handed or not self._is_ready:
            return None
        case = self._handed[0]
        answer = None
        while answer is None and self._waited(0.0):
            answer = self._received(case)
        if answer is None:
            reason = self._overdue(self.seconds_for(case))
            if reason is None:
                return None
            self._lose()
            answer = Answer(Finding(TIMEOUT, reason))
        self._handed.popleft()
        self._begin_oldest()
        return case, answer

    def end(self) -> None:
        """Kill the process and clear the queue."""
        self._handed.clear()
        self._lose()

    def _lose(self) -> None:
        self._end_process()
        self._is_ready = False

    def _send(self, case: Case) -> None:
        assert self._connection is not None
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(case)

    def _received(self, case: Case) -> Answer | None:
        """The process's answer to its oldest case; None while the case is running."""
        assert self._connection is not None
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            reason = self._death()
            self._lose()
            return Answer(Finding(CRASH, f"the process that ran it ended with {reason}"))
        if answer == IN_PROGRESS:
            self._progressed = None
            return None
        assert isinstance(answer, Answer)
        self._compiled.add(kernel_of(case))
        if answer.broken:
            self._lose()
        return answer

    def _begin_oldest(self) -> None:
        """Reset the clock: the process begins its oldest case now."""
        self._looked_at, self._begun, self._progressed = time.monotonic(), None, None

    def seconds_for(self, case: Case) -> float:
        """Limit of processor time for `case` to answer or to finish a thread block."""
        looked_at = self._machine.settings.sanitize or case.check == SANITIZER
        once = 0 if kernel_of(case) in self._compiled else COMPILE_SECONDS
        return (self._case_seconds + once) * (SANITIZED if looked_at else 1)

    def _overdue(self, seconds: float) -> str | None:
        """Why the process exceeded its limit; None if it did not. Samples its processor time now and then."""
        if time.monotonic() < self._looked_at + LOOK_SECONDS:
            return None  # the common case
        assert self._process is not None and self._process.pid is not None
        now = CpuTimeSample.of(self._process.pid)
        self._looked_at = now.clock
        self._begun = self._begun or now
        self._progressed = self._progressed or now
        if now.seconds_since(self._progressed, PATIENCE) > seconds:
            return f"no answer within {seconds:g} s: the kernel does not end, or its threads wait for each other"
        if now.seconds_since(self._begun, PATIENCE) > STEADY * seconds:
            return f"no answer within {STEADY * seconds:g} s: blocks end, but others keep starting"
        return None

    def _waited(self, seconds: float) -> bool:
        """Wait for a message or for the death of the process; False after `seconds` without either."""
        assert self._connection is not None and self._process is not None
        return bool(wait([self._connection, self._process.sentinel], timeout=seconds))


def kernel_of(case: Case) -> Kernel:
    """The values that determine compilation, including the kind of mask, and those that determine sanitizing.

    A worker compiles each combination once, or loads it from the disk cache.
    """
    return case.problem.build_key, case.problem.features, case.tile, case.check == SANITIZER
