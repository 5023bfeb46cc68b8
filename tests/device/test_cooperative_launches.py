"""Cooperative launches: blocks that are resident together and wait for each other."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from numba import cuda

from harness import Device, KernelFault, UsageError

pytestmark = pytest.mark.compiles

SHIFTS = r"""
#include <cooperative_groups.h>
extern "C" __global__ void shifts(int* x, int* y, int n, int rounds) {
    auto grid = cooperative_groups::this_grid();
    for (int round = 0; round < rounds; ++round) {
        for (int i = grid.thread_rank(); i < n; i += grid.size()) y[i] = x[(i + 1) % n];
        grid.sync();
        for (int i = grid.thread_rank(); i < n; i += grid.size()) x[i] = y[(i + 1) % n];
        grid.sync();
    }
}
"""


@cuda.jit
def reverses(x):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    value = x[x.size - 1 - i]
    grid.sync()
    x[i] = value


def shift(device: Device, grid: int, cooperative: bool, kernel: cupy.RawKernel | None = None) -> list[int]:
    x, y = device.array(np.arange(300, dtype=np.int32)), device.empty(300, np.int32)
    kernel = kernel or cupy.RawKernel(SHIFTS, "shifts")
    device.launch(kernel, grid, 64, (x, y, np.int32(300), np.int32(2)), cooperative=cooperative)
    return x.numpy().tolist()


def test_a_missing_sync_is_found() -> None:
    device = Device(sanitize=True)
    x, y = device.array(np.arange(300, dtype=np.int32)), device.empty(300, np.int32)
    args = (x, y, np.int32(300), np.int32(2))
    assert device.launch(cupy.RawKernel(SHIFTS, "shifts"), 5, 64, args, cooperative=True).findings == ()
    for place in (0, 1):
        parts = SHIFTS.split("grid.sync();")
        source = "grid.sync();".join([*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]])
        found = device.launch(cupy.RawKernel(source, "shifts"), 5, 64, args, cooperative=True).findings
        assert found and all(finding.kind.endswith("race") for finding in found)


@pytest.mark.parametrize("sanitize", [False, True])
def test_all_blocks_of_a_grid_meet_at_each_sync(sanitize: bool) -> None:
    expected = [(i + 4) % 300 for i in range(300)]
    assert shift(Device(sanitize=sanitize), 5, cooperative=True) == expected
    always = cupy.RawKernel(SHIFTS, "shifts", enable_cooperative_groups=True)
    assert shift(Device(sanitize=sanitize), 5, cooperative=False, kernel=always) == expected


def test_a_numba_kernel_that_meets_is_launched_cooperatively() -> None:
    device = Device()
    x = device.array(np.arange(128, dtype=np.float32))
    result = device.launch(reverses, 4, 32, (x,))
    assert x.numpy().tolist() == list(range(127, -1, -1))
    assert result.registers
    assert [row.buffer for row in result.traffic if row.kind == "atomic"] == ["grid barrier"]


def test_without_a_cooperative_launch_the_kernel_stops_itself() -> None:
    with pytest.raises(KernelFault, match=r"grid.sync\(\) needs a cooperative launch") as caught:
        shift(Device(), 5, cooperative=False)
    assert caught.value.kind == "trap"


def test_a_grid_that_does_not_fit_is_refused() -> None:
    """32 blocks of 64 threads on each of 132 multiprocessors."""
    with pytest.raises(UsageError, match=r"4,225 blocks, .* holds 4,224 at a time \(CUDA_ERROR_COOPERATIVE_LAUNCH_"):
        shift(Device(), 4225, cooperative=True)
