"""Workers that take pieces of work from one client, on Dask's `distributed`: who is fit, who is lost, what goes where.

Dask starts nothing twice on its own here: each piece is handed to one worker by name, so that a worker with another
version of the sandbox gets none, and a piece whose worker is lost goes once to another one, and is then an error of its
own. Which worker does what, and when it is done, never shows in a result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from harness.execution.cluster.fingerprint import Fingerprint, fingerprint
from harness.execution.cluster.job import Job, WorkerLost
from harness.execution.cluster.local_cluster import LocalCluster
from harness.execution.cluster.worker_side import Introduction, Unfit, abandon, end_soon, introduce, perform
from harness.support.errors import UsageError, WorkersGone

CONNECT_SECONDS = 10.0
LOOK_SECONDS = 0.5
"""How often to see who is there."""
SILENT_SECONDS = 30.0
"""A worker that the scheduler has heard nothing of for so long is taken for lost."""
ALONE_SECONDS = 60.0
"""How long to wait for a worker where there is none."""
MOST_TRIES = 2
"""A piece of work that loses its worker is done once more elsewhere, alone: what kills that one is known."""
MOST_LOST_RESULTS = 5
"""A result that is lost on its way, as when its worker is lost just then, is worked out again."""
NEVER_FORGOTTEN = 10**9
"""The epoch of equipment."""
IN_HAND = 2
"""Pieces that a worker has: the one that it is at, and one to begin at once after it."""

Complain = Callable[[str], None]


def silence() -> None:
    """What Dask says of itself is for its own people: what matters to the user is said here, in a line."""
    import distributed  # it sets the levels of its parts when it is loaded

    assert distributed
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    for name in ("distributed", "tornado", "asyncio", *names):
        logging.getLogger(name).setLevel(logging.CRITICAL)


@dataclass(eq=False)
class _Member:
    address: str
    name: str
    is_fit: bool = False
    device: str | None = None
    jobs: list[Job] = field(default_factory=list)
    last_seen: Any = None
    seen_at: float = 0.0


class Crew:
    """The workers of one client. A context manager; one thread may use it."""

    def __init__(
        self,
        workers: int | str,
        complain: Complain,
        gpus: Sequence[str] = (),
        device_of: Callable[[], str | None] | None = None,
    ) -> None:
        """So many processes of this machine, or the workers of the scheduler at this address.

        `gpus`: which of these processes sees which, see `LocalCluster`. `device_of` is called in each worker and names
        its device; who has none, or one that another worker has already, is left out. `complain` is told, in a line
        each, of workers that are left out or lost. Raises `UsageError` where there is no such scheduler, or none of its
        workers has this version of the sandbox.
        """
        from distributed import Client

        silence()
        self._complain = complain
        self._expected: Fingerprint = fingerprint()
        self._local = LocalCluster(workers, gpus) if isinstance(workers, int) else None
        self.address = self._local.address if self._local is not None else str(workers)
        self._device_of = device_of
        self.token = secrets.token_hex(8)
        """Different for each crew: what a worker keeps for one is not taken for another's."""
        self._members: dict[str, _Member] = {}
        self._left_out: set[str] = set()
        self._epoch = 0
        self._equipment: list[tuple[Callable[[Any], Any], Any]] = []
        self._waiting: deque[Job] = deque()
        self._retried: deque[Job] = deque()
        """Those that wait once more, each for a worker that has nothing else."""
        self._done: queue.SimpleQueue[tuple[str, Job, Any, Any]] = queue.SimpleQueue()
        self._looked_at = self._alone_since = 0.0
        self._client: Any = None
        try:
            try:
                self._client = Client(self.address, timeout=CONNECT_SECONDS, set_as_default=False)
            except (OSError, ValueError, asyncio.TimeoutError) as error:
                raise UsageError(
                    f"--workers {self.address}: no scheduler answers there ({type(error).__name__}); start one with "
                    "'dask scheduler', and name the address that it prints"
                ) from error
            self._await_first(workers if isinstance(workers, int) else 1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Workers that are fit."""
        return sum(member.is_fit for member in self._members.values())

    @property
    def waiting(self) -> int:
        """Jobs that no worker has."""
        return len(self._waiting) + len(self._retried)

    def equip(self, function: Callable[[Any], Any], argument: Any) -> None:
        """Let every worker, those that come later, too, do this before all that is begun from now on.

        What goes wrong with it is for the work that needs it to tell.
        """
        self._equipment.append((function, argument))
        for member in self._members.values():
            if member.is_fit:
                self._submit(member, Job(function, argument, is_wanted=False))

    def begin(self, function: Callable[[Any], Any], argument: Any, *, first: bool = False) -> Job:
        """Have it done by whoever is free; `first`: before all that is waiting."""
        job = Job(function, argument)
        if first:
            self._wait_first(job)
        else:
            self._waiting.append(job)
        self._hand_out()
        return job

    def forget(self) -> None:
        """Nothing that was begun is wanted any more. What a worker is at ends soon: see `is_abandoned`."""
        for job in (*self._waiting, *self._retried):
            job.is_wanted = False
        self._waiting.clear()
        self._retried.clear()
        begun = [member for member in self._members.values() if member.jobs]
        for member in begun:
            for job in member.jobs:
                job.is_wanted = False
        if begun:
            self._epoch += 1
            with contextlib.suppress(Exception):  # who cannot be told is lost, which the next look sees
                fit = [member.address for member in begun if member.is_fit]
                self._client.run(abandon, self.token, self._epoch, workers=fit, on_error="ignore")

    def wait(self, job: Job) -> Any:
        """Until it is done; its result. Raises what was raised, and `WorkerLost`."""
        while not job.is_done:
            self.attend(LOOK_SECONDS)
        return job.outcome()

    def in_order(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Each as soon as it is done, of several the first."""
        left = list(jobs)
        while left:
            ready = next((job for job in left if job.is_done), None)
            if ready is None:
                self.attend(LOOK_SECONDS)
            else:
                left.remove(ready)
                yield ready

    def spread(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """`function` of each, the first ones first: its place and its result, or a `WorkerLost`, as they are done.

        Raises what else was raised.
        """
        jobs = [self.begin(function, argument) for argument in arguments]
        places = {job: place for place, job in enumerate(jobs)}
        for job in self.in_order(jobs):
            yield places[job], job.error if isinstance(job.error, WorkerLost) else job.outcome()

    def attend(self, seconds: float = 0.0) -> None:
        """Take in what is done within that time, at least what is done by now, and see who is there now and then."""
        with contextlib.suppress(queue.Empty):
            self._take(*self._done.get(timeout=seconds) if seconds else self._done.get_nowait())
            while True:
                self._take(*self._done.get_nowait())
        if time.monotonic() > self._looked_at + LOOK_SECONDS:
            self._look()
        self._hand_out()

    def close(self) -> None:
        """End all of it: the processes of this machine at once, what others have started for this client soon."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                if self._local is None and self._client.status == "running":
                    self.forget()
                    members = [member.address for member in self._members.values() if member.is_fit]
                    self._client.run(end_soon, workers=members, on_error="ignore")
            with contextlib.suppress(Exception):
                self._client.close(timeout=0.2 if self._local is not None else 1.0)
        if self._local is not None:
            self._local.close()
            self._local = None

    # Who is there.

    def _await_first(self, number: int) -> None:
        """Until so many are fit, or there is one and no more come for some seconds."""
        began = time.monotonic()
        self._alone_since = began
        while True:
            self._look()
            found = time.monotonic() - began
            if self.size + len(self._left_out) >= number or (self.size and found > CONNECT_SECONDS):
                break
            if self._local is None and not self._members and found > CONNECT_SECONDS:
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

    def _look(self) -> None:
        if self._local is not None and (loss := self._local.mend()) is not None:
            self._complain(f"{loss}; another takes its place")
        there = self._there()
        now = time.monotonic()
        for address, said in there.items():
            member = self._members.get(address)
            if member is None:
                member = self._members[address] = _Member(address, str(said.get("name", address)), seen_at=now)
            if said.get("last_seen") != member.last_seen:
                member.last_seen, member.seen_at = said.get("last_seen"), now
        for address, member in list(self._members.items()):
            if address not in there:
                self._lose(member, f"worker {member.name} was lost")
                del self._members[address]
            elif member.is_fit and now - member.seen_at > SILENT_SECONDS:
                member.is_fit = False
                self._lose(member, f"worker {member.name} has been silent for {SILENT_SECONDS:g} s")
        self._introduce([m for m in self._members.values() if not m.is_fit and m.address not in self._left_out])
        if self.size:
            self._alone_since = now
        elif now - self._alone_since > ALONE_SECONDS:
            raise WorkersGone("no worker is left; start some, run the same command again, and it goes on")
        self._looked_at = time.monotonic()

    def _there(self) -> dict[str, Any]:
        """Workers by their address, as the scheduler knows them."""
        try:
            if self._client.status in ("closed", "closing"):
                raise OSError("closed")
            return dict(
                self._client.sync(self._client.scheduler.identity, n_workers=-1, callback_timeout=CONNECT_SECONDS)[
                    "workers"
                ]
            )
        except (OSError, asyncio.TimeoutError, RuntimeError) as error:
            raise WorkersGone(
                f"the scheduler at {self.address} is gone; start it and its workers, run the same command again, and "
                "it goes on"
            ) from error

    def _introduce(self, members: Sequence[_Member]) -> None:
        fresh = [member for member in members if time.monotonic() - member.seen_at <= SILENT_SECONDS]
        if not fresh:
            return
        addresses = [member.address for member in fresh]
        try:
            said = self._client.run(introduce, self._device_of, workers=addresses, on_error="return")
        except (OSError, asyncio.TimeoutError):
            return  # one of them has gone meanwhile; the next look sees who is there
        for member in fresh:
            reason = self._why_unfit(said.get(member.address))
            if reason is not None:
                self._left_out.add(member.address)
                self._complain(f"worker {member.name} is left out: {reason}")
                continue
            member.is_fit, member.device = True, said[member.address].device
            for function, argument in self._equipment:
                self._submit(member, Job(function, argument, is_wanted=False))

    def _why_unfit(self, said: Any) -> str | None:
        if isinstance(said, Introduction):
            difference = self._expected.difference(said.fingerprint)
            if difference is not None:
                return f"it has another version of the sandbox: {difference}"
            return None if self._device_of is None else self._why_without_device(said.device)
        if isinstance(said, Unfit):
            return str(said)
        what = " ".join(str(said).split()) or type(said).__name__
        return f"it cannot load the sandbox ({what}); start it where this folder is on its PYTHONPATH"

    def _why_without_device(self, device: str | None) -> str | None:
        if device is None:
            return "it sees no GPU"
        other = next((m for m in self._members.values() if m.is_fit and m.device == device), None)
        return None if other is None else f"worker {other.name} has the same GPU, and times would be of both"

    # Who does what.

    def _hand_out(self) -> None:
        while self.waiting:
            # While one waits for a worker of its own, none gets a second piece.
            most = 1 if self._retried else IN_HAND
            fit = [member for member in self._members.values() if member.is_fit]
            free = [member for member in fit if len(member.jobs) < most and not any(job.tried for job in member.jobs)]
            offers = ((job, _another(job, fit, free)) for job in self._retried)
            job, member = next((offer for offer in offers if offer[1] is not None), (None, None))
            if job is not None:
                self._retried.remove(job)
            elif free and self._waiting:
                job, member = self._waiting.popleft(), _least_busy(free)
            if job is None or member is None:
                return
            self._submit(member, job)

    def _wait_first(self, job: Job) -> None:
        (self._retried if job.tried else self._waiting).appendleft(job)

    def _submit(self, member: _Member, job: Job) -> None:
        from distributed.protocol.pickle import dumps

        member.jobs.append(job)
        future = self._client.submit(
            perform,
            dumps((job.function, job.argument)),  # the scheduler, which all jobs pass, has no need to read them
            self.token,
            self._epoch if job.is_wanted else NEVER_FORGOTTEN,
            workers=[member.address],
            allow_other_workers=False,
            pure=False,
        )
        client, done, address = self._client, self._done, member.address

        def fetch(finished: Any) -> None:
            if finished.status == "finished":
                job.finished_at = address
            else:
                done.put((address, job, finished, None))
                return
            # Its worker has the result, and may be gone before it is here: nobody waits for that.
            fetched = asyncio.run_coroutine_threadsafe(
                client.gather(finished, asynchronous=True), client.loop.asyncio_loop
            )
            fetched.add_done_callback(lambda result: done.put((address, job, finished, result)))

        future.add_done_callback(fetch)

    def _take(self, address: str, job: Job, future: Any, fetched: Any) -> None:
        member = self._members.get(address)
        if member is not None and job in member.jobs:
            member.jobs.remove(job)
        else:
            return  # it was given up there
        if not job.is_wanted:
            return
        if fetched is not None:
            if fetched.cancelled() or fetched.exception() is not None:
                job.lost_results += 1
                if job.lost_results < MOST_LOST_RESULTS:
                    self._wait_first(job)
                else:
                    job.error, job.is_done = WorkerLost(f"its result was lost {MOST_LOST_RESULTS} times"), True
            else:
                job.result, job.is_done = fetched.result(), True
        elif future.status == "error":
            raised = future.exception(timeout=CONNECT_SECONDS)
            if isinstance(raised, Unfit):
                self._again(job, address, str(raised))
            else:
                job.error, job.is_done = raised, True
        else:
            self._again(job, address, "its worker was lost")

    def _lose(self, member: _Member, reason: str) -> None:
        jobs, member.jobs = member.jobs, []
        wanted = [job for job in jobs if job.is_wanted and not job.is_done]
        # The first that was not done is what it was at; it had not begun the others.
        guilty = next((job for job in wanted if job.finished_at != member.address), None)
        for job in wanted:
            if job is guilty:
                self._again(job, member.address, reason)
            else:
                self._wait_first(job)
        if self._local is None:
            self._complain(reason)

    def _again(self, job: Job, address: str, reason: str) -> None:
        if job.is_done or address in job.tried:
            return
        job.tried.append(address)
        job.reason = reason
        if len(job.tried) < MOST_TRIES:
            self._wait_first(job)
        else:
            job.error, job.is_done = WorkerLost(f"{reason}, and so was the one that tried it before"), True


def _another(job: Job, fit: Sequence[_Member], free: Sequence[_Member]) -> _Member | None:
    """A free one that has not lost the job, or any where no fit one is left but those that have; None: it waits."""
    others = [member for member in free if member.address not in job.tried]
    if not others and any(member.address not in job.tried for member in fit):
        return None
    return _least_busy(others or free)


def _least_busy(members: Sequence[_Member]) -> _Member | None:
    return min(members, key=lambda member: len(member.jobs), default=None)
