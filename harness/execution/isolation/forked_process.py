"""A process that is forked from the server, with a pipe to it: started, and described when it has died.

Both planners and the workers of campaigns are such processes. Each is replaced by a fresh one after it was lost.
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
"""For a process to end that has closed its pipe."""


class ForkedProcess:
    """At most one process at a time, which subclasses end."""

    def __init__(self, load: Load | None) -> None:
        self._load = load
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._log = ProcessLog()
        self.started = 0
        """Processes started so far."""

    def _fork(
        self, serve: Callable[..., None], *arguments: Any, daemon: bool, pipes: Sequence[Connection] = ()
    ) -> BaseProcess:
        """Start a process that runs `serve(connection, load, log, surroundings, *pipes, *arguments)`.

        `pipes` are its ends of further pipes, which are closed here.
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
        """How the process ended, whose pipe has closed, and its last words."""
        assert self._process is not None
        self._process.join(timeout=END_SECONDS)
        if self._process.exitcode is None:
            return "its pipe closed"  # and is stopped, or goes on by itself: it is ended now
        words = self._log.last_words()
        return how_it_ended(self._process.exitcode) + (f"; its last words: {words}" if words else "")


@contextlib.contextmanager
def _main_module_for(load: Load | None) -> Iterator[None]:
    """Keep multiprocessing from running this process's script once more in a process that is started meanwhile.

    Only a process that is given a function `load` of that very script needs it.
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
