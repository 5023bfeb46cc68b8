"""Monitors a child process that runs user code: its processor time, its exit status, and its last output."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from harness.support.process_tree import tree_seconds

LOOK_SECONDS = 0.25
"""Interval at which a process's processor time is read."""
CRASH_BEGINS = "Fatal Python error: "
"""The beginning of faulthandler's report, before it lists each thread's stack."""
LAST_WORDS = 400
"""Maximum number of characters of a dying process's output that are reported."""
THREADS_OF_NUMPY = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


def processor_seconds(pid: int) -> float:
    """Processor time in seconds of a process of this user, summed over threads; 0 once it has ended.

    From /proc (proc(5), stat: fields 14 and 15 are user and system time in clock ticks).
    """
    try:
        # The second field is the program's name in parentheses, which may contain blanks.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class CpuTimeSample:
    """A sample of the wall clock and of a process's processor time."""

    clock: float
    processor: float

    @classmethod
    def of(cls, pid: int) -> CpuTimeSample:
        """Sample a process now."""
        return cls(time.monotonic(), processor_seconds(pid))

    @classmethod
    def of_tree(cls, pid: int) -> CpuTimeSample:
        """Sample a process and all of its descendants now."""
        return cls(time.monotonic(), tree_seconds(pid))

    def seconds_since(self, before: CpuTimeSample, patience: float) -> float:
        """Elapsed processor time, or elapsed wall-clock time / `patience` if that is more, in seconds."""
        return max(self.processor - before.processor, (self.clock - before.clock) / patience)


def how_it_ended(code: int | None) -> str:
    """Describe an exit code as Python returns it: `exit status 3`, `signal SIGSEGV`."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def last_words(log: Path) -> str:
    """The reason for a crash from a log, in one line: the place of the crash, or the end of the output."""
    return _last_words_of(log.read_text(errors="backslashreplace") if log.exists() else "")


class ProcessLog:
    """An unnamed file that a child process writes to and its parent reads.

    It is deleted with the last process that has it open, so no temporary file remains. A child receives it as an
    argument and does not read it.
    """

    def __init__(self) -> None:
        # Stays open as long as its owner exists.
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._inherited: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_inherited": reduction.DupFd(self._file.fileno())}

    def begin(self) -> int:
        """In a child: truncate the file. Returns its descriptor."""
        descriptor: int = self._inherited.detach()
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def last_words(self) -> str:
        """In the parent: the reason for a crash, as in the function `last_words`."""
        # The file offset is shared with the child, which may be writing, so it is not moved.
        descriptor = self._file.fileno()
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return _last_words_of(content.decode(errors="backslashreplace"))

    def close(self) -> None:
        """Close the file; it cannot be read afterwards."""
        self._file.close()


def _last_words_of(text: str) -> str:
    _, crash, place = text.rpartition(CRASH_BEGINS)
    return " ".join((crash + place[:LAST_WORDS] if crash else text[-LAST_WORDS:]).split())


@contextlib.contextmanager
def one_thread_for_numpy() -> Iterator[None]:
    """A context manager: NumPy uses one core in processes that are started within the block.

    The oracle's matrices are small, and threads that wait for each other on a busy machine slow it down a hundredfold.
    NumPy reads these variables when it is loaded, so they have to be set before the process starts.
    """
    before = {name: os.environ.get(name) for name in THREADS_OF_NUMPY}
    os.environ.update(dict.fromkeys(THREADS_OF_NUMPY, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
