"""A process with all that descends from it: listed, its processor time added up, and ended as a whole.

A process that adopts orphans (PR_SET_CHILD_SUBREAPER, prctl(2)) stays an ancestor of all that is ever started below it,
whatever forks twice, starts a session or closes its descriptors there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_ENDING_SECONDS = 10.0
"""For all descendants to be ended; on a busy machine a signal takes some time to arrive."""
_LOOK_SECONDS = 0.001
_STOPPING_LOOKS, _ADOPTING_LOOKS = 100, 50


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents have ended; otherwise process 1 would."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Let the kernel end this process, by SIGKILL, as soon as its parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def children_of(pid: int) -> list[int]:
    """The processes that this one is the parent of."""
    return [each for each, parent in _parents().items() if parent == pid]


def descendants_of(pid: int) -> list[int]:
    """Children, their children, and so on, each parent before its children."""
    children: dict[int, list[int]] = {}
    for each, parent in _parents().items():
        children.setdefault(parent, []).append(each)
    found = list(children.get(pid, ()))
    for each in found:  # which grows meanwhile
        found += children.get(each, ())
    return found


def _parents() -> dict[int, int]:
    """Every process with its parent, by one look at each: /proc/PID/task/TID/children is not in every kernel."""
    stats = {int(name): stat_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: int(fields[1]) for pid, fields in stats.items() if fields}


def stat_fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the third one on; none once it is gone."""
    try:
        # The second field is the program's name in parentheses, which may hold blanks.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tree_seconds(pid: int) -> float:
    """Seconds of the processor that a process and its descendants have used, ended ones that were waited for too.

    From /proc (proc(5), stat: fields 14 to 17, in clock ticks).
    """
    ticks = sum(int(field) for each in (pid, *descendants_of(pid)) for field in stat_fields(each)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def end_descendants(pid: int) -> None:
    """SIGKILL to all that descends from a process, until none of it runs: they are stopped before, to start no more.

    A child that one of them was starting meanwhile shows in the next look, as a child of `pid` where that adopts it.
    """
    until = time.monotonic() + _ENDING_SECONDS
    while (running := [each for each in descendants_of(pid) if _runs(each)]) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            _send(running, number)
        time.sleep(_LOOK_SECONDS)


def end_tree(pid: int) -> None:
    """SIGKILL to a process's descendants, then to itself, which until then adopts what loses its parent.

    It is stopped before: a child that it was about to start would be found by nobody.
    """
    _send([pid], signal.SIGSTOP)
    for _ in range(_STOPPING_LOOKS):
        if not _runs(pid) or stat_fields(pid)[:1] in (["t"], ["T"]):
            break
        time.sleep(_LOOK_SECONDS)
    end_descendants(pid)
    _send([pid], signal.SIGKILL)


def end_children(spared: Iterable[int] = ()) -> None:
    """End this process's children, with all that descends from them, but for those that are `spared`; wait for them."""
    for _ in range(_ADOPTING_LOOKS):  # what loses its parent meanwhile becomes a child of this process
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
    """Whether it is there and has not ended (Z: a process that was not waited for yet, X: one that is going)."""
    return stat_fields(pid)[:1] not in ([], ["Z"], ["X"])
