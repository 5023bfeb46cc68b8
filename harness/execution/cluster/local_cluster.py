"""Starts a scheduler and workers as processes of this machine, which end when this process ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.model.discovery import REPOSITORY_ROOT
from harness.support.errors import SandboxError, WorkersGone
from harness.support.processes.child_process import ONE_THREAD, last_words

START_SECONDS = 60.0
ADDRESS_LOOK_SECONDS = 0.02
"""Interval at which the scheduler's address file is checked."""
MOST_RESTARTS = 20
"""Maximum restarts of dead workers in total; more deaths have a systematic cause."""
_MODULE = "harness.execution.cluster.cluster_process"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class LocalCluster:
    """A scheduler and its workers. Workers that die are restarted, up to `MOST_RESTARTS` times in total."""

    def __init__(self, number: int, gpus: Sequence[str] = ()) -> None:
        """Start `number` workers. With `gpus`, worker i sees only GPU `gpus[i % len(gpus)]`.

        Raises `SandboxError` if they do not start.
        """
        self._gpus = tuple(gpus)
        self._folder = tempfile.TemporaryDirectory(prefix="attention-sandbox-cluster-", ignore_cleanup_errors=True)
        self._scheduler_file = os.path.join(self._folder.name, "scheduler.json")
        self._read_end, self._lifeline = os.pipe()
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._scheduler: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        try:
            self._scheduler = self._started("scheduler", self._scheduler_file)
            for place in range(number):  # start them in parallel, since imports take most of the time
                self._workers[place] = self._start_worker(place)
            self.address = self._address()
        except BaseException:
            self.close()
            raise

    def restart_dead(self) -> str | None:
        """Restart a worker that has died, and end the processes that it had started.

        Returns how it died, or None if none has. Raises `WorkersGone` if the scheduler has died, or workers have died
        too often.
        """
        assert self._scheduler is not None
        if self._scheduler.poll() is not None:
            raise WorkersGone("the scheduler's process is gone; run the same command again, and it goes on")
        for place, worker in self._workers.items():
            if worker.poll() is None:
                continue
            _end(worker)
            self._restarts += 1
            words = last_words(self._log(f"worker-{place}"))
            if self._restarts > MOST_RESTARTS:
                raise WorkersGone(
                    f"workers died {self._restarts} times, the last time saying: {words or 'nothing'}; is there memory "
                    "enough for so many?"
                )
            self._workers[place] = self._start_worker(place)
            return f"worker {place} died" + (f"; its last words: {words}" if words else "")
        return None

    def close(self) -> None:
        """Kill all processes."""
        for process in (self._scheduler, *self._workers.values()):
            if process is not None:
                _end(process)
        for end in (self._read_end, self._lifeline):
            with contextlib.suppress(OSError):
                os.close(end)
        self._folder.cleanup()

    def _start_worker(self, place: int) -> subprocess.Popen[bytes]:
        gpu = {VISIBLE_GPUS: self._gpus[place % len(self._gpus)]} if self._gpus else {}
        where = (self._scheduler_file, str(place), self._folder.name)
        return self._started("worker", *where, log=f"worker-{place}", **gpu)

    def _started(self, role: str, *where: str, log: str = "scheduler", **environment: str) -> subprocess.Popen[bytes]:
        paths = [str(REPOSITORY_ROOT), *(path for path in sys.path if path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            **ONE_THREAD,
            **environment,
        }
        with self._log(log).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", _MODULE, role, str(self._read_end), *where],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[self._read_end],
                start_new_session=True,  # Ctrl-C goes to the parent, which ends the session
                env=environment,
            )

    def _address(self) -> str:
        assert self._scheduler is not None
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._scheduler.poll() is None:
            with contextlib.suppress(OSError, ValueError):  # the file is missing or incomplete
                return str(json.loads(Path(self._scheduler_file).read_text())["address"])
            time.sleep(ADDRESS_LOOK_SECONDS)
        raise SandboxError(f"the scheduler did not start: {last_words(self._log('scheduler')) or 'it said nothing'}")

    def _log(self, name: str) -> Path:
        return Path(self._folder.name, f"{name}.log")


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
