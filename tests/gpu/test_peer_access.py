"""Contexts of several GPUs, with a stand-in for CuPy that records what its runtime is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harness.gpu.context import GpuContext

PROPERTIES = {"l2CacheSize": 1, "name": b"Some GPU", "major": 9, "minor": 0}


class FakeError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class FakeRuntime:
    """Calls of the runtime, in order. GPU 2 cannot access others."""

    memcpyDeviceToDevice = 3
    CUDARuntimeError = FakeError

    def __init__(self, gpus: int, current: int = 0) -> None:
        self.gpus, self.current, self.refusal = gpus, current, 704
        self.enabled: list[tuple[int, int]] = []
        self.copies: list[tuple[Any, ...]] = []

    def getDeviceCount(self) -> int:
        return self.gpus

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        assert 0 <= number < self.gpus
        return PROPERTIES

    def deviceCanAccessPeer(self, one: int, other: int) -> bool:
        return 2 not in (one, other)

    def deviceEnablePeerAccess(self, other: int) -> None:
        if (self.current, other) in self.enabled:
            raise FakeError(self.refusal)
        self.enabled.append((self.current, other))

    def memcpyAsync(self, *args: Any) -> None:
        self.copies.append(("within", *args))

    def memcpyPeerAsync(self, *args: Any) -> None:
        self.copies.append(("between", *args))


def fake_cupy(monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime) -> None:
    class FakeDevice:
        def __init__(self, number: int | None = None) -> None:
            self.id = runtime.current if number is None else number

        def __enter__(self) -> None:
            self.before, runtime.current = runtime.current, self.id

        def __exit__(self, *args: object) -> None:
            runtime.current = self.before

    @contextmanager
    def using_allocator(allocator: Any) -> Iterator[None]:
        yield

    cuda = SimpleNamespace(
        Device=FakeDevice,
        runtime=runtime,
        Stream=lambda non_blocking: SimpleNamespace(ptr=100 + runtime.current),
        Event=lambda disable_timing: SimpleNamespace(gpu=runtime.current),
        MemoryPool=lambda: SimpleNamespace(malloc=None),
        using_allocator=using_allocator,
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]


def array(address: int) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def test_as_many_gpus_as_there_are_access_each_other(monkeypatch: pytest.MonkeyPatch):
    runtime = FakeRuntime(gpus=3, current=1)
    fake_cupy(monkeypatch, runtime)
    first = GpuContext()
    assert first.device.count == 3
    for count, numbers in ((1, [1]), (2, [1, 2]), (8, [1, 2, 0])):
        assert [context.gpu.id for context in first.peers(count)] == numbers
    assert sorted(runtime.enabled) == [(0, 1), (1, 0)]  # once, as the second time is an error that means nothing
    assert runtime.current == 1
    assert [first.peers(3)[2].event().gpu, first.peers(3)[2].new_stream().ptr] == [0, 100]
    runtime.refusal = 1
    first.peers(2)
    with pytest.raises(FakeError):
        first.peers(3)


def test_a_copy_is_within_a_gpu_or_between_two(monkeypatch: pytest.MonkeyPatch):
    runtime = FakeRuntime(gpus=2)
    fake_cupy(monkeypatch, runtime)
    one, other = GpuContext().peers(2)
    one.copy_to(other, array(1000), array(2000), 48, one.stream)
    one.copy_to(one, array(1000), array(3000), 16, one.stream)
    # Arguments as of cudaMemcpyPeerAsync and cudaMemcpyAsync.
    assert runtime.copies == [("between", 2000, 1, 1000, 0, 48, 100), ("within", 3000, 1000, 16, 3, 100)]
