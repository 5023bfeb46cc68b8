"""Runs in the workers of a cluster: performs one task at a time for clients with the same version of the sandbox."""

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
"""Idle time after which a worker ends the processes that it has started, because its client may be gone."""
RETIRE_SECONDS = 0.5
RETIRED = 75
"""Exit status of a worker that must be restarted, as EX_TEMPFAIL in sysexits.h."""
_AT_IMPORT = fingerprint()
_one_at_a_time = threading.Lock()
_state: dict[str, Any] = {}
_last_used = time.monotonic()


class Unfit(SandboxError):
    """Raised if this worker cannot run the task, such as after losing its GPU. Another worker may be able to."""


@dataclass(frozen=True)
class WorkerInfo:
    """Determines whether a worker can run a client's tasks."""

    fingerprint: Fingerprint
    device: str | None
    """Unique name of the worker's device; None if it has none or needs none."""


def worker_info(device_of: Callable[[], str | None] | None = None) -> WorkerInfo:
    """Describe this worker.

    `device_of` returns the name of its device. Raises `Unfit` if its files have changed on disk.
    """
    _may_have_children()
    _end_processes_at_exit()
    now = fingerprint()
    if now.harness != _AT_IMPORT.harness:
        raise Unfit("its files in harness/ have changed since it was started; restart it")
    return WorkerInfo(now, None if device_of is None else device_of())


def perform(work: bytes) -> bytes:
    """Call `function(*arguments)` and return the pickled result.

    `work` is the pickled pair. A lock allows one call at a time, even with several threads.
    """
    from distributed.protocol.pickle import dumps, loads

    global _last_used
    with _one_at_a_time:
        _last_used = time.monotonic()
        try:
            result = None
            if not is_cancelled():
                function, arguments = loads(work)
                result = function(*arguments)
            pickled: bytes = dumps(result)
            return pickled
        finally:
            _last_used = time.monotonic()


def is_cancelled() -> bool:
    """Whether the client has cancelled the calling task or is gone, so that its result is not needed."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is None or task.state == "cancelled"


def retire() -> None:
    """End this process after its result has been sent, such as after a GPU fault."""
    timer = threading.Timer(RETIRE_SECONDS, os._exit, (RETIRED,))
    timer.daemon = True
    timer.start()


def state(name: str, make: Callable[[], Any]) -> Any:
    """Return this worker's state of that name. `make` creates it at the first call.

    A name has the form `kind:rest`. Only the latest state of each kind exists: another name of the same kind replaces
    it.
    """
    if name not in _state:
        kind = name.partition(":")[0]
        for other in [other for other in _state if other.partition(":")[0] == kind]:
            _drop(other)
        _state[name] = make()
    return _state[name]


def end_all() -> None:
    """Drop all state and end all processes that this worker has started."""
    for name in list(_state):
        _drop(name)
    end_planners()


def end_soon() -> None:
    """Call `end_all` after the current task has ended. Returns immediately."""

    def end() -> None:
        with _one_at_a_time:
            end_all()

    threading.Thread(target=end, daemon=True).start()


@functools.cache
def _end_processes_at_exit() -> None:
    # Runs before multiprocessing's own exit handler, which waits for children.
    atexit.register(end_all)
    threading.Thread(target=_end_when_idle, name="end when idle", daemon=True).start()


def _drop(name: str) -> None:
    kept = _state.pop(name, None)
    if hasattr(kept, "__exit__"):
        kept.__exit__(None, None, None)


def _may_have_children() -> None:
    """Clear the daemon flag that `dask worker` sets, since daemonic processes may not start processes."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]


def _end_when_idle() -> None:
    while True:
        time.sleep(IDLE_SECONDS / 4)
        if _state and time.monotonic() - _last_used > IDLE_SECONDS and _one_at_a_time.acquire(blocking=False):
            with contextlib.suppress(Exception):
                end_all()
            _one_at_a_time.release()
