"""Compiles in worker processes, because llvmlite and Python's interpreter lock each allow only one thread per process.

A worker is a child process that reads jobs from its standard input and writes answers to its standard output. It ends
when its input is closed, even during a job, so it never outlives its parent. A crash of LLVM ends only the worker.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from typing import IO, Any, Protocol

from harness.emulator.instruments import Instruments
from harness.emulator.native.tier import Tier
from harness.support.errors import CompileError, SandboxError, UnsupportedInstruction
from harness.support.processes.child_process import import_path
from harness.support.processes.privileges import protect_memory

_JOB = struct.Struct("<cQ")  # kind of job or answer, and the number of bytes that follow
_ERRORS: dict[str, type[SandboxError]] = {e.__name__: e for e in (CompileError, UnsupportedInstruction)}
_KERNEL, _PART, _DONE, _REFUSED = b"K", b"P", b"D", b"E"
_POLITENESS = 10
"""Increment of a worker's nice value. Workers compile kernels while Numba still generates PTX for others, which takes
the longest and should not share its core."""
# Ctrl-C is handled by the parent, whose end closes the worker's input. If possible, the worker has no session of its
# own: Linux divides processor time among sessions first, so each worker would get as much as all other processes
# together.
_APART: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


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


class CompileWorker:
    """Compiler in a separate process, which starts with the first job. Not thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def build_kernel(self, ptx: str, entry: str, instruments: Instruments, tier: Tier) -> bytes:
        """Build a kernel's facts and object file. Raises `CompileError` or `UnsupportedInstruction`."""
        return self._ask(_KERNEL, json.dumps([ptx, entry, asdict(instruments), tier.value]).encode())

    def build_part(self, name: str) -> bytes:
        """Build the object file of a part of the runtime."""
        return self._ask(_PART, name.encode())

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

    def _ask(self, job: bytes, payload: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            _send(process.stdin, job, payload)
            answer, content = _receive(process.stdout)
        except (OSError, EOFError) as error:
            self.close()
            raise CompileError("LLVM ended without an answer on this kernel; please report it") from error
        if answer == _REFUSED:
            kind, message = json.loads(content)
            raise _ERRORS[kind](message)
        return content

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **import_path()},
                **_APART,
            )
        return self._process


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


def _send(stream: IO[bytes], kind: bytes, payload: bytes) -> None:
    stream.write(_JOB.pack(kind, len(payload)))
    stream.write(payload)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    header = stream.read(_JOB.size)
    if len(header) < _JOB.size:
        raise EOFError
    kind, length = _JOB.unpack(header)
    payload = stream.read(length)
    if len(payload) < length:
        raise EOFError
    return kind, payload


def _serve() -> None:
    protect_memory()  # the judge executes the code that is compiled here
    os.nice(_POLITENESS)
    # Output that a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # The many small objects of a kernel live until it is compiled, so garbage collection would find nothing.
    gc.disable()
    jobs: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        job, payload = jobs.get()
        try:
            result = THIS_PROCESS.build_part(payload.decode()) if job == _PART else _build_kernel(payload)
            _send(answers, _DONE, result)
        except tuple(_ERRORS.values()) as error:
            _send(answers, _REFUSED, json.dumps([type(error).__name__, str(error)]).encode())
        gc.collect()
        gc.freeze()  # the remaining objects are modules and caches; exclude them from collection


def _read_jobs(jobs: queue.SimpleQueue[tuple[bytes, bytes]]) -> None:
    while True:
        try:
            jobs.put(_receive(sys.stdin.buffer))
        except EOFError:
            os._exit(0)


def _build_kernel(payload: bytes) -> bytes:
    ptx, entry, instruments, tier = json.loads(payload)
    return THIS_PROCESS.build_kernel(ptx, entry, Instruments(**instruments), Tier(tier))


if __name__ == "__main__":
    _serve()
