"""The supervisor of worker processes: starts one, connects a pipe to it, reports how it ended, and ends it.

Planners, compile workers, the workers of fuzzing campaigns and the processes of a local cluster are such processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from harness.execution.isolation.server import STARTING, Surroundings, begin_server
from harness.support.processes.child_process import ProcessLog, environment, how_it_ended, import_path
from harness.support.processes.process_tree import end_tree

END_SECONDS = 5.0
"""Time limit for a process to end after it has closed its pipe."""


class WorkerProcess:
    """Owner of at most one process at a time. A lost process is replaced by starting another one."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._log = ProcessLog()
        self.started = 0
        """Number of processes started so far."""

    def _start_process(
        self,
        serve: Callable[..., None],
        *arguments: Any,
        daemon: bool = True,
        pipes: Sequence[Connection] = (),
        method: Literal["forkserver", "spawn"] = "forkserver",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> BaseProcess:
        """Start a process that runs `serve(connection, log, *pipes, *arguments)` in this process's surroundings.

        `pipes` are the child's ends of additional pipes. They are closed in this process. A process that is forked from
        the server starts fast and has dropped its privileges; a spawned one retains them. `variables` are added to its
        environment. Ctrl-C does not reach it.
        """
        self._connection, theirs = multiprocessing.Pipe()
        context: Any = begin_server() if method == "forkserver" else multiprocessing.get_context("spawn")
        surroundings = Surroundings.of_this_process(variables)
        process: BaseProcess = context.Process(
            target=_run, args=(serve, surroundings, theirs, self._log, *pipes, *arguments), daemon=daemon
        )
        with STARTING, _main_module_for(arguments), environment({**import_path(), **variables}):
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a spawned process inherits it
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for each in (theirs, *pipes):
            each.close()
        self._process = process
        self.started += 1
        return process

    def _end_process(self, seconds: float = 0.0) -> None:
        """Kill the process with its descendants; before that, close the pipe and wait up to `seconds` for its end.

        Without a wait, the pipe closes afterwards: a process that begins to end its own children must not be killed
        halfway, since it stops them first.
        """
        if self._connection is not None and seconds:
            self._connection.close()
        if self._process is not None:
            self._process.join(seconds)
            kill(self._process)
            self._process.join()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _death(self) -> str:
        """Describe how a process whose pipe has closed ended, including its last output."""
        assert self._process is not None
        self._process.join(timeout=END_SECONDS)
        if self._process.exitcode is None:
            return "its pipe closed"  # a stopped or still running process; the caller ends it
        words = self._log.last_words()
        return how_it_ended(self._process.exitcode) + (f"; its last words: {words}" if words else "")


def kill(process: BaseProcess) -> None:
    """Kill a process and its descendants, if it is running."""
    if process.exitcode is None and process.pid is not None:
        end_tree(process.pid)


def attach(log: ProcessLog, before_end: Callable[[], object] = lambda: None) -> None:
    """In a worker process: write all output to `log`, and end when the parent ends, even during a task.

    `before_end` is called then.
    """
    descriptor = log.begin()
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    faulthandler.enable()
    threading.Thread(target=_end_with_parent, args=(before_end,), daemon=True).start()


def _end_with_parent(before_end: Callable[[], object]) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    before_end()
    os._exit(1)


def _run(serve: Callable[..., None], surroundings: Surroundings, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    surroundings.take_on()
    serve(*arguments)


@contextlib.contextmanager
def _main_module_for(arguments: Sequence[Any]) -> Iterator[None]:
    """Hide `__main__`, so that a process started meanwhile does not run this process's script again.

    Does nothing if an argument is defined in that script, because the new process then needs to import it.
    """
    if any(getattr(getattr(each, "func", each), "__module__", None) == "__main__" for each in arguments):
        yield
        return
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
