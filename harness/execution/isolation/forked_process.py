"""Base class for a process forked from the fork server: starts it, connects a pipe to it and reports how it ended.

Planners and the workers of fuzzing campaigns are such processes. Each one is replaced by a fresh one after it was lost.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from harness.execution.isolation.server import STARTING, Load, Surroundings, begin_server
from harness.support.processes.child_process import ProcessLog, how_it_ended

END_SECONDS = 5.0
"""Time limit for a process to end after it has closed its pipe."""


class ForkedProcess:
    """Owner of at most one forked process at a time. Subclasses end the process."""

    def __init__(self, load: Load | None) -> None:
        self._load = load
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._log = ProcessLog()
        self.started = 0
        """Number of processes started so far."""

    def _fork(
        self, serve: Callable[..., None], *arguments: Any, daemon: bool, pipes: Sequence[Connection] = ()
    ) -> BaseProcess:
        """Start a process that runs `serve(connection, load, log, surroundings, *pipes, *arguments)`.

        `pipes` are the child's ends of additional pipes. They are closed in this process.
        """
        context = begin_server()
        self._connection, theirs = context.Pipe()
        process = context.Process(
            target=serve,
            args=(theirs, self._load, self._log, Surroundings.of_this_process(), *pipes, *arguments),
            daemon=daemon,
        )
        with STARTING, _main_module_for(self._load):
            process.start()
        for each in (theirs, *pipes):
            each.close()
        self._process = process
        self.started += 1
        return process

    def _death(self) -> str:
        """Describe how a process whose pipe has closed ended, including its last output."""
        assert self._process is not None
        self._process.join(timeout=END_SECONDS)
        if self._process.exitcode is None:
            return "its pipe closed"  # a stopped or still running process; the caller ends it
        words = self._log.last_words()
        return how_it_ended(self._process.exitcode) + (f"; its last words: {words}" if words else "")


@contextlib.contextmanager
def _main_module_for(load: Load | None) -> Iterator[None]:
    """Hide `__main__`, so that a process started meanwhile does not run this process's script again.

    Does nothing if `load` is defined in that script, because the new process then needs to import it.
    """
    if getattr(getattr(load, "func", load), "__module__", None) == "__main__":
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
