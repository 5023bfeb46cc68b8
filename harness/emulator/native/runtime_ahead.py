"""Compiles the runtime, which all kernels need, in the background while the first kernel is compiled."""

from __future__ import annotations

import contextlib
import threading

from harness.emulator.native.compile_worker import WorkerPool
from harness.emulator.native.object_loading import load_part
from harness.support.errors import SandboxError


class RuntimeAhead:
    """Loads the runtime once, in a separate thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False

    def start(self, workers: WorkerPool) -> None:
        """Start loading, with a worker if the runtime is not in the disk cache.

        Errors are ignored here, because the first kernel raises them again.
        """
        with self._lock:
            if self._started:
                return
            self._started = True
        threading.Thread(target=_load, args=(workers,), daemon=True).start()


def _load(workers: WorkerPool) -> None:
    with contextlib.suppress(SandboxError), workers.borrow() as worker:
        load_part("core", worker.build_part)
