"""The process between the server and a planner: it adopts what a plugin starts, and ends all of it with the planner.

Whatever a plugin's processes do (fork twice, start a session, close their descriptors), they stay below the
supervisor, which ends them when the planner has ended or the judge is gone. It runs no plugin's code.
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
"""How often the supervisor looks whether an orphan has ended and is to be waited for."""


def fork_planner(lifeline: Connection, others: Sequence[Connection], most_bytes: int) -> None:
    """Fork a planner that this process supervises from here on: this function returns in the planner alone.

    `lifeline` ends when the judge does. `others` are the planner's: closed here, for their other ends to see it end.
    The planner has a session of its own, and no standard input. None of its processes may allocate more than
    `most_bytes`, or leaves a core dump; if memory runs out all the same, the kernel ends them first.
    """
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the judge
    supervisor = os.getpid()
    planner = os.fork()
    if planner:
        for connection in others:
            connection.close()
        _supervise(planner, lifeline.fileno())
    end_with_parent()
    if os.getppid() != supervisor:  # it ended before this process had asked
        os._exit(1)
    # A session of its own: signals to its group reach nobody else, and there is no terminal that it may open.
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard == resource.RLIM_INFINITY or most_bytes < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _supervise(planner: int, lifeline: int) -> None:
    """Wait for the planner or the judge to end; then end what is left, and end as the planner did."""
    signal.signal(signal.SIGTERM, lambda number, frame: end_descendants(os.getpid()))
    events = select.poll()
    events.register(lifeline, select.POLLHUP)
    events.register(os.pidfd_open(planner), select.POLLIN)
    status = None
    while status is None:
        if any(descriptor == lifeline for descriptor, _ in events.poll(_REAPING_MS)):
            end_descendants(os.getpid())
        status = _reap(planner)
    while True:  # what is below goes on to start processes until the last one is ended
        end_descendants(os.getpid())
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no other handler
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _reap(planner: int) -> int | None:
    """Wait for every child that has ended; the planner's status once it is among them."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == planner:
                return status
            if not pid:
                break
    return None
