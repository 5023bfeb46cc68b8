"""Measures the GPU's achievable rates: of a copy within its memory, and of a matrix product with cuBLAS."""

from __future__ import annotations

import statistics
from typing import Any

from harness.execution.timings import Ceilings
from harness.gpu.context import GpuContext
from harness.gpu.stopwatch import Stopwatch

COPY_BYTES = 1 << 30
MATRIX_EXTENT = 8192
SAMPLES = 9


def measure_ceilings(context: GpuContext, stopwatch: Stopwatch, dtype: str) -> Ceilings:
    """Measure both rates, which takes about a second and 2 GiB of memory."""
    cupy = context.cupy
    dtype = "float32" if dtype == "float32" else "float16"
    source, target = cupy.empty(COPY_BYTES, dtype="uint8"), cupy.empty(COPY_BYTES, dtype="uint8")

    def copy() -> None:
        target.data.copy_from_device_async(source.data, COPY_BYTES, context.stream)

    copy_ms = _median_ms(stopwatch, copy)
    random = cupy.random.default_rng(0)
    A, B = (random.standard_normal((MATRIX_EXTENT, MATRIX_EXTENT), dtype="float32").astype(dtype) for _ in "AB")
    C = cupy.empty_like(A)
    matrix_ms = _median_ms(stopwatch, lambda: cupy.matmul(A, B, out=C))
    return Ceilings(2e3 * COPY_BYTES / copy_ms, 2e3 * MATRIX_EXTENT**3 / matrix_ms, dtype)


def _median_ms(stopwatch: Stopwatch, enqueue: Any) -> float:
    stopwatch.cold_ms(enqueue)
    return statistics.median(stopwatch.cold_ms(enqueue) for _ in range(SAMPLES))
