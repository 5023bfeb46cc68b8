"""A planner process as the judge sees it: started, asked, timed, and replaced when it dies or hangs."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

from harness.execution.isolation.plugin_output import PluginOutput
from harness.execution.isolation.replies import Json, Malformed, checked, data_of, error_from_json
from harness.execution.isolation.server import STARTING, Load, Surroundings, begin_server, enter
from harness.support import child_process
from harness.support.child_process import CpuTimeSample, ProcessLog, how_it_ended
from harness.support.errors import PlannerDied, PlannerHung, SandboxError
from harness.support.memory import available_bytes
from harness.support.process_tree import end_tree

LOAD_SECONDS = 60.0
"""Importing a module, or the packages that a first plan needs. Seconds of the processor, as all of these are."""
CALL_SECONDS = 10.0
"""Planning and the like: milliseconds, where nothing is wrong."""
COMPILE_SECONDS = 300.0
"""A large kernel takes a minute."""
RUN_SECONDS = 600.0
"""A native run, with its timing."""
PATIENCE = 6.0
"""How many times as long by the clock: other work may be going on, and who sleeps uses no processor."""
END_SECONDS = 5.0
"""For a process to end that has closed its pipe."""
OUTPUT_SECONDS = 2.0
"""For the last that an ended process has printed to be read."""
MEMORY_SHARE = 0.8
"""Of the memory that is available when a planner starts."""
LEAST_PLANNER_BYTES = 2**31
"""Compiling a large kernel takes this much, wherever the memory comes from."""
LARGEST_MESSAGE_BYTES = 2**28
"""More than any plan or PTX text has; arrays are as large as they are known to be."""


class _NoAnswer(Exception):
    """There was none in time."""


_alive: weakref.WeakSet[PlannerProcess] = weakref.WeakSet()
_none_may_start = threading.Event()


def end_planners() -> None:
    """End every planner of this process, whatever it is doing.

    Threads that still ask meanwhile get `PlannerDied`, rather than a new process that would have to be waited for.
    """
    _none_may_start.set()
    try:
        for process in list(_alive):
            process.end()
    finally:
        _none_may_start.clear()


class PlannerProcess:
    """One planner, and the next one where that is lost. Threads take turns."""

    def __init__(self, load: Load | None = None, packages: Sequence[str] = ()) -> None:
        """`load` makes its one variant; None where it is asked for variants of any origin.

        `packages` are imported before anything is asked, if they can be.
        """
        self._load, self._packages = load, tuple(packages)
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._lifeline: Connection | None = None
        self._output: PluginOutput | None = None
        self._dropped: weakref.finalize[..., PlannerProcess] | None = None
        self._lock = threading.RLock()
        self._log = ProcessLog()
        self._asked: set[str] = set()
        self._requests = 0
        self.generation = 0
        """Processes started so far: what an earlier one handed out is lost."""
        self.loading: Json = None
        """The origin that was announced last."""

    def start(self) -> None:
        """A process, if there is none. Does not wait until it is ready. Raises `PlannerDied` within `end_planners`."""
        with self._lock:
            if self._process is not None:
                return
            with STARTING:
                if _none_may_start.is_set():
                    raise PlannerDied("all of them were ended")
                self._start()

    def _start(self) -> None:
        context = begin_server()
        self._connection, theirs = context.Pipe()
        # It reads from a pipe that only this process writes to, and never does: see `planner.serve`.
        lifeline, self._lifeline = context.Pipe(duplex=False)
        printed, output = context.Pipe(duplex=False)
        process = context.Process(
            target=enter,
            args=(
                theirs,
                lifeline,
                output,
                self._load,
                self._packages,
                self._log,
                planner_bytes(),
                Surroundings.of_this_process(),
            ),
            name="planner",
            daemon=True,
        )
        with main_module_for(self._load):
            process.start()
        self._process = process
        # Where this object is dropped without `end`: multiprocessing would send SIGTERM, and wait. The folder is there
        # for as long as the process, which may still have to open its log.
        self._dropped = weakref.finalize(self, _kill, self._process)
        theirs.close()
        lifeline.close()
        output.close()
        self._output = PluginOutput(printed)
        self._asked.clear()
        self.loading = None
        self.generation += 1
        _alive.add(self)

    def ask(self, what: str, seconds: float | None = None, **said: Json) -> Json:
        """The answer. Raises what was raised there, `PlannerDied` or `PlannerHung` where none came.

        `seconds`: how long it may take; None: as planning does. The first request about an origin may take as long as
        importing it.
        """
        return self.ask_for_arrays(what, CALL_SECONDS if seconds is None else seconds, **said)[0]

    def ask_for_arrays(
        self, what: str, seconds: float, arrays: tuple[Any, ...] = (), most_bytes: int = 0, **said: Json
    ) -> tuple[Json, list[bytes]]:
        """The same, with arrays of bytes, each of at most `most_bytes`, besides the answer."""
        with self._lock:
            self.start()
            origin = str(said.get("origin"))
            if origin not in self._asked:
                seconds += LOAD_SECONDS
            assert self._connection is not None
            with self._losses(seconds):
                with contextlib.suppress(BrokenPipeError):
                    self._requests += 1
                    request = {"what": what, "number": self._requests, "arrays": len(arrays), **said}
                    self._connection.send_bytes(json.dumps(request).encode())
                    for array in arrays:
                        self._connection.send_bytes(array)
                reply = self._received(seconds)
                while "loading" in reply:
                    self.loading = reply["loading"]
                    reply = self._received(seconds)
                self._asked.add(origin)
                if "error" in reply:
                    raise error_from_json(reply["error"])
                answer = reply.get("answer")
                number = checked(answer.get("arrays", 0), int) if isinstance(answer, dict) and most_bytes else 0
                return answer, [self._received_bytes(seconds, most_bytes) for _ in range(number)]

    def end(self) -> None:
        """End the process and all that it has started, whatever they are doing."""
        process = self._process
        if process is not None:
            _kill(process)  # without the lock: a thread that waits for an answer has it
        with self._lock:
            if self._process is not None:
                _kill(self._process)
                self._process.join()
                self._process = None
            if self._dropped is not None:
                self._dropped.detach()
            if self._output is not None:
                self._output.finish(OUTPUT_SECONDS)
                self._output = None
            for connection in (self._connection, self._lifeline):
                if connection is not None:
                    connection.close()
            self._connection = self._lifeline = None

    @contextlib.contextmanager
    def _losses(self, seconds: float) -> Iterator[None]:
        """A process that gives no answer, or none that can be understood, is ended."""
        try:
            yield
        except (EOFError, OSError):
            reason = self._death()
            self.end()
            raise PlannerDied(f"the process that ran it ended with {reason}") from None
        except _NoAnswer:
            self.end()
            raise PlannerHung(
                f"no answer within {seconds:g} s of the processor, or {PATIENCE * seconds:g} s in all: it never ends"
            ) from None
        except (Malformed, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            self.end()
            raise PlannerDied(f"the process that ran it answered what was not asked: {error}") from None
        except BaseException as error:
            if not isinstance(error, SandboxError):
                self.end()  # an answer that nobody waits for any more must not be taken for the next one
            raise

    def _received(self, seconds: float) -> dict[str, Json]:
        """The next message of the request that was sent last: others may have been written by a plugin."""
        reply: dict[str, Json] = checked(data_of(self._received_bytes(seconds, LARGEST_MESSAGE_BYTES)), dict)
        if reply.get("number") != self._requests:
            raise Malformed(f"request {self._requests} got the reply to {reply.get('number')!r:.20}")
        return reply

    def _received_bytes(self, seconds: float, most_bytes: int) -> bytes:
        """The next message. Raises `_NoAnswer` once the process has used the processor for so long, or waited."""
        assert self._connection is not None and self._process is not None
        if not self._connection.poll(child_process.LOOK_SECONDS):
            pid = self._process.pid
            assert pid is not None
            began = CpuTimeSample.of_tree(pid)
            while not self._connection.poll(child_process.LOOK_SECONDS):
                if self._process.exitcode is not None:
                    raise EOFError
                if CpuTimeSample.of_tree(pid).seconds_since(began, PATIENCE) > seconds:
                    raise _NoAnswer
        return self._connection.recv_bytes(most_bytes)

    def _death(self) -> str:
        """What became of the process, and its last words."""
        assert self._process is not None
        self._process.join(timeout=END_SECONDS)
        if self._process.exitcode is None:
            return "its pipe closed"  # and is stopped, or goes on by itself: it is ended now
        words = self._log.last_words()
        return how_it_ended(self._process.exitcode) + (f"; its last words: {words}" if words else "")


def planner_bytes() -> int:
    """How much a planner may allocate: most of the memory that is there, so that it meets an error, and nobody else."""
    return max(LEAST_PLANNER_BYTES, int(MEMORY_SHARE * available_bytes()))


def _kill(process: BaseProcess, *held: object) -> None:
    """End a process and its descendants; what is `held` is there for as long as they are."""
    if process.exitcode is None and process.pid is not None:
        end_tree(process.pid)


@contextlib.contextmanager
def main_module_for(load: Load | None) -> Iterator[None]:
    """A process that is started meanwhile does not run this one's script once more, as multiprocessing would have it.

    Only where it is handed a function `load` of that very script does it need it.
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
