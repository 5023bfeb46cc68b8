"""Operates on process trees: lists the descendants of a process, sums their processor time, and kills them.

A process that adopts orphans (PR_SET_CHILD_SUBREAPER, prctl(2)) remains an ancestor of everything started below it,
even of processes that fork twice, start a session or close their descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_ENDING_SECONDS = 10.0
"""Time limit for killing all descendants; on a busy machine a signal takes some time to arrive."""
_LOOK_SECONDS = 0.001
_STOPPING_LOOKS, _ADOPTING_LOOKS = 100, 50


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents have ended, instead of process 1."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Make the kernel send SIGKILL to this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    return [each for each, parent in _parents().items() if parent == pid]


def descendants_of(pid: int) -> list[int]:
    """Return children, their children, and so on. Each parent precedes its children."""
    children: dict[int, list[int]] = {}
    for each, parent in _parents().items():
        children.setdefault(parent, []).append(each)
    found = list(children.get(pid, ()))
    for each in found:  # the list grows during the loop
        found += children.get(each, ())
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every process.

    Reads each /proc/PID/stat, as some kernels lack /proc/PID/task/TID/children.
    """
    stats = {int(name): stat_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: int(fields[1]) for pid, fields in stats.items() if fields}


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third one on; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            stat = file.read()
    except OSError:
        return []
    # The second field is the program's name in parentheses, which may contain spaces.
    return stat.rpartition(b")")[2].decode().split()


def tree_seconds(pid: int) -> float:
    """Processor time in seconds of a process and its descendants, including ended ones that were waited for.

    From /proc (proc(5), stat: fields 14 to 17, in clock ticks).
    """
    ticks = sum(int(field) for each in (pid, *descendants_of(pid)) for field in stat_fields(each)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def end_descendants(pid: int) -> None:
    """Kill all descendants of a process with SIGKILL. They are stopped first, so that they cannot start more.

    A child that was being started is found in the next pass, as a child of `pid` if that process adopts orphans.
    """
    until = time.monotonic() + _ENDING_SECONDS
    while (running := [each for each in descendants_of(pid) if _runs(each)]) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            _send(running, number)
        time.sleep(_LOOK_SECONDS)


def end_tree(pid: int) -> None:
    """Kill a process's descendants with SIGKILL, then the process itself, which adopts orphans until then.

    The process is stopped first, because a child that it was starting would not be found.
    """
    _send([pid], signal.SIGSTOP)
    for _ in range(_STOPPING_LOOKS):
        if not _runs(pid) or stat_fields(pid)[:1] in (["t"], ["T"]):
            break
        time.sleep(_LOOK_SECONDS)
    end_descendants(pid)
    _send([pid], signal.SIGKILL)


def end_children(spared: Iterable[int] = ()) -> None:
    """Kill this process's children, except those in `spared`, with all of their descendants, and wait for them."""
    for _ in range(_ADOPTING_LOOKS):  # meanwhile, orphans become children of this process
        found = set(children_of(os.getpid())).difference(spared)
        if not found:
            break
        for child in found:
            end_tree(child)
        for child in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _send(processes: Iterable[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie (Z) or dead (X)."""
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])
