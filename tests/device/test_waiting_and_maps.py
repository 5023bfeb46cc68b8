"""Tensor maps as arguments; blocks that wait for each other, on a device that sanitizes."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness import Device, UsageError
from tests.emulator.hopper_kernel import HEAD
from tests.emulator.numba_boxes import COLUMNS, ROWS, moves_boxes

pytestmark = pytest.mark.compiles

WAITS = cupy.RawKernel(
    r"""
__device__ int launches = 0;
extern "C" __global__ void waits(volatile int* f, int* count) {
    if (blockIdx.x == 0) { launches += 1; *count = launches; while (f[1] == 0); f[0] = 7; } else f[1] = 1;
}
""",
    "waits",
)


def test_a_numba_kernel_takes_the_address_of_a_tensor_map() -> None:
    device = Device()
    values = np.random.default_rng(0).standard_normal((1, 40, COLUMNS)).astype(np.float16)
    x, out = device.array(values), device.zeros((1, *values.shape), np.float16)
    maps = device.tensor_map(x, (COLUMNS, ROWS, 1)), device.tensor_map(out, (COLUMNS, ROWS, 1, 1))
    result = device.launch(moves_boxes, 3, 32, (*maps, np.int32(2 * ROWS * COLUMNS)))
    np.testing.assert_array_equal(out[0], values)
    assert result.by_buffer("requested")[out.name].written == values.nbytes


def test_a_cuda_kernel_takes_a_tensor_map_by_value() -> None:
    body = """extern "C" __global__ void k(const __grid_constant__ Map from, float* y) {
      extern __shared__ __align__(1024) float s[]; __shared__ u64 bar;
      init(&bar, 1); expect(&bar, 256); load2(s, &from, 4, 2, &bar); wait(&bar, 0);
      for (int i = 0; i < 64; ++i) y[i] = s[i];
    }"""
    kernel = cupy.RawKernel(f"{HEAD}\n{body}", "k", options=("-arch=sm_90a",))
    device = Device()
    values = np.arange(512, dtype=np.float32).reshape(16, 32)
    x, y = device.array(values), device.empty(64)
    device.launch(kernel, 1, 1, (device.tensor_map(x, (8, 8)), y), shared_bytes=1024)
    np.testing.assert_array_equal(y.reshape(8, 8), values[2:10, 4:12])


def test_a_map_that_no_gpu_has_is_refused() -> None:
    device = Device()
    with pytest.raises(UsageError, match="multiple of 16"):
        device.tensor_map(device.zeros((4, 5)), (4, 4))


def test_blocks_that_wait_for_each_other_are_sanitized() -> None:
    device = Device(sanitize=True, step_limit=1 << 20)
    flags, count = device.array([0, 0], np.int32), device.array([0], np.int32)
    result = device.launch(WAITS, 2, 1, (flags, count))
    assert (flags.numpy().tolist(), count.numpy().tolist(), result.findings) == ([7, 1], [1], ())


LOCKED = cupy.RawKernel(
    r"""
__device__ int lock;
extern "C" __global__ void locked(int* x) {
    while (atomicCAS(&lock, 0, 1));
    if (blockIdx.x) __threadfence();
    x[0] = blockIdx.x;
    __threadfence();
    atomicExch(&lock, 0);
}
""",
    "locked",
)


def test_a_seed_runs_blocks_in_another_order() -> None:
    """Block 0 lacks a fence, which shows only if block 1 had the lock before."""
    orders = []
    for seed in range(8):
        device = Device(sanitize=True, seed=seed)
        x = device.array([0], np.int32)
        result = device.launch(LOCKED, 2, 1, (x,))
        orders.append((x.numpy().tolist(), [finding.kind for finding in result.findings or ()]))
    assert orders[0] == ([1], [])
    assert ([0], ["WAW race"]) in orders
    assert all(order in (([1], []), ([0], ["WAW race"])) for order in orders)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UsageError, match="seed is -1; it has to be a whole number of at least 0"):
        Device(seed=-1)
