"""Kernels and arguments that the tests of the compilers share."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from numba import cuda, float32

from harness.compilers import DevicePointer

ARCH = "sm_90"
SAMPLES = str(Path(__file__))


def buffer(*shape: int, dtype: str = "float32", address: int = 0x7000) -> DevicePointer:
    return DevicePointer(address, shape, dtype)


def u64(*values: int) -> list[bytes]:
    return [struct.pack("<Q", value) for value in values]


AXPY = r"""
extern "C" __global__ void axpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i] * SCALE;
}
"""


def axpy(*options: str) -> Any:
    return cupy.RawKernel(AXPY, "axpy", options or ("-DSCALE=2",))


AXPY_ARGS = (buffer(4), buffer(4, address=0x9000), np.float32(1.5), np.int32(4))


@cuda.jit(device=True)
def twice(x: Any) -> Any:
    return x * np.float32(2)


@cuda.jit
def staged(y, x, a, n):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array((4, 8), float32)
    other = cuda.shared.array((4, 8), float32)
    i = cuda.grid(1)
    if i < n:
        tile[0, cuda.threadIdx.x] = x[i, 0]
        other[1, cuda.threadIdx.x] = twice(x[i, 1])
    cuda.syncthreads()
    if i < n:
        y[i] = a * tile[0, cuda.threadIdx.x] + math.exp(other[1, 0])


STAGED_ARGS = (buffer(5), buffer(5, 2, address=0x9000), np.float32(0.5), np.int32(5))


def line_of(text: str, file: str = SAMPLES) -> int:
    """The line that contains `text`."""
    return 1 + next(i for i, line in enumerate(Path(file).read_text().splitlines()) if text in line)
