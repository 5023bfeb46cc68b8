from __future__ import annotations

import cupy
import numpy as np

from harness import Launch, Plan, Variant

CODE = r"""
extern "C" __global__ void row_sums(const float* X, float* y, int rows, int columns)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows) return;
    float sum = 0.0f;
    for (int j = 0; j < columns; ++j) sum += X[i * columns + j];
    y[i] = sum;
}
"""
KERNEL = cupy.RawKernel(CODE, "row_sums")


def plan(problem):
    args = ("X", "y", np.int32(problem.rows), np.int32(problem.columns))
    return Plan((Launch(KERNEL, (-(-problem.rows // 64),), (64,), args),))


def register(registry):
    registry.add(Variant(name="row-sums", operation="row-sums", plan=plan, idea="a thread per row"))
