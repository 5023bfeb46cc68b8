"""Starts a scheduler and workers as processes of this machine, which end when this process ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from harness.execution.isolation.worker_process import WorkerProcess, attach
from harness.support.errors import SandboxError, WorkersGone
from harness.support.processes.child_process import ONE_THREAD, ProcessLog
from harness.support.processes.privileges import protect_memory

START_SECONDS = 60.0
MOST_RESTARTS = 20
"""Maximum restarts of dead workers in total; more deaths have a systematic cause."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
HOST = "127.0.0.1"
HEARTBEAT = "500 ms"
_CONFIGURATION = {
    "distributed.admin.tick.interval": "1 s",
    "distributed.worker.profile.enabled": False,
    # A worker stores no results, so Dask does not need to monitor its memory.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
}
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": f"{HOST}:0"}


class LocalCluster:
    """A scheduler and its workers. Workers that die are restarted, up to `MOST_RESTARTS` times in total."""

    def __init__(self, number: int, gpus: Sequence[str] = ()) -> None:
        """Start `number` workers. With `gpus`, worker i sees only GPU `gpus[i % len(gpus)]`.

        Raises `SandboxError` if they do not start.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="attention-sandbox-cluster-", ignore_cleanup_errors=True)
        self._scheduler = _ClusterProcess(_serve_scheduler, self._folder.name)
        self._workers = [
            _ClusterProcess(
                _serve_worker, self._folder.name, str(place), **{VISIBLE_GPUS: gpus[place % len(gpus)]} if gpus else {}
            )
            for place in range(number)
        ]
        self._restarts = 0
        try:
            for process in (self._scheduler, *self._workers):  # in parallel, since imports take most of the time
                process.start()
            self.address = self._scheduler.receive_address()
            for worker in self._workers:
                worker.send_address(self.address)
        except BaseException:
            self.close()
            raise

    def restart_dead(self) -> str | None:
        """Restart a worker that has died.

        Returns how it died, or None if none has. Raises `WorkersGone` if the scheduler has died, or workers have died
        too often.
        """
        if not self._scheduler.is_running:
            raise WorkersGone("the scheduler's process has ended; run the same command again to resume")
        for place, worker in enumerate(self._workers):
            if worker.is_running:
                continue
            self._restarts += 1
            words = worker.last_words()
            if self._restarts > MOST_RESTARTS:
                raise WorkersGone(
                    f"workers died {self._restarts} times, the last time saying: {words or 'nothing'}; is there memory "
                    "enough for so many?"
                )
            worker.start()
            worker.send_address(self.address)
            return f"worker {place} died" + (f"; its last words: {words}" if words else "")
        return None

    def close(self) -> None:
        """Kill all processes."""
        for process in (self._scheduler, *self._workers):
            process.end()
        self._folder.cleanup()


class _ClusterProcess(WorkerProcess):
    """The scheduler or a worker. It is spawned, because it runs what needs the privileges of this process."""

    def __init__(self, serve: Callable[..., None], *arguments: str, **variables: str) -> None:
        super().__init__()
        self._serve, self._arguments, self._variables = serve, arguments, {**ONE_THREAD, **variables}

    def start(self) -> None:
        """Start the process in place of an earlier one."""
        self.end()
        self._start_process(self._serve, *self._arguments, method="spawn", variables=self._variables)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.exitcode is None

    def receive_address(self) -> str:
        """Wait for the scheduler's address. Raises `SandboxError` if it does not start."""
        assert self._connection is not None
        with contextlib.suppress(EOFError, ConnectionError):
            if self._connection.poll(START_SECONDS):
                return str(self._connection.recv())
        raise SandboxError(f"the scheduler did not start: {self.last_words() or 'it said nothing'}")

    def send_address(self, address: str) -> None:
        """Send the scheduler's address to a worker, which may have died."""
        assert self._connection is not None
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(address)

    def last_words(self) -> str:
        """The end of the process's output."""
        return self._log.last_words()

    def end(self) -> None:
        """Kill the process."""
        self._end_process()


# In the processes.


def _serve_scheduler(connection: Connection, log: ProcessLog, folder: str) -> None:
    _begin(log, folder)
    from distributed import Scheduler

    async def serve() -> None:
        async with Scheduler(host=HOST, port=0, **_NO_DASHBOARD) as scheduler:
            connection.send(scheduler.address)
            await scheduler.finished()

    asyncio.run(serve())


def _serve_worker(connection: Connection, log: ProcessLog, folder: str, name: str) -> None:
    _begin(log, folder)
    from distributed import Worker

    async def serve() -> None:
        async with Worker(
            connection.recv(),
            nthreads=1,
            name=name,
            host=HOST,
            memory_limit=0,
            heartbeat_interval=HEARTBEAT,
            local_directory=folder,
            **_NO_DASHBOARD,
        ) as worker:
            await worker.finished()

    asyncio.run(serve())


def _begin(log: ProcessLog, folder: str) -> None:
    """Configure Dask in this process. If the parent is killed, the folder is removed here."""
    import dask

    protect_memory()
    os.setsid()
    attach(log, lambda: shutil.rmtree(folder, ignore_errors=True))
    silence_dask()
    dask.config.set(_CONFIGURATION)


def silence_dask() -> None:
    """Turn off Dask's own log messages; `ClusterClient` reports what matters to the user."""
    import distributed  # importing it sets the levels of its loggers

    assert distributed
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    for name in ("distributed", "tornado", "asyncio", *names):
        logging.getLogger(name).setLevel(logging.CRITICAL)
