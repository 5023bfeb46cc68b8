"""Supervises a planner from a process between it and the server, and ends all that it started when it ends.

The supervisor adopts orphans: processes that a plugin starts remain its descendants, even if they fork twice, start a
session or close their descriptors. It ends them when the planner has ended or the judge is gone. It runs no plugin
code.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from harness.support.processes.process_tree import adopt_orphans, end_descendants, end_with_parent

_REAPING_MS = 1000
"""Interval in ms at which the supervisor checks for orphans that have ended."""


def fork_planner(lifeline: Connection, others: Sequence[Connection], most_bytes: int) -> None:
    """Fork a planner that this process supervises from then on. Returns only in the planner.

    `lifeline` breaks when the judge ends. `others` are the planner's connections; they are closed here, so that their
    other ends notice when the planner ends. The planner has its own session and no standard input. None of its
    processes may allocate more than `most_bytes` or dump core; if memory runs out nevertheless, the kernel kills them
    first.
    """
    adopt_orphans()
    supervisor = os.getpid()
    planner = os.fork()
    if planner:
        for connection in others:
            connection.close()
        _supervise(planner, lifeline.fileno())
    end_with_parent()
    if os.getppid() != supervisor:  # the supervisor ended before `prctl` took effect
        os._exit(1)
    # In its own session, its signals to its process group reach no other process, and it has no controlling terminal.
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most_bytes < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _supervise(planner: int, lifeline: int) -> None:
    """Wait for the planner or the judge to end, kill all descendants, then end with the planner's exit status."""
    signal.signal(signal.SIGTERM, lambda number, frame: end_descendants(os.getpid()))
    events = select.poll()
    events.register(lifeline, select.POLLHUP)
    events.register(os.pidfd_open(planner), select.POLLIN)
    status = None
    while status is None:
        if any(descriptor == lifeline for descriptor, _ in events.poll(_REAPING_MS)):
            end_descendants(os.getpid())
        status = _reap(planner)
    while True:  # descendants can start processes until the last one is killed
        end_descendants(os.getpid())
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL cannot have another handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _reap(planner: int) -> int | None:
    """Wait for all children that have ended. Returns the planner's status if it is among them, otherwise None."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == planner:
                return status
            if not pid:
                break
    return None
