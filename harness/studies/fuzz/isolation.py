"""The campaign's side of a worker process: cases with a time limit, and a fresh process after it died or hung.

Whatever a kernel does to its process (a segmentation fault, an endless loop) costs that process and becomes the answer
to the case that it was at; the next case meets a fresh one. The variant's own code is not even there: the worker, which
knows the oracle, asks a planner process of its own (`harness.execution.isolation`).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Hashable
from multiprocessing.connection import Connection, wait

from harness.execution.isolation.forked_process import ForkedProcess
from harness.execution.isolation.server import Load, preload
from harness.model.build import Build
from harness.model.case import Case
from harness.model.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer, Finding
from harness.studies.fuzz.worker import IN_PROGRESS, serve
from harness.support.child_process import LOOK_SECONDS, CpuTimeSample
from harness.support.errors import SandboxError

START_SECONDS = 120.0
"""Imports and, on a GPU, a context; a machine may be busy."""
COMPILE_SECONDS = 60.0
"""On top of the time for a case, where a worker may have to compile for it."""
PATIENCE = 20.0
"""How many times as long by the clock as by the processor: other work may be going on, and a GPU is waited for."""
STEADY = 6.0
"""How many times as long a case may take of which one thread block after the other ends: slow, but not stuck."""
SANITIZED = 10.0
"""How many times as long a case may take that the sanitizer looks at, which runs it several times and slowly."""


Kernel = tuple[Hashable, ...]
"""Cases with an equal one share their kernels."""


class Worker(ForkedProcess):
    """Examines cases in a process of its own. A context manager; one thread may use it."""

    def __init__(self, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()) -> None:
        """`case_seconds`: how long a case may go on, once its kernels are compiled, until a thread block of it ends.

        Seconds of the processor, so that a busy machine does not make a slow kernel of a quick one. The sanitizer has
        more, and so has a case of which blocks do end.
        """
        super().__init__(load)
        self._machine, self._case_seconds = machine, case_seconds
        self.builds = builds
        """What kernels may have compiled in; once a process has started: what the variant takes, with its tiles."""
        self.takes: tuple[str, ...] = ()
        """The features of problems that the variant takes; known once a process has started."""
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
        """Start a process, if there is none, without waiting until it is ready."""
        if self._process is not None:
            return
        # Not forked from this process: CUDA and LLVM do not survive a fork, and nothing of it may be inherited.
        preload(serve.__module__)
        self._fork(serve, self._machine, self.builds, daemon=False)  # it has a planner of its own
        self._compiled, self.met = set(), set()

    def start(self) -> None:
        """A process that is ready. Raises `SandboxError` where the variant or the executor cannot be had there."""
        self.begin()
        if not self.is_ready(START_SECONDS):
            self.end()
            raise SandboxError(f"a worker process was not ready within {START_SECONDS:g} s")

    def is_ready(self, seconds: float = 0.0) -> bool:
        """Whether the process that was begun has loaded the variant, within that time. Raises as `start` does."""
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
        """What comes of `case`. A process that dies or hangs is the answer too. Raises as `start` does."""
        self.hand(case)
        while (found := self.collect()) is None:
            wait(self.resume(), timeout=LOOK_SECONDS)
        return found[1]

    @property
    def load(self) -> int:
        """Cases that were handed over and not yet collected."""
        return len(self._handed)

    def hand(self, case: Case) -> None:
        """Let the process examine `case` after those that it has. Raises as `start` does."""
        self.resume()
        self._handed.append(case)
        self.met.add(kernel_of(case))
        if len(self._handed) == 1:
            self._begin_oldest()
        self._send(case)

    def resume(self) -> list[Connection | int]:
        """What to wait for, of a process that has all that was handed over: a fresh one if the last one is lost.

        Raises as `start` does.
        """
        if not self._is_ready:
            self.start()
            self._begin_oldest()
            for case in self._handed:
                self._send(case)
        assert self._process is not None and self._connection is not None
        return [self._connection, self._process.sentinel]

    def collect(self) -> tuple[Case, Answer] | None:
        """The oldest case that was handed over, if its answer is there by now. That its process died or hangs is one.

        What was handed over after it is for a fresh process then.
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
        """End the process, whatever it is doing; nothing is handed over any more."""
        self._handed.clear()
        self._lose()

    def _lose(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._is_ready = False

    def _send(self, case: Case) -> None:
        assert self._connection is not None
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(case)

    def _received(self, case: Case) -> Answer | None:
        """What the process says of its oldest case; None where that goes on."""
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
        """The process gets to its oldest case now."""
        self._looked_at, self._begun, self._progressed = time.monotonic(), None, None

    def seconds_for(self, case: Case) -> float:
        """How long `case` may go on without an answer or a thread block that ends, in seconds of the processor."""
        looked_at = self._machine.sanitize or case.check == SANITIZER
        once = 0 if kernel_of(case) in self._compiled else COMPILE_SECONDS
        return (self._case_seconds + once) * (SANITIZED if looked_at else 1)

    def _overdue(self, seconds: float) -> str | None:
        """What to say of a process that is at its oldest case for too long. Looks at it now and then."""
        if time.monotonic() < self._looked_at + LOOK_SECONDS:
            return None  # as nearly always
        assert self._process is not None and self._process.pid is not None
        now = CpuTimeSample.of(self._process.pid)
        self._looked_at = now.clock
        self._begun = self._begun or now
        self._progressed = self._progressed or now
        if now.seconds_since(self._progressed, PATIENCE) > seconds:
            return f"no answer within {seconds:g} s: a kernel that never ends, or threads that wait for each other"
        if now.seconds_since(self._begun, PATIENCE) > STEADY * seconds:
            return f"no answer within {STEADY * seconds:g} s: its thread blocks end, but there is no end of them"
        return None

    def _waited(self, seconds: float) -> bool:
        """Until it says something or dies; False where it does neither in time."""
        assert self._connection is not None and self._process is not None
        return bool(wait([self._connection, self._process.sentinel], timeout=seconds))


def kernel_of(case: Case) -> Kernel:
    """What is compiled in varies by this, masks' kinds among it, and so does what the sanitizer watches.

    A worker compiles, or loads from the disk cache, each of them once.
    """
    return case.problem.build_key, case.problem.features, case.tile, case.check == SANITIZER
