"""Monitors a child process that runs user code: its processor time, its exit status, and its last output."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from harness.support.processes.process_tree import stat_fields, tree_seconds

LOOK_SECONDS = 0.25
"""Interval in seconds at which a process's processor time is read."""
CRASH_BEGINS = "Fatal Python error: "
"""The beginning of faulthandler's report, before it lists each thread's stack."""
LAST_WORDS = 400
"""Maximum characters reported of the last output of a process that died."""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), "1")
"""Environment variables that make NumPy multiply matrices on one core, if set before NumPy is loaded. The oracle's
matrices are small; on a busy machine, synchronizing threads makes multiplying them a hundred times slower."""
_ROOT = str(Path(__file__).resolve().parents[3])


def processor_seconds(pid: int) -> float:
    """Processor time in seconds of a process of this user, summed over threads; 0 once it has ended.

    From /proc (proc(5), stat: fields 14 and 15 are user and system time in clock ticks).
    """
    return sum(map(int, stat_fields(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def import_path() -> dict[str, str]:
    """Environment variables with which Python imports this harness from any folder.

    From Python 3.11 on, they also prevent imports from the working directory.
    """
    return {
        "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONSAFEPATH": "1",
    }


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

    It is deleted with the last process that has it open, so no temporary file remains. The file is passed to a child as
    an argument; the child only writes to it.
    """

    def __init__(self) -> None:
        # Stays open as long as this object exists.
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
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for processes that are started in this context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
