"""Runs one CUDA or Numba kernel on the emulator over named NumPy arrays: what the tests of the emulator share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import LaunchCounts, LaunchEvents, launch
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.launch.tracing import BlockListener
from harness.emulator.native.kernel_cache import native_kernel
from harness.model.plan import BlockSample

STEP_LIMIT = 2_000_000


def cuda_source(parameters: str, body: str) -> str:
    """CUDA C of a kernel `k`."""
    return f'extern "C" __global__ void k({parameters}) {{ {body} }}'


def run(
    kernel: Any,
    arrays: dict[str, np.ndarray],
    args: tuple[Any, ...],
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_bytes: int = 0,
    threads: int = 1,
    seed: int = 0,
    shuffle: bool = False,
    step_limit: int = STEP_LIMIT,
    listener: BlockListener | None = None,
    cluster: tuple[int, int, int] | None = None,
    events: LaunchEvents | None = None,
    resident: Callable[[], int] | None = None,
    arch: str = "sm_90",
    sample: BlockSample | None = None,
) -> tuple[dict[str, np.ndarray], LaunchCounts]:
    """Launch `kernel` (CUDA source of a kernel `k`, or a Numba function): the arrays afterwards, and the counts."""
    if isinstance(kernel, str):
        import cupy

        kernel = cupy.RawKernel(kernel, "k")
    memory, pointers = [], {}
    for index, (name, array) in enumerate(arrays.items()):
        data = aligned_zeros(array.nbytes)[: array.nbytes]
        data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory.append(DeviceBuffer(name, data))
        pointers[name] = DevicePointer(at.buffer_address(index), array.shape, str(array.dtype))
    values = tuple(pointers[a] if isinstance(a, str) else a for a in args)
    compiled = compile_kernel(kernel, values, arch)
    counts = launch(
        native_kernel(compiled.ptx, compiled.entry),
        compiled.name,
        Geometry(grid, block, shared_bytes, cluster, sample=sample),
        compiled.pack(values),
        memory,
        LaunchOptions(step_limit, threads, seed, shuffle),
        listener=listener,
        events=events,
        resident=resident,
    )
    after = {b.name: b.data.view(a.dtype).reshape(a.shape).copy() for b, a in zip(memory, arrays.values())}
    return after, counts
