"""The runtime, which all kernels need, is compiled while the first of them is."""

from __future__ import annotations

import contextlib
import threading

from harness.emulator.native.compile_worker import WorkerPool
from harness.emulator.native.object_loading import load_part
from harness.support.errors import SandboxError


class RuntimeAhead:
    """Loads the runtime in a thread of its own, once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False

    def start(self, workers: WorkerPool) -> None:
        """Begin, by way of a worker where it is not on disk. What goes wrong, the first kernel will meet again."""
        with self._lock:
            if self._started:
                return
            self._started = True
        threading.Thread(target=_load, args=(workers,), daemon=True).start()


def _load(workers: WorkerPool) -> None:
    with contextlib.suppress(SandboxError), workers.borrow() as worker:
        load_part("core", worker.build_part)
