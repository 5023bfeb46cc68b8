"""Plays `GpuContext` for runs of stamped kernels: arrays are the host's, and launches run on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.model.plan import Buffer, Launch
from harness.ptx.timestamps import stamped


class EmulatedContext:
    """As much of it as `stamped_run` uses."""

    def __init__(self) -> None:
        self.device = SimpleNamespace(name="an emulated GPU")
        self.stream = SimpleNamespace(synchronize=lambda: None)
        self.arrays: dict[str, tuple[Buffer, np.ndarray]] = {}

    @contextmanager
    def memory(self) -> Iterator[None]:
        yield

    @contextmanager
    def faults_named(self, kernel_name: str) -> Iterator[None]:
        yield

    def allocate(self, buffer: Buffer) -> np.ndarray:
        data = np.zeros(buffer.size_bytes, np.uint8)
        self.arrays[buffer.name] = buffer, data
        return data

    def upload(self, array: np.ndarray, values: np.ndarray) -> None:
        array[:] = values.reshape(-1).view(np.uint8)

    def fill(self, array: np.ndarray, byte: int) -> None:
        array[:] = byte

    def download(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return array.view(dtype)

    def bind_stamped(
        self, launches: Sequence[Launch], arrays: Mapping[str, np.ndarray], rooms: Sequence[np.ndarray], stamps: int
    ) -> list[Callable[[], None]]:
        return [self._bound(step, arrays, room, stamps) for step, room in zip(launches, rooms, strict=True)]

    def _bound(
        self, step: Launch, arrays: Mapping[str, np.ndarray], room: np.ndarray, stamps: int
    ) -> Callable[[], None]:
        names = list(arrays)
        pointers: dict[str, Any] = {}
        for number, name in enumerate(names):
            buffer = self.arrays[name][0]
            pointers[name] = DevicePointer(at.buffer_address(number), buffer.shape, buffer.dtype)
        given = tuple(pointers[each] if isinstance(each, str) else each for each in step.args)
        compiled = compile_kernel(step.kernel, given, "sm_90")
        kernel = native_kernel(stamped(compiled.ptx, [compiled.entry], stamps), compiled.entry)
        memory = [DeviceBuffer(name, arrays[name]) for name in names] + [DeviceBuffer("stamps", room)]
        words = [*compiled.pack(given), np.uint64(at.buffer_address(len(names))).tobytes()]
        grid, block = ((*extents, 1, 1)[:3] for extents in (step.grid, step.block))
        geometry = Geometry(grid, block, step.shared_bytes)
        return lambda: void(launch(kernel, step.kernel_name, geometry, words, memory, LaunchOptions(10**9, 1, 0)))


def void(_: object) -> None:
    """Calls of a GPU return nothing."""
