"""Schedules the clusters of a launch (usually of one block each): on several cores, or in turns on one.

Blocks that cannot communicate run concurrently, each to its end. Blocks that can (by atomics, or volatile and acquiring
loads of global memory) run in order on one core, so that results do not depend on the number of cores. There a cluster
that spins is suspended and the next ones run, as many at a time as a GPU holds; then suspended clusters take turns.
Each suspended cluster has its own `Worker`, whose memory is its complete state. For the sanitizer, most turns are short
and of random lengths, so that clusters that wait for each other overtake each other everywhere.
"""

from __future__ import annotations

import random
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.launch_control import LaunchQueues
from harness.emulator.launch.tracing import BlockListener
from harness.emulator.launch.worker import Worker

RunBlocks = Callable[[int, int, int], int]
"""The native function `runtime.schedule.run_blocks`."""
Progress = Callable[[float], None]
_MOST_AT_ONCE = 64
"""Number of clusters that a core takes at a time."""
_FUTILE_PASSES = 3
"""Number of passes without progress over all waiting clusters after which they are considered deadlocked."""
_SANITIZED = 1 / 8
"""Share of `PATIENCE_STEPS` after which the sanitizer suspends a cluster, since its instructions take longer."""
_LONG_TURNS = 0.25
_SHORTEST, _LONGEST = 0, 8
"""If turns are of random lengths: the share of long ones, and bounds of the binary logarithm of the others."""
_SPINNING_SHARE = 8
"""The deadlock also requires 1 / this of a warp's step limit, since stores of spinning warps may have an effect."""


@dataclass
class _SpinCount:
    """Number of times, and of instructions, that suspended clusters have run since one last made progress."""

    times: int = 0
    steps: int = 0

    def add(self, steps: int) -> None:
        self.times, self.steps = self.times + 1, self.steps + steps

    def clear(self) -> None:
        self.times = self.steps = 0


class GridRun:
    """The execution of one launch. `new_worker` creates a core's memory; `workers` has all that were created.

    `chosen` are the clusters that run; None for all. `lengths` draws the lengths of turns of suspended clusters;
    without it, all turns are long. With `queues`, only the clusters that start have a place in the order; those of a
    queue follow in the same place, unless they are cancelled.
    """

    def __init__(
        self,
        geometry: Geometry,
        chosen: npt.NDArray[np.int64] | None,
        stop_at: npt.NDArray[np.int64],
        run_blocks: RunBlocks,
        new_worker: Callable[[], Worker],
        listener: BlockListener | None,
        progress: Progress | None,
        lengths: random.Random | None = None,
        queues: LaunchQueues | None = None,
    ) -> None:
        self._geometry, self._stop_at, self._run_blocks = geometry, stop_at, run_blocks
        self._new_worker, self._listener, self._progress = new_worker, listener, progress
        self._lengths = lengths
        self._chosen = chosen
        self._all_clusters = geometry.clusters if chosen is None else len(chosen)
        self._queues = queues
        self._clusters = self._all_clusters if queues is None else queues.started
        self._handed_over: set[int] = set()
        self._patience = at.PATIENCE_STEPS if lengths is None else int(at.PATIENCE_STEPS * _SANITIZED)
        self.workers: list[Worker] = []
        self.deadlocked: tuple[Worker, ...] = ()
        """The workers of clusters that wait for each other, if that is why one of them was stopped."""
        self.not_started = 0
        """The number of clusters that could not start then."""
        self._faults: list[tuple[int, Worker]] = []
        self._lock = threading.Lock()
        self._next = self._done = 0

    def run(self, cores: int, resident: Callable[[], int] | None) -> list[tuple[int, Worker]]:
        """Run all clusters, and return the faults as (cluster, worker).

        If clusters take turns on one core, `resident()` is the number that a GPU holds at a time; it is only called
        when one is suspended.
        """
        jobs: list[Callable[[Progress | None], None]]
        if resident is not None:
            jobs = [partial(self._in_turns, resident)]
        else:
            jobs = [partial(self._in_order, self._worker()) for _ in range(cores)]
        if len(jobs) == 1 and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Without a listener to progress, use this thread: starting one would cost more than a small launch.
            jobs[0](self._progress)
            return self._faults
        with ThreadPoolExecutor(len(jobs)) as pool:
            pending = {pool.submit(job, None) for job in jobs}
            try:
                while pending:
                    finished, pending = wait(pending, timeout=0.1)
                    for future in finished:
                        future.result()
                    self._tell(self._progress)
            except BaseException:
                # Ctrl-C: start no new blocks, and stop running warps at their next loop.
                self._next = self._clusters
                for worker in self.workers:
                    worker.set("STEP_LIMIT", 0)
                raise
        return self._faults

    def deliver_cancelled(self) -> None:
        """Tell the listener that the blocks of cancelled clusters accessed nothing."""
        if self._listener is None or self._queues is None:
            return
        for cluster in range(self._all_clusters):
            if cluster not in self._handed_over:
                for rank in range(self._geometry.blocks_per_cluster):
                    self._listener.deliver(self._geometry.block_of(cluster, rank), np.zeros(0, np.uint64))

    def _worker(self) -> Worker:
        worker = self._new_worker()
        self.workers.append(worker)
        return worker

    def _tell(self, tell: Progress | None) -> None:
        if tell is not None:
            tell(min(1.0, self._done / self._clusters))

    def _in_order(self, worker: Worker, tell: Progress | None) -> None:
        """Run on one core: take some clusters after the other, until none is left."""
        clusters = self._clusters
        chunk = max(1, min(_MOST_AT_ONCE, clusters // (8 * len(self.workers))))
        while True:
            with self._lock:
                first = self._next
                self._next = first + chunk
            if first >= clusters or first > self._stop_at[0]:
                return
            outcome = self._run(worker, first, min(first + chunk, clusters))
            with self._lock:
                self._done += chunk
                if outcome == at.STOPPED:
                    self._note_fault(worker)
                    return
            self._tell(tell)

    def _in_turns(self, resident: Callable[[], int], tell: Progress | None) -> None:
        """Run on one core: start clusters while a GPU has room for them, then resume suspended ones, repeatedly."""
        clusters = self._clusters
        most: int | None = None
        waiting: deque[Worker] = deque()
        idlers: list[Worker] = []
        spins = _SpinCount()
        while self._next < clusters or waiting:
            if self._next < clusters and (most is None or len(waiting) < most):
                worker = idlers.pop() if idlers else self._worker()
                if self._lengths is not None and most is not None:
                    worker.set("WAITS", 1)
                first, last = self._next, min(self._next + _MOST_AT_ONCE, clusters)
                worker.set("PATIENCE", self._patience)
                outcome = self._run(worker, first, last)
                self._next = last if outcome == at.ENDED else worker.get("PLACE") + 1
                self._done += self._next - first - (outcome != at.ENDED)
                spins.clear()
            else:
                worker = waiting.popleft()
                first, before = worker.get("PLACE"), worker.get("CLUSTER_STEPS")
                state = worker.get("SPINNING_STATE")
                steps = self._turn_steps(is_stuck=spins.times > len(waiting))
                worker.set("PATIENCE", steps)
                outcome = self._run(worker, first, first + 1)
                self._done += outcome == at.ENDED
                if steps < self._patience and outcome == at.PAUSES:
                    pass
                elif outcome == at.SPINS and worker.get("SPINNING_STATE") == state:
                    spins.add(worker.get("CLUSTER_STEPS") - before)
                else:
                    spins.clear()
            if outcome == at.STOPPED:
                self._note_fault(worker)
                return
            if outcome == at.ENDED:
                idlers.append(worker)
            else:
                waiting.append(worker)
                most = max(1, resident()) if most is None else most
            limit = worker.get("STEP_LIMIT") // _SPINNING_SHARE
            if spins.steps > limit and spins.times > _FUTILE_PASSES * len(waiting):
                if most is not None and self._next < clusters and worker.get("PLACES"):
                    # A GPU may have started others first: only an ascending order is expected to suffice.
                    most *= 2
                    spins.clear()
                else:
                    self.deadlocked, self.not_started = tuple(waiting), clusters - self._next
                    waiting[0].set("STEP_LIMIT", 0)
            self._tell(tell)

    def _turn_steps(self, is_stuck: bool) -> int:
        """Instructions of the next turn of a suspended cluster. Only long turns show that a cluster spins."""
        if self._lengths is None or is_stuck or self._lengths.random() < _LONG_TURNS:
            return self._patience
        return int(2 ** self._lengths.uniform(_SHORTEST, _LONGEST))

    def _note_fault(self, worker: Worker) -> None:
        cluster = self._geometry.cluster_of(worker.get("FAULT_BLOCK"))
        self._faults.append((cluster, worker))
        self._stop_at[0] = min(int(self._stop_at[0]), cluster)

    def _run(self, worker: Worker, first: int, last: int) -> int:
        """Run clusters on a worker, notify listeners of each, and return the status of `run_blocks`."""
        context = worker.context.ctypes.data
        if worker.trace is None and worker.events is None and worker.executions is None:
            return self._run_blocks(context, first, last)
        worker.set("HANDS_OVER", 1)
        for place in range(first, last):
            outcome = at.FOLLOWED
            while outcome == at.FOLLOWED:
                if not worker.get("SUSPENDED"):
                    following = worker.get("NEXT_CLUSTER")
                    worker.number = place if following < 0 else following
                    if worker.executions is not None:
                        worker.executions.begin(worker.number)
                outcome = self._run_blocks(context, place, place + 1)
                if outcome not in (at.ENDED, at.FOLLOWED):
                    return outcome
                self._hand_over(worker, worker.number)
        return at.ENDED

    def _hand_over(self, worker: Worker, cluster: int) -> None:
        """Pass the records of a finished cluster to the listeners."""
        geometry = self._geometry
        together = geometry.blocks_per_cluster
        number = cluster if self._chosen is None else int(self._chosen[cluster])
        if self._queues is not None:
            self._handed_over.add(cluster)
        if worker.executions is not None:
            worker.executions.end(cluster)
        if worker.events is not None:
            worker.events.hand_over([geometry.block_of(number, rank) for rank in range(together)], worker.warp_pitch)
        if self._listener is not None and worker.trace is not None:
            for rank, accesses in enumerate(worker.trace.take(together, worker.warp_pitch)):
                # In order of those that run.
                self._listener.deliver(geometry.block_of(cluster, rank), accesses)
