"""Sixty kernels on a graph: each of the thirty racy ones is found on its marked lines, and no clean one is accused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cupy
import numpy as np
import pytest
from graph_kernels import BLOCKS, FILE, NODES, THREADS, GraphKernel, graph, module
from sanitized_kernel import SANITIZER

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import launch
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.native.kernel_cache import native_kernel
from harness.model.finding import Finding

SOURCE, KERNELS = module()
SCHEDULES = 3


@cache
def compiled() -> tuple[str, bytes]:
    """The PTX of all kernels, and the parameters that each of them takes."""
    arrays = graph()
    pointers = [DevicePointer(at.buffer_address(n), a.shape, str(a.dtype)) for n, a in enumerate(arrays.values())]
    values = (*pointers, np.int32(NODES))
    found = compile_kernel(cupy.RawKernel(SOURCE, KERNELS[0].name), values, "sm_90")
    return found.ptx, found.pack(values)


def races(kernel: GraphKernel) -> list[Finding]:
    """What the sanitizer finds in three schedules; the first finds most, and what it misses a shuffled one has."""
    ptx, parameters = compiled()
    native = native_kernel(ptx, kernel.name, instruments=SANITIZER)
    found: list[Finding] = []
    for schedule in range(SCHEDULES):
        arrays = {name: array.view(np.uint8).copy() for name, array in graph().items()}
        memory = [DeviceBuffer(name, data, np.zeros(len(data), np.uint8)) for name, data in arrays.items()]
        options = LaunchOptions(1_000_000, 1, schedule, schedule > 0)
        geometry = Geometry((BLOCKS, 1, 1), (THREADS, 1, 1), 0)
        found += launch(native, kernel.name, geometry, parameters, memory, options).findings or ()
    return found


def test_there_are_sixty_kernels_in_pairs() -> None:
    assert len(KERNELS) == 60
    assert sum(kernel.is_racy for kernel in KERNELS) == 30
    assert all(bool(kernel.marked) == kernel.is_racy for kernel in KERNELS)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_race_is_found_on_its_lines_and_nowhere_else(kernel: GraphKernel) -> None:
    found = races(kernel)
    assert {finding.kind.rpartition(" ")[2] for finding in found} == ({"race"} if kernel.is_racy else set()), found
    for finding in found:
        assert finding.place is not None and finding.other is not None
        assert {Path(place.file).name for place in (finding.place, finding.other)} == {FILE}
        assert {finding.place.line, finding.other.line} <= kernel.marked, finding.message
