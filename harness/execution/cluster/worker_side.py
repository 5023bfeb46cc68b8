"""What runs in a worker of a cluster: one task at a time, for clients with the same version of the sandbox."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.execution.cluster.fingerprint import Fingerprint, fingerprint
from harness.execution.isolation.process import end_planners
from harness.support.errors import SandboxError

IDLE_SECONDS = 60.0
"""After this long without a task the processes that the worker has started end: its client may be gone."""
RETIRE_SECONDS = 0.5
RETIRED = 75
"""Exit status, as EX_TEMPFAIL of sysexits.h: another one takes its place."""
_AT_IMPORT = fingerprint()
_one_at_a_time = threading.Lock()
_state: dict[str, Any] = {}
_last_used = time.monotonic()


class Unfit(SandboxError):
    """The worker cannot run the task, such as without the GPU that it had; another one may."""


@dataclass(frozen=True)
class WorkerInfo:
    """What decides whether a worker can run a client's tasks."""

    fingerprint: Fingerprint
    device: str | None
    """What it works on, where that matters: a name that no other device has. None: it has none."""


def worker_info(device_of: Callable[[], str | None] | None = None) -> WorkerInfo:
    """Describe this worker; `device_of` names its device. Raises `Unfit` if its texts have changed on disk."""
    _may_have_children()
    _end_processes_at_exit()
    now = fingerprint()
    if now.harness != _AT_IMPORT.harness:
        raise Unfit("its texts of harness/ have changed since it was started; start it again")
    return WorkerInfo(now, None if device_of is None else device_of())


def perform(work: bytes) -> Any:
    """Call `function(*arguments)`, one call at a time in a worker of several threads. `work` is the two, pickled."""
    from distributed.protocol.pickle import loads

    global _last_used
    with _one_at_a_time:
        _last_used = time.monotonic()
        try:
            if is_cancelled():
                return None
            function, arguments = loads(work)
            return function(*arguments)
        finally:
            _last_used = time.monotonic()


def is_cancelled() -> bool:
    """Whether the client has cancelled the task that calls this, or is gone; the result does not matter then."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state == "cancelled"


def retire() -> None:
    """End this process once its result has been sent, as after a fault on its GPU."""
    timer = threading.Timer(RETIRE_SECONDS, os._exit, (RETIRED,))
    timer.daemon = True
    timer.start()


def state(name: str, make: Callable[[], Any]) -> Any:
    """The state of that name in this worker, made by `make` the first time.

    A name is `kind:rest`. Only the last one of each kind is held: another name of its kind ends it.
    """
    if name not in _state:
        kind = name.partition(":")[0]
        for other in [other for other in _state if other.partition(":")[0] == kind]:
            _drop(other)
        _state[name] = make()
    return _state[name]


def end_all() -> None:
    """Drop all state, and end all processes that this worker has started."""
    for name in list(_state):
        _drop(name)
    end_planners()


def end_soon() -> None:
    """Call `end_all` once the current task has ended, without waiting for that."""

    def end() -> None:
        with _one_at_a_time:
            end_all()

    threading.Thread(target=end, daemon=True).start()


@functools.cache
def _end_processes_at_exit() -> None:
    # Before multiprocessing's own, which waits for children.
    atexit.register(end_all)
    threading.Thread(target=_end_when_idle, name="end when idle", daemon=True).start()


def _drop(name: str) -> None:
    kept = _state.pop(name, None)
    if hasattr(kept, "__exit__"):
        kept.__exit__(None, None, None)


def _may_have_children() -> None:
    """`dask worker` makes its processes such as may not start any."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def _end_when_idle() -> None:
    while True:
        time.sleep(IDLE_SECONDS / 4)
        if _state and time.monotonic() - _last_used > IDLE_SECONDS and _one_at_a_time.acquire(blocking=False):
            with contextlib.suppress(Exception):
                end_all()
            _one_at_a_time.release()
