"""Runs one CUDA or Numba kernel under the sanitizer: what the tests of races and unwritten memory share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.instruments import Instruments
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.model.finding import Finding

SANITIZER = Instruments(sanitizer=True)
FILE = "planted.cu"


def numbered(source: str) -> str:
    """CUDA C whose lines are called planted.cu:1 ff., from the first line behind the quotes on."""
    return f'#line 1 "{FILE}"\n{source.removeprefix(chr(10))}'


def find(
    kernel: Any,
    arrays: dict[str, np.ndarray],
    args: tuple[Any, ...],
    unwritten: str = "",
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_bytes: int = 0,
    threads: int = 2,
    seed: int = 0,
    shuffle: bool = False,
    cluster: tuple[int, int, int] | None = None,
    resident: Callable[[], int] | None = None,
    step_limit: int = 10_000_000,
    arch: str = "sm_90",
) -> tuple[Finding, ...]:
    """The findings. `kernel` is CUDA source of a kernel `k`, or a Numba function; `unwritten` names scratch buffers."""
    if isinstance(kernel, str):
        import cupy

        kernel = cupy.RawKernel(numbered(kernel), "k")
    memory, pointers = [], {}
    for index, (name, array) in enumerate(arrays.items()):
        data = aligned_zeros(array.nbytes)[: array.nbytes]
        data[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory.append(DeviceBuffer(name, data, np.full(array.nbytes, 0xFF * (name in unwritten.split()), np.uint8)))
        pointers[name] = DevicePointer(at.buffer_address(index), array.shape, str(array.dtype))
    values = tuple(pointers[a] if isinstance(a, str) else a for a in args)
    compiled = compile_kernel(kernel, values, arch)
    native = native_kernel(compiled.ptx, compiled.entry, instruments=SANITIZER)
    options = LaunchOptions(step_limit, threads, seed, shuffle)
    geometry = Geometry(grid, block, shared_bytes, cluster)
    launched = launch(native, compiled.name, geometry, compiled.pack(values), memory, options, resident=resident)
    found = launched.findings
    assert found is not None
    return found


def lines(finding: Finding) -> tuple[str, int, int | None]:
    """Kind and source lines: where it showed and, of a race, the access before."""
    assert finding.place is not None
    return finding.kind, finding.place.line, finding.other.line if finding.other else None
