"""Work for the workers of tests, which they import."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from distributed import get_worker

from harness.execution.cluster.worker_side import Unfit, is_cancelled


def squared(n: int) -> int:
    return n * n


def imported(module: str) -> bool:
    return module in sys.modules


def slowly(path: str) -> None:
    """Adds a byte to the file first."""
    with open(path, "ab") as file:
        file.write(b".")
    time.sleep(0.1)


def process(_: object) -> int:
    return os.getpid()


def deadly(n: int) -> int:
    """Kills its worker for one of the numbers."""
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def deadly_or_unreported(n: int) -> int:
    """Kills its worker for one of the numbers; of others, the worker's report that it is done is held back a second."""
    worker = get_worker()
    worker.batched_stream.interval = 1.0
    worker.loop.add_callback(worker.batched_stream.send, {"op": "keep-alive"})  # the next message waits, then
    time.sleep(0.2)
    return deadly(n)


def deadly_once(path: str) -> str:
    """Kills the first worker that gets it."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def unfit_once(path: str) -> int:
    if not Path(path).exists():
        Path(path).write_text(str(os.getpid()))
        raise Unfit("it has lost its GPU")
    return os.getpid()


def never_fit(_: object) -> int:
    raise Unfit("it has lost its GPU")


def wrong(_: object) -> int:
    raise ValueError("a mistake of ours")


def stops(path: str) -> str:
    """The first worker that gets it is silent from then on."""
    if not Path(path).exists():
        Path(path).write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    return "done"


def visible_gpu() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def visible_to(_: object) -> str | None:
    time.sleep(0.1)
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def until_cancelled(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_cancelled():
        time.sleep(0.01)


class UnreadableError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


class Unreadable:
    """Cannot be unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("no number",)


def returns(what: str) -> object:
    return {"unreadable": Unreadable(), "lock": threading.Lock()}[what]


def raises_unreadable(_: object) -> None:
    raise UnreadableError("unreadable error", "the task")
