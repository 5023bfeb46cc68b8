"""Stands in for a GPU's context: arrays are NumPy's, and a kernel is a Python function of its arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.execution.protocol import Device
from harness.model.plan import Buffer, Launch


class HostContext:
    """The part of `GpuContext` that allocates, copies, fills and binds. A kernel is a Python function of its arrays."""

    def __init__(self) -> None:
        self.device = Device("gpu", "stand-in", "sm_90")
        self.stream = SimpleNamespace(synchronize=lambda: None)
        self.cupy = SimpleNamespace(empty=np.empty, ndarray=self._at, lib=np.lib, asarray=np.asarray)

    def _at(self, shape: tuple[int, ...], dtype: np.dtype, address: Any) -> np.ndarray:
        return np.empty(shape, dtype)

    def require_alive(self) -> None:
        pass

    def memory(self) -> Any:
        return nullcontext()

    def current(self) -> Any:
        return nullcontext()

    def event(self) -> Any:
        return None

    @contextmanager
    def faults_named(self, kernel_name: str) -> Iterator[None]:
        yield

    def allocate(self, buffer: Buffer) -> np.ndarray:
        return np.empty(buffer.shape, buffer.dtype)

    def upload(self, array: np.ndarray, values: np.ndarray) -> None:
        array[...] = values

    def download(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return array.copy()

    def fill(self, array: np.ndarray, byte: int) -> None:
        array.reshape(-1).view(np.uint8)[:] = byte

    def bind(self, launch: Launch, arrays: Mapping[str, np.ndarray]) -> Any:
        return lambda: launch.kernel(*(arrays[name] for name in launch.args))
