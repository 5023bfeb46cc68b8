"""On a GPU: a launch that may begin before the previous one has ended, and waits for its results."""

from __future__ import annotations

import cupy
import numpy as np
import pytest

from harness.gpu.context import GpuContext, gpu_available
from harness.model.plan import Launch
from harness.ptx.targets import may_overlap_launches

pytestmark = pytest.mark.skipif(not gpu_available(), reason="needs a GPU")
SOURCE = r"""
extern "C" __global__ void first(float* x) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < 100; ++i) __nanosleep(1000);
  x[blockDim.x * blockIdx.x + threadIdx.x] = 1.0f;
}
extern "C" __global__ void second(const float* x, float* y) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  y[i] = 2.0f * x[i];
}
"""


def test_a_launch_that_begins_early_gets_what_it_waits_for() -> None:
    context = GpuContext()
    if not may_overlap_launches(context.device.arch):
        pytest.skip("needs Hopper or newer")
    arrays = {name: cupy.zeros(64 * 64, np.float32) for name in "xy"}
    cupy.cuda.Device().synchronize()
    first, second = (cupy.RawKernel(SOURCE, name) for name in ("first", "second"))
    calls = [
        context.bind(Launch(first, (64,), (64,), ("x",)), arrays),
        context.bind(Launch(second, (64,), (64,), ("x", "y"), overlaps_previous=True), arrays),
    ]
    for _ in range(3):
        arrays["x"].fill(0)
        cupy.cuda.Device().synchronize()
        with context.stream:  # as plans run; a launch without attributes goes to the current stream
            for call in calls:
                call()
        cupy.cuda.Device().synchronize()
        assert (arrays["y"].get() == 2).all()
