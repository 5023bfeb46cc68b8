"""Stands in for several GPUs: work waits in streams until somebody waits for it, and then runs in any allowed order.

Kernels are Python functions of their arrays, which take the milliseconds in their attribute `ms`. So tests see what
events order and what they do not, and how long it takes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.model.plan import Buffer, Launch
from tests.gpu.host_context import HostContext

Work = Callable[[], None]


class FakeEvent:
    """Counts how often it was recorded by the host, and by its stream."""

    def __init__(self) -> None:
        self.recorded = self.reached = 0
        self.ms = 0.0

    def record(self, stream: FakeStream) -> None:
        self.recorded += 1
        number = self.recorded

        def reach() -> None:
            self.reached, self.ms = number, stream.ms

        stream.add(reach)

    def synchronize(self) -> None:
        pass  # `Stopwatch` reads its time, for which all work runs


class FakeStream:
    """Work in order, with the time at which the last of it ended."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine, self.ms, self.speed = machine, 0.0, machine.random.random()
        self.work: list[tuple[Callable[[], bool], Work]] = []
        machine.streams.append(self)

    def add(self, work: Work, ms: float = 0.0, may_begin: Callable[[], bool] = lambda: True) -> None:
        def timed() -> None:
            work()
            self.ms += ms

        self.work.append((may_begin, timed))

    def wait_event(self, event: FakeEvent) -> None:
        number = event.recorded

        def later() -> None:
            self.ms = max(self.ms, event.ms)

        if number:  # as in CUDA, an event that nobody has recorded is none
            self.add(later, may_begin=lambda: event.reached >= number)

    def synchronize(self) -> None:
        self.machine.run()


class FakeMachine:
    """Some GPUs, of which `seed` chooses which streams are slow: another one's work always runs before theirs."""

    def __init__(self, gpus: int, seed: int = 0, copy_ms: float = 0.0) -> None:
        self.streams: list[FakeStream] = []
        self.copy_ms = copy_ms
        self.random = random.Random(seed)
        self.contexts = [FakeContext(self, number) for number in range(gpus)]

    def run(self) -> None:
        """Run all work, each stream's in order."""
        while pending := [stream for stream in self.streams if stream.work]:
            able = [stream for stream in pending if stream.work[0][0]()]
            assert able, "all streams wait for each other"
            _, work = max(able, key=lambda stream: stream.speed).work.pop(0)
            work()


class FakeContext(HostContext):
    """One of the GPUs."""

    def __init__(self, machine: FakeMachine, number: int) -> None:
        super().__init__()
        self.machine, self.gpu, self.l2_bytes = machine, SimpleNamespace(id=number), 1
        self.stream: Any = FakeStream(machine)
        cuda = SimpleNamespace(Event=FakeEvent, get_elapsed_time=self._elapsed_ms)
        own = {"empty": lambda size, dtype: SimpleNamespace(data=0), "RawKernel": self._kernel, "cuda": cuda}
        self.cupy = SimpleNamespace(**{**vars(self.cupy), **own})

    def _kernel(self, text: str, name: str) -> Callable[..., None]:
        return lambda grid, block, args: self.stream.add(lambda: None, ms=1.0)

    def _elapsed_ms(self, start: FakeEvent, end: FakeEvent) -> float:
        self.machine.run()
        return end.ms - start.ms

    def peers(self, count: int) -> list[FakeContext]:
        return self.machine.contexts[:count]

    def current(self) -> Any:
        return nullcontext()

    def event(self) -> FakeEvent:
        return FakeEvent()

    def new_stream(self) -> FakeStream:
        return FakeStream(self.machine)

    def copy_to(self, other: FakeContext, source: Any, destination: Any, size_bytes: int, stream: FakeStream) -> None:
        assert size_bytes <= source.nbytes
        stream.add(lambda: _copy_bytes(source, destination, size_bytes), self.machine.copy_ms)

    def upload(self, array: np.ndarray, values: np.ndarray) -> None:
        self.machine.run()
        array[...] = values

    def download(self, array: np.ndarray, dtype: str) -> np.ndarray:
        self.machine.run()
        return array.copy()

    def fill(self, array: np.ndarray, byte: int) -> None:
        self.stream.add(lambda: HostContext.fill(self, array, byte), ms=0.5)

    def allocate(self, buffer: Buffer) -> np.ndarray:
        return np.empty(buffer.shape, buffer.dtype)

    def bind(self, launch: Launch, arrays: Mapping[str, np.ndarray]) -> Work:
        kernel, given = launch.kernel, [arrays[name] if isinstance(name, str) else name for name in launch.args]
        return lambda: self.stream.add(lambda: kernel(*given), getattr(kernel, "ms", 0.0))


def _copy_bytes(source: np.ndarray, destination: np.ndarray, size_bytes: int) -> None:
    destination.reshape(-1).view(np.uint8)[:size_bytes] = source.reshape(-1).view(np.uint8)[:size_bytes]
