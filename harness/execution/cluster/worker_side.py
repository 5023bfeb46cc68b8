"""What runs in a worker: one piece of work at a time, of whoever has the same version of the sandbox."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.execution.cluster.fingerprint import Fingerprint, fingerprint
from harness.execution.isolation.process import end_planners
from harness.support.errors import SandboxError

IDLE_SECONDS = 60.0
"""After so long without work the processes that it has started end: whoever asked may be gone."""
RETIRE_SECONDS = 0.5
RETIRED = 75
"""Exit status, as EX_TEMPFAIL of sysexits.h: another one takes its place."""
_AT_IMPORT = fingerprint()
_one_at_a_time = threading.Lock()
_state: dict[str, Any] = {}
_last_used = time.monotonic()
_at = ("", 0)
_forgotten: dict[str, int] = {}


class Unfit(SandboxError):
    """The worker cannot do the work, such as without the GPU that it had; another one may."""


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself."""

    fingerprint: Fingerprint
    host: str
    process: int
    device: str | None
    """What it works on, where that matters, in a word that no other device has; None: nothing."""


def introduce(device_of: Callable[[], str | None] | None = None) -> Introduction:
    """Of this worker; `device_of` tells its device. Raises `Unfit` where its texts have changed since."""
    _may_have_children()
    _see_to_the_end()
    now = fingerprint()
    if now.harness != _AT_IMPORT.harness:
        raise Unfit("its texts of harness/ have changed since it was started; start it again")
    return Introduction(now, socket.gethostname(), os.getpid(), None if device_of is None else device_of())


def perform(work: bytes, client: str, epoch: int) -> Any:
    """`function(argument)`, one at a time however many threads this worker has. `work` is the two of them, pickled.

    `epoch` is the client's own count of how often it forgot what it had begun; see `abandon`.
    """
    from distributed.protocol.pickle import loads

    global _last_used, _at
    with _one_at_a_time:
        _last_used, _at = time.monotonic(), (client, epoch)
        try:
            if is_abandoned():
                return None
            function, argument = loads(work)
            return function(argument)
        finally:
            _last_used = time.monotonic()


def abandon(client: str, epoch: int) -> None:
    """What this client has begun before that epoch is not wanted any more."""
    _forgotten[client] = epoch


def is_abandoned() -> bool:
    """Whether nobody waits for what this worker is at: it may return anything then."""
    client, epoch = _at
    return epoch < _forgotten.get(client, 0)


def retire() -> None:
    """The process is of no further use, as after a fault on its GPU: it ends once its result is on its way."""
    timer = threading.Timer(RETIRE_SECONDS, os._exit, (RETIRED,))
    timer.daemon = True
    timer.start()


def state(name: str, make: Callable[[], Any]) -> Any:
    """What `make` made for this name at first, here, in this worker. One name of each kind (before its `:`) is kept."""
    if name not in _state:
        kind = name.partition(":")[0]
        for other in [other for other in _state if other.partition(":")[0] == kind]:
            _drop(other)
        _state[name] = make()
    return _state[name]


def end_all() -> None:
    """End what was kept, and with it all processes that this worker has started."""
    for name in list(_state):
        _drop(name)
    end_planners()


def end_soon() -> None:
    """`end_all`, once what this worker is at has ended, which nobody waits for."""

    def end() -> None:
        with _one_at_a_time:
            end_all()

    threading.Thread(target=end, daemon=True).start()


@functools.cache
def _see_to_the_end() -> None:
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
