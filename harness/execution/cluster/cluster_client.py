"""Runs tasks through Dask's `distributed` on workers that have the same version of the sandbox as the client.

Dask transfers tasks and results, cancels tasks and tracks which workers are alive. The client decides placement: a
worker with another version must run nothing, and a task whose worker dies is retried exactly once, whatever the
scheduler allows. Each task is therefore restricted to one worker. When a worker dies, its tasks are retried, each on a
worker without other tasks, which shows which of them kills its worker. Results do not depend on which worker ran a
task.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from harness.execution.cluster.fingerprint import Fingerprint, fingerprint
from harness.execution.cluster.local_cluster import LocalCluster, silence_dask
from harness.execution.cluster.worker_side import Unfit, WorkerInfo, end_soon, perform, worker_info
from harness.support.errors import SandboxError, UsageError, WorkersGone

CONNECT_SECONDS = 10.0
CHECK_SECONDS = 0.5
"""Interval at which the scheduler's list of workers is read."""
SILENT_SECONDS = 30.0
"""A worker without a heartbeat for this long counts as dead."""
ALONE_SECONDS = 60.0
"""Time limit for a worker to join when none is left."""
MOST_TRIES = 2
"""Maximum attempts at a task: a task that loses its worker is retried once, on another one."""
IN_HAND = 2
"""Maximum tasks sent to a worker: one that runs and one that starts right after it."""
Key = TypeVar("Key")


class WorkerLost(SandboxError):
    """Raised if a task lost its worker in every attempt."""


@dataclass(eq=False)
class Task:
    """A function call on a worker, with its outcome."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_setup: bool = False
    """Whether the task prepares one worker. Its outcome is ignored."""
    result: Any = None
    error: Exception | None = None
    is_done: bool = False
    failed_on: list[str] = field(default_factory=list)
    """Addresses of workers that died while running the task, or were unfit for it."""
    future: Any = None
    """Dask's future while a worker has the task, otherwise None."""

    def outcome(self) -> Any:
        """Return the result of a completed task. Raises its exception if it failed."""
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self.result


@dataclass(eq=False)
class _Worker:
    address: str
    name: str
    is_fit: bool = False
    device: str | None = None
    setups: deque[Task] = field(default_factory=deque)
    """Tasks that the worker runs before any other."""
    tasks: list[Task] = field(default_factory=list)
    """Tasks that the worker has, in order of execution."""
    is_ending: bool = False
    """Whether the worker may still be running a cancelled task."""
    last_seen: Any = None
    seen_at: float = 0.0


class ClusterClient:
    """Runs tasks on the workers of a cluster. A context manager; not thread-safe."""

    def __init__(
        self,
        workers: int | str,
        complain: Callable[[str], None],
        gpus: Sequence[str] = (),
        device_of: Callable[[], str | None] | None = None,
    ) -> None:
        """Start `workers` processes on this machine, or connect to the scheduler at that address.

        `gpus` assigns GPUs to the processes, as in `LocalCluster`. `device_of` is called in each worker and returns the
        name of its device; a worker without a device, or with the device of another worker, is left out. `complain` is
        called with one line of text for each worker that is left out or lost. Raises `UsageError` if no scheduler
        answers, or if none of its workers has this version of the sandbox.
        """
        from distributed import Client, as_completed

        silence_dask()
        self._complain = complain
        self._expected: Fingerprint = fingerprint()
        self._local = LocalCluster(workers, gpus) if isinstance(workers, int) else None
        self.address = self._local.address if self._local is not None else str(workers)
        self._device_of = device_of
        self._workers: dict[str, _Worker] = {}
        self._left_out: set[str] = set()
        self._setups: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._waiting: deque[Task] = deque()
        self._running: dict[str, tuple[_Worker, Task]] = {}
        """The worker and the task of each running future, by the future's key."""
        self._checked_at = self._alone_since = 0.0
        self._client: Any = None
        try:
            try:
                self._client = Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                raise UsageError(
                    f"--workers {self.address}: no scheduler answers there ({type(error).__name__}); start one with "
                    "'dask scheduler', and name the address that it prints"
                ) from error
            self.token: str = self._client.id
            """Unique to this client. Workers use it to separate the state of different clients."""
            self._completed = as_completed(loop=self._client.loop, with_results=True, raise_errors=False)
            self._wait_for_workers(workers if isinstance(workers, int) else 1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Number of workers that can run tasks."""
        return sum(worker.is_fit for worker in self._workers.values())

    def broadcast_setup(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Run `function(*arguments)` on every worker before any task submitted from now on.

        Workers that join later run it first. Exceptions are ignored; tasks that depend on the setup fail.
        """
        self._setups.append((function, arguments))
        for worker in self._workers.values():
            if worker.is_fit:
                worker.setups.append(Task(function, arguments, is_setup=True))
        self._start_waiting()

    def submit(self, function: Callable[..., Any], *arguments: Any, first: bool = False) -> Task:
        """Queue a task for the next idle worker. With `first`, it goes ahead of all waiting tasks."""
        task = Task(function, arguments)
        if first:
            self._waiting.appendleft(task)
        else:
            self._waiting.append(task)
        self._start_waiting()
        return task

    def cancel_all(self) -> None:
        """Cancel all tasks. Running ones end as soon as they check `is_cancelled`."""
        self._waiting.clear()
        running = [(worker, task) for worker, task in self._running.values() if not task.is_setup]
        self._cancel(running)
        for worker, _ in running:
            worker.is_ending = True

    def result(self, task: Task) -> Any:
        """Wait for a task and return its result. Raises its exception, or `WorkerLost`."""
        while not task.is_done:
            self.poll(CHECK_SECONDS)
        return task.outcome()

    def map_unordered(self, function: Callable[[Any], Any], arguments: Mapping[Key, Any]) -> Iterator[tuple[Key, Any]]:
        """Yield `(key, function(arguments[key]))` as the tasks complete. They start in order.

        The result of a task that lost its workers is a `WorkerLost`; any other exception is raised.
        """
        keys = {self.submit(function, argument): key for key, argument in arguments.items()}
        while keys:
            task = next((task for task in keys if task.is_done), None)
            if task is None:
                self.poll(CHECK_SECONDS)
            else:
                yield keys.pop(task), task.error if isinstance(task.error, WorkerLost) else task.outcome()

    def poll(self, seconds: float = 0.0) -> None:
        """Collect completed tasks, waiting up to `seconds` for the first one, and send new ones to idle workers.

        Every `CHECK_SECONDS` it also checks for workers that joined or died. Raises `WorkersGone` if none is left.
        """
        completed = self._completed
        with completed.thread_condition:
            if seconds and not completed.has_ready():
                completed.thread_condition.wait(seconds)
        for future, result in completed.next_batch(block=False):
            self._collect(future, result)
        if time.monotonic() > self._checked_at + CHECK_SECONDS:
            self._check_workers()
        self._start_waiting()

    def close(self) -> None:
        """Disconnect.

        Local workers end at once; other workers soon end the processes that they started for this client.
        """
        if self._client is not None:
            with contextlib.suppress(Exception):
                if self._local is None and self._client.status == "running":
                    self.cancel_all()
                    fit = [worker.address for worker in self._workers.values() if worker.is_fit]
                    self._client.run(end_soon, workers=fit, on_error="ignore")
            with contextlib.suppress(Exception):
                self._client.close(timeout=0.2 if self._local is not None else 1.0)
        if self._local is not None:
            self._local.close()
            self._local = None

    # Workers.

    def _wait_for_workers(self, number: int) -> None:
        """Wait until `number` workers are fit, or until at least one is and no more join for some seconds.

        Raises `UsageError` if there are no workers or none is fit.
        """
        began = time.monotonic()
        self._alone_since = began
        while True:
            self._check_workers()
            waited = time.monotonic() - began
            if self.size + len(self._left_out) >= number or (self.size and waited > CONNECT_SECONDS):
                break
            if self._local is None and not self._workers and waited > CONNECT_SECONDS:
                raise UsageError(
                    f"--workers {self.address}: that scheduler has no workers; start some with 'dask worker "
                    f"{self.address} --nthreads 1'"
                )
            time.sleep(0.05)
        if not self.size:
            raise UsageError(
                f"--workers {self.address}: none of its workers has this version of the sandbox; bring them to the "
                "same files and packages, and start them again"
            )

    def _check_workers(self) -> None:
        """Restart dead local workers, admit new ones, and retry the tasks of lost ones. Raises `WorkersGone`."""
        if self._local is not None and (loss := self._local.restart_dead()) is not None:
            self._complain(f"{loss}; another takes its place")
        known_to_scheduler = self._scheduler_workers()
        now = time.monotonic()
        for address, info in known_to_scheduler.items():
            worker = self._workers.get(address)
            if worker is None:
                worker = self._workers[address] = _Worker(address, str(info.get("name", address)), seen_at=now)
            if info.get("last_seen") != worker.last_seen:
                worker.last_seen, worker.seen_at = info.get("last_seen"), now
        for address, worker in list(self._workers.items()):
            if address not in known_to_scheduler:
                del self._workers[address]
                self._lose(worker, f"worker {worker.name} was lost")
            elif worker.is_fit and now - worker.seen_at > SILENT_SECONDS:
                worker.is_fit = False
                self._lose(worker, f"worker {worker.name} has been silent for {SILENT_SECONDS:g} s")
        self._admit(
            [
                worker
                for worker in self._workers.values()
                if not worker.is_fit and worker.address not in self._left_out and now - worker.seen_at <= SILENT_SECONDS
            ]
        )
        if self.size:
            self._alone_since = now
        elif now - self._alone_since > ALONE_SECONDS:
            raise WorkersGone("no worker is left; start some and run the same command again to resume")
        self._checked_at = time.monotonic()

    def _scheduler_workers(self) -> dict[str, Any]:
        """Return the scheduler's information on its workers, by address. Raises `WorkersGone` without a scheduler."""
        try:
            if self._client.status in ("closed", "closing"):
                raise OSError("closed")
            identity = self._client.scheduler.identity
            return dict(self._client.sync(identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)["workers"])
        except (OSError, asyncio.TimeoutError, RuntimeError) as error:
            raise WorkersGone(
                f"the scheduler at {self.address} is gone; start it and its workers, and run the same command again "
                "to resume"
            ) from error

    def _admit(self, workers: Sequence[_Worker]) -> None:
        """Admit new workers, or leave them out and report the reason."""
        from distributed.comm import CommClosedError

        if not workers:
            return
        addresses = [worker.address for worker in workers]
        try:
            infos = self._client.run(worker_info, self._device_of, workers=addresses, on_error="return")
        except (OSError, asyncio.TimeoutError):
            return  # a worker is gone; the next check finds out which
        for worker in workers:
            info = infos.get(worker.address)
            if isinstance(info, CommClosedError) or type(info) is OSError:
                continue  # the connection failed, such as when the worker has just died
            reason = self._why_unfit(info)
            if reason is not None:
                self._left_out.add(worker.address)
                self._complain(f"worker {worker.name} is left out: {reason}")
                continue
            worker.is_fit, worker.device = True, info.device
            worker.setups.extend(Task(function, arguments, is_setup=True) for function, arguments in self._setups)

    def _why_unfit(self, info: Any) -> str | None:
        """Return why a worker is left out, or None. `info` is its `WorkerInfo` or the exception that it raised."""
        if isinstance(info, WorkerInfo):
            difference = self._expected.difference(info.fingerprint)
            if difference is not None:
                return f"it has another version of the sandbox: {difference}"
            return None if self._device_of is None else self._why_without_device(info.device)
        if isinstance(info, Unfit):
            return str(info)
        what = " ".join(str(info).split()) or type(info).__name__
        return f"it cannot load the sandbox ({what}); start it where this folder is on its PYTHONPATH"

    def _why_without_device(self, device: str | None) -> str | None:
        if device is None:
            return "it sees no GPU"
        other = next((w for w in self._workers.values() if w.is_fit and w.device == device), None)
        return None if other is None else f"worker {other.name} has the same GPU, and times would be of both"

    # Tasks.

    def _start_waiting(self) -> None:
        """Send waiting tasks to workers, first to those with the fewest tasks."""
        from distributed.protocol.pickle import dumps

        # While a task is waiting to be retried on a worker without other tasks, no worker gets a second one.
        most = 1 if any(task.failed_on for task in self._waiting) else IN_HAND
        for had in range(most):
            ready = [worker for worker in self._workers.values() if worker.is_fit and len(worker.tasks) == had]
            for worker in sorted(ready, key=lambda worker: worker.is_ending):
                task = self._next_task(worker)
                if task is not None:
                    # Pickled here, because the scheduler unpickles its messages and may be unable to import the
                    # function's module.
                    work = dumps((task.function, task.arguments))
                    task.future = self._client.submit(perform, work, workers=[worker.address], pure=False)
                    worker.tasks.append(task)
                    self._running[task.future.key] = worker, task
                    self._completed.add(task.future)

    def _next_task(self, worker: _Worker) -> Task | None:
        """Return a setup of the worker, or else the first waiting task that did not fail on it.

        A task that failed on all workers may run on any. Returns None if no task can start.
        """
        if worker.setups:
            return worker.setups.popleft()
        if any(task.failed_on for task in worker.tasks):
            return None
        for place, task in enumerate(self._waiting):
            if worker.address not in task.failed_on or not any(
                other.is_fit and other.address not in task.failed_on for other in self._workers.values()
            ):
                del self._waiting[place]
                return task
        return None

    def _cancel(self, running: Sequence[tuple[_Worker, Task]]) -> None:
        """Cancel running tasks and remove them from their workers."""
        if running:
            with contextlib.suppress(Exception):  # a lost connection is reported by the next check of the workers
                self._client.cancel([task.future for _, task in running])
        for worker, task in running:
            del self._running[task.future.key]
            worker.tasks.remove(task)

    def _collect(self, future: Any, result: Any) -> None:
        """Store the outcome of a completed future."""
        from distributed import KilledWorker
        from distributed.protocol.pickle import loads

        if future.key not in self._running:
            return  # the task was cancelled
        worker, task = self._running.pop(future.key)
        worker.tasks.remove(task)
        worker.is_ending = False
        if task.is_setup:
            return
        if future.status == "finished":
            # Unpickled here, because a future whose result Dask cannot unpickle never completes.
            try:
                task.result = loads(result)
            except Exception as unreadable:
                what = " ".join(f"{type(unreadable).__name__}: {unreadable}".split())
                task.error = SandboxError(
                    f"worker {worker.name} sent a result of {task.function.__name__}() that cannot be unpickled: {what}"
                )
            task.is_done = True
        elif future.status == "error":
            _, error, _ = result
            if isinstance(error, Unfit):
                self._retry(task, worker, str(error))
            elif isinstance(error, KilledWorker):
                self._retry(task, worker, f"worker {worker.name} was lost")
            else:
                task.error, task.is_done = error, True
        else:  # cancelled by Dask: the scheduler is gone or restarting
            self._waiting.appendleft(task)

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Retry the tasks of a worker that died or went silent."""
        lost = [task for task in worker.tasks if not task.is_setup]
        self._cancel([(worker, task) for task in worker.tasks])  # Dask would wait for this worker
        for task in reversed(lost):
            self._retry(task, worker, reason)
        if self._local is None:
            self._complain(reason)

    def _retry(self, task: Task, worker: _Worker, reason: str) -> None:
        task.failed_on.append(worker.address)
        if len(task.failed_on) < MOST_TRIES:
            self._waiting.appendleft(task)
        else:
            task.error, task.is_done = WorkerLost(f"{reason}, and so was the one that tried it before"), True
