"""A worker process as the campaign sees it: asked about cases, timed, and replaced when it dies or hangs.

Whatever a kernel does to its process (a segmentation fault, an endless loop) costs that process and becomes the answer
to the case; the next case meets a fresh one. The variant's own code is not even there: the worker, which knows the
oracle, asks a planner process of its own (`harness.execution.isolation`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
import time
from collections.abc import Hashable
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from harness.execution.isolation.server import Load
from harness.model.build import Build
from harness.model.case import Case
from harness.model.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer, Finding
from harness.studies.fuzz.worker import serve
from harness.support.child_process import (
    LOOK_SECONDS,
    how_it_ended,
    last_words,
    one_thread_for_numpy,
    processor_seconds,
)
from harness.support.errors import SandboxError

START_SECONDS = 120.0
"""Imports and, on a GPU, a context; a machine may be busy."""
COMPILE_SECONDS = 60.0
"""On top of the time for a case, where a worker may have to compile for it."""
PATIENCE = 20.0
"""How many times as long by the clock as by the processor: other work may be going on, and a GPU is waited for."""


class Worker:
    """Examines cases in a process of its own. A context manager; one thread may use it."""

    def __init__(self, load: Load, machine: Machine, case_seconds: float, builds: tuple[Build, ...] = ()) -> None:
        """`case_seconds`: how long one case may take once its kernels are compiled.

        Seconds of the processor, so that a busy machine does not make a slow kernel of a quick one.
        """
        self._load, self._machine, self._case_seconds = load, machine, case_seconds
        self.builds = builds
        """What kernels may have compiled in; once a process has started: what the variant takes, with its tiles."""
        self.takes: tuple[str, ...] = ()
        """The features of problems that the variant takes; known once a process has started."""
        self.fails_in: tuple[str, ...] = ()
        """Regimes in which the variant declares that it fails; known once a process has started."""
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None
        self._compiled: set[tuple[Hashable, ...]] = set()
        self._folder = tempfile.TemporaryDirectory(prefix="attention-sandbox-fuzz-")
        self._log = Path(self._folder.name, "worker.log")
        self.started = 0
        """Processes started so far."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
        self._folder.cleanup()

    def start(self) -> None:
        """A process that is ready. Raises `SandboxError` where the variant or the executor cannot be had there."""
        if self._process is not None:
            return
        # Spawned, not forked: CUDA and LLVM do not survive a fork, and nothing of the parent may be inherited.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=serve,
            args=(theirs, self._load, self._machine, self.builds, self._log),
            name="fuzz worker",
            daemon=False,  # it has a planner of its own
        )
        with one_thread_for_numpy():
            self._process.start()
        self.started += 1
        theirs.close()
        self._compiled = set()
        if not self._waited(START_SECONDS):
            self.end()
            raise SandboxError(f"a worker process was not ready within {START_SECONDS:g} s")
        try:
            said = self._connection.recv()
        except EOFError:
            reason = self._death()
            self.end()
            raise SandboxError(f"a worker process died while it loaded the variant: {reason}") from None
        if isinstance(said, str):
            self.end()
            raise SandboxError(said)
        if self.started == 1:
            self.builds, self.takes, self.fails_in = said

    def ask(self, case: Case) -> Answer:
        """What comes of `case`. A process that dies or hangs is the answer too. Raises as `start` does."""
        self.start()
        assert self._connection is not None and self._process is not None
        # What is compiled in varies by these, and so does what the sanitizer watches; a worker compiles, or loads from
        # the disk cache, each of them once.
        kernel = (case.problem.build_key, case.tile, case.check == SANITIZER)
        seconds = self._case_seconds + (0 if kernel in self._compiled else COMPILE_SECONDS)
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(case)
        if not self._answers_within(seconds):
            self.end()
            return Answer(
                Finding(
                    TIMEOUT,
                    f"no answer within {seconds:g} s: a kernel that never ends, or threads that wait for each other",
                )
            )
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            reason = self._death()
            self.end()
            return Answer(Finding(CRASH, reason))
        assert isinstance(answer, Answer)
        self._compiled.add(kernel)
        if answer.broken:
            self.end()
        return answer

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _answers_within(self, seconds: float) -> bool:
        """Whether it answers, or dies, before it has used the processor for so long."""
        assert self._process is not None and self._process.pid is not None
        if self._waited(LOOK_SECONDS):
            return True  # as nearly always
        began, used = time.monotonic(), processor_seconds(self._process.pid)
        while not self._waited(LOOK_SECONDS):
            if processor_seconds(self._process.pid) - used > seconds or time.monotonic() - began > PATIENCE * seconds:
                return False
        return True

    def _waited(self, seconds: float) -> bool:
        """Until it answers or dies; False where it does neither in time."""
        assert self._connection is not None and self._process is not None
        return bool(wait([self._connection, self._process.sentinel], timeout=seconds))

    def _death(self) -> str:
        """What became of the process, and its last words."""
        assert self._process is not None
        self._process.join()
        words = last_words(self._log)
        how = how_it_ended(self._process.exitcode)
        return f"the process that ran it ended with {how}" + (f"; its last words: {words}" if words else "")
