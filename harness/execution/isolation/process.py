"""Runs a planner process from the judge's side: sends requests with time limits, restarts it after a crash or hang."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from harness.execution.isolation.plugin_output import PluginOutput
from harness.execution.isolation.replies import Json, Malformed, checked, data_of, error_from_json
from harness.execution.isolation.server import STARTING, Load, enter
from harness.execution.isolation.worker_process import WorkerProcess, kill
from harness.support.errors import PlannerDied, PlannerHung, SandboxError
from harness.support.memory import available_bytes
from harness.support.processes import child_process
from harness.support.processes.child_process import CpuTimeSample

LOAD_SECONDS = 60.0
"""Limit for importing a module, or the packages that a first plan needs. All limits are seconds of processor time."""
CALL_SECONDS = 10.0
"""Limit for planning and similar requests, which normally take milliseconds."""
COMPILE_SECONDS = 300.0
"""Limit for compiling a kernel; a large one takes a minute."""
RUN_SECONDS = 600.0
"""Limit for a native run, including its timing."""
PATIENCE = 6.0
"""Wall-clock limit as a multiple of the processor-time limit, since a process that sleeps uses no processor time."""
OUTPUT_SECONDS = 2.0
"""Time limit for reading what a process printed before it ended."""
MEMORY_SHARE = 0.8
"""Maximum share of the available memory that a planner may allocate."""
LEAST_PLANNER_BYTES = 2**31
"""Least memory limit of a planner: compiling a large kernel takes this much, even where less is available."""
LARGEST_MESSAGE_BYTES = 2**28
"""Maximum size of a message without arrays, larger than any plan or PTX text. Arrays have limits of their known
sizes."""


class _NoAnswer(Exception):
    """Raised if no reply came in time."""


_alive: weakref.WeakSet[PlannerProcess] = weakref.WeakSet()
_none_may_start = threading.Event()


def end_planners() -> None:
    """End all planners of this process, including those that are answering a request.

    Pending requests of other threads raise `PlannerDied`, and no new process starts meanwhile.
    """
    _none_may_start.set()
    try:
        for process in list(_alive):
            process.end()
    finally:
        _none_may_start.clear()


class PlannerProcess(WorkerProcess):
    """Manages one planner process, which is replaced after a crash or hang. Requests from threads are serialized."""

    def __init__(self, load: Load | None = None, packages: Sequence[str] = ()) -> None:
        """Configure the process, which the first request starts.

        `load` creates its only variant; with None, it serves variants of any origin. `packages` are imported before the
        first request if they are installed.
        """
        super().__init__()
        self._load = load
        self._packages = tuple(packages)
        self._lifeline: Connection | None = None
        self._output: PluginOutput | None = None
        self._dropped: weakref.finalize[..., PlannerProcess] | None = None
        self._lock = threading.RLock()
        self._asked: set[str] = set()
        self._requests = 0
        self.loading: Json = None
        """The origin whose import was announced last; None before the first."""

    def start(self) -> None:
        """Start a process if none is running, without waiting for it. Raises `PlannerDied` during `end_planners`."""
        with self._lock:
            if self._process is not None:
                return
            with STARTING:
                if _none_may_start.is_set():
                    raise PlannerDied("all of them were ended")
                self._start()

    def _start(self) -> None:
        # Nothing is ever written to this pipe. It breaks when this process ends, which ends the planner.
        lifeline, self._lifeline = Pipe(duplex=False)
        printed, output = Pipe(duplex=False)
        process = self._start_process(enter, self._load, self._packages, planner_bytes(), pipes=(lifeline, output))
        # If this object is garbage-collected without `end`, multiprocessing would send SIGTERM and wait. Kill it
        # instead.
        self._dropped = weakref.finalize(self, kill, process)
        self._output = PluginOutput(printed)
        self._asked.clear()
        self.loading = None
        _alive.add(self)

    def ask(self, what: str, seconds: float | None = None, **said: Json) -> Json:
        """Send a request and return the answer. Raises the planner's exception, `PlannerDied` or `PlannerHung`.

        `seconds` is the limit in processor time, by default `CALL_SECONDS`. The first request about an origin gets
        `LOAD_SECONDS` more.
        """
        return self.ask_for_arrays(what, CALL_SECONDS if seconds is None else seconds, **said)[0]

    def ask_for_arrays(
        self, what: str, seconds: float, arrays: tuple[Any, ...] = (), most_bytes: int = 0, **said: Json
    ) -> tuple[Json, list[bytes]]:
        """Send a request with arrays. Returns the answer and its arrays, each of at most `most_bytes`."""
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
        """Kill the process and all of its descendants."""
        process = self._process
        if process is not None:
            kill(process)  # without the lock, which a thread that waits for an answer holds
        with self._lock:
            self._end_process()
            if self._dropped is not None:
                self._dropped.detach()
            if self._output is not None:
                self._output.finish(OUTPUT_SECONDS)
                self._output = None
            if self._lifeline is not None:
                self._lifeline.close()
                self._lifeline = None

    @contextlib.contextmanager
    def _losses(self, seconds: float) -> Iterator[None]:
        """End the process if it does not answer, or if its answer is malformed."""
        try:
            yield
        except (EOFError, OSError):
            reason = self._death()
            self.end()
            raise PlannerDied(f"the process that ran it ended with {reason}") from None
        except _NoAnswer:
            self.end()
            raise PlannerHung(
                f"no answer within {seconds:g} s of CPU time, or {PATIENCE * seconds:g} s in total: it does not end"
            ) from None
        except (Malformed, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError) as error:
            self.end()
            raise PlannerDied(f"the process that ran it sent an unexpected answer: {error}") from None
        except BaseException as error:
            if not isinstance(error, SandboxError):
                self.end()  # so that a late answer is not read as the answer to the next request
            raise

    def _received(self, seconds: float) -> dict[str, Json]:
        """Return the next message for the current request. Raises `Malformed` if it belongs to another one."""
        reply: dict[str, Json] = checked(data_of(self._received_bytes(seconds, LARGEST_MESSAGE_BYTES)), dict)
        if reply.get("number") != self._requests:
            raise Malformed(f"request {self._requests} got the reply to {reply.get('number')!r:.20}")
        return reply

    def _received_bytes(self, seconds: float, most_bytes: int) -> bytes:
        """Return the next message.

        Raises `_NoAnswer` after `seconds` of processor time, or `PATIENCE` times as long in all.
        """
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


def planner_bytes() -> int:
    """Return the memory limit of a planner in bytes, less than is available so that it runs out before others do."""
    return max(LEAST_PLANNER_BYTES, int(MEMORY_SHARE * available_bytes()))
