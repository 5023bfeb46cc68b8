"""Compiles in worker processes, because llvmlite and Python's interpreter lock each allow only one thread per process.

A worker ends with its parent, even during a job. A crash of LLVM ends only the worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

from harness.emulator.instruments import Instruments
from harness.emulator.native.tier import Tier
from harness.execution.isolation.worker_process import END_SECONDS, WorkerProcess, attach
from harness.support.errors import CompileError, SandboxError, UnsupportedInstruction
from harness.support.processes.child_process import ProcessLog

_POLITENESS = 10
"""Increment of a worker's nice value. Workers compile kernels while Numba still generates PTX for others, which takes
the longest and should not share its core."""


class Compiler(Protocol):
    """Builds native code of kernels and of the runtime."""

    def build_kernel(self, ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
        """Build a kernel (`kernel_build.build_kernel`). Raises `CompileError` or `UnsupportedInstruction`."""
        ...

    def build_part(self, name: str) -> bytes:
        """Build the object file of a part of the runtime (`runtime_build`)."""
        ...


class _ThisProcess:
    """Compiler that runs in this process."""

    def build_kernel(self, ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
        from harness.emulator.native.kernel_build import build_kernel

        return build_kernel(ptx, entry, instruments, tier)

    def build_part(self, name: str) -> bytes:
        from harness.emulator.native.runtime_build import build_part

        return build_part(name)


THIS_PROCESS: Compiler = _ThisProcess()


class CompileWorker(WorkerProcess):
    """Compiler in a separate process, which starts with the first job. Not thread-safe."""

    def build_kernel(self, ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
        """Build a kernel's facts and object file. Raises `CompileError` or `UnsupportedInstruction`."""
        return self._ask("build_kernel", ptx, entry, instruments, tier)

    def build_part(self, name: str) -> bytes:
        """Build the object file of a part of the runtime."""
        return self._ask("build_part", name)

    def close(self) -> None:
        """End the process."""
        self._end_process(END_SECONDS)

    def _ask(self, function: str, *arguments: Any) -> bytes:
        if self._process is None:
            self._start_process(_serve)
        assert self._connection is not None
        try:
            self._connection.send((function, arguments))
            answer: bytes | SandboxError = self._connection.recv()
        except (OSError, EOFError) as error:
            reason = self._death()
            self._end_process()
            raise CompileError(f"LLVM ended without an answer on this kernel ({reason}); please report it") from error
        except BaseException:
            self._end_process()  # so that a late answer is not read as the answer to the next job
            raise
        if isinstance(answer, SandboxError):
            raise answer
        return answer


class WorkerPool:
    """Pool of at most `most` workers.

    Each is used by one thread; further threads wait. The workers end with the pool.
    """

    def __init__(self, most: int) -> None:
        self._idle: list[CompileWorker] = []
        self._lock = threading.Lock()
        self._free = threading.Semaphore(most)
        weakref.finalize(self, _close_all, self._idle)

    @contextlib.contextmanager
    def borrow(self) -> Iterator[CompileWorker]:
        """Context with a worker for the exclusive use of this thread."""
        with self._free:
            with self._lock:
                worker = self._idle.pop() if self._idle else CompileWorker()
            try:
                yield worker
            finally:
                with self._lock:
                    self._idle.append(worker)


def _close_all(workers: list[CompileWorker]) -> None:
    for worker in workers:
        worker.close()


def _serve(connection: Connection, log: ProcessLog) -> None:
    """Answer jobs with what the function returned or the error that it raised, until the pipe closes."""
    attach(log)
    os.setpgid(0, 0)
    os.nice(_POLITENESS)
    # The many small objects of a kernel live until it is compiled, so garbage collection would find nothing.
    gc.disable()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, arguments = connection.recv()
            try:
                connection.send(getattr(THIS_PROCESS, function)(*arguments))
            except (CompileError, UnsupportedInstruction) as error:
                connection.send(error)
            gc.collect()
            gc.freeze()  # the remaining objects are modules and caches; exclude them from collection
