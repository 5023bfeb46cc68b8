"""Kernels get tuples of buffers and scalars: structs by value in CUDA C++, tuples in Numba."""

from __future__ import annotations

import math

import cupy
import numpy as np
import pytest
from numba import cuda

import harness
from harness import Launch, Plan, Variant
from harness.operations.softmax.problem import SoftmaxProblem

SOURCE = r"""
struct Sizes { int rows, columns; };
struct Matrices { const float *X; Sizes sizes; float *Y; };
extern "C" __global__ void rows_of(Matrices of) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= of.sizes.rows) return;
    const float *x = of.X + row * of.sizes.columns;
    float m = x[0], l = 0;
    for (int j = 0; j < of.sizes.columns; ++j) m = fmaxf(m, x[j]);
    for (int j = 0; j < of.sizes.columns; ++j) l += expf(x[j] - m);
    for (int j = 0; j < of.sizes.columns; ++j) of.Y[row * of.sizes.columns + j] = expf(x[j] - m) / l;
}
"""


@cuda.jit
def rows_in_numba(of):  # type: ignore[no-untyped-def]
    X, sizes, Y = of
    row = cuda.grid(1)
    if row >= sizes[0]:
        return
    m = X[row, 0]
    for j in range(sizes[1]):
        m = max(m, X[row, j])
    total = np.float32(0)
    for j in range(sizes[1]):
        total += math.exp(X[row, j] - m)
    for j in range(sizes[1]):
        Y[row, j] = math.exp(X[row, j] - m) / total


def variant(backend: str, kernel: object, source: str = "X") -> Variant:
    def plan(problem: SoftmaxProblem) -> Plan:
        sizes = np.int32(problem.rows), np.int32(problem.columns)
        return Plan((Launch(kernel, (-(-problem.rows // 32),), (32,), ((source, sizes, "Y"),)),))

    return Variant(name=f"softmax-struct-{backend}", plan=plan, operation="softmax", backend=backend)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["cupy", "numba"])
def test_a_tuple_of_buffers_and_scalars_reaches_the_kernel(backend: str) -> None:
    kernel = cupy.RawKernel(SOURCE, "rows_of") if backend == "cupy" else rows_in_numba
    found = harness.compare(variants=[variant(backend, kernel)], operation="softmax", rows=40, columns=50)
    assert [row.verdict for row in found.result.rows] == ["pass"]


def test_a_buffer_in_a_tuple_that_the_plan_does_not_have_is_refused() -> None:
    wrong = variant("cupy", cupy.RawKernel(SOURCE, "rows_of"), source="Z")
    (row,) = harness.compare(variants=[wrong], operation="softmax", rows=4, columns=5).result.rows
    assert "kernel rows_of is given a buffer 'Z' that the plan does not have" in row.reason
