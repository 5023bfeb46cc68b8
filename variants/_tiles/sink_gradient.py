"""The launch that computes the gradient of sinks, for backward kernels of any kind: sink_gradient.cu and its twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import Launch, Problem
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import LANES, SECTOR_BYTES, run_bytes

THREADS = 256
"""Threads per block, which has the rows of a head."""


def cuda_sink_kernels(problem: Problem) -> tuple[Any, ...]:
    """Return the CUDA kernel; none without sinks."""
    from variants._tiles.rawkernel import raw_kernel

    if not problem.sinks:
        return ()
    files = (("_features", "scores.cuh"),)
    return (raw_kernel("_tiles", "sink_gradient", (f"-DTHREADS={THREADS}",), files, file="sink_gradient.cu"),)


def numba_sink_kernels(problem: Problem) -> tuple[Any, ...]:
    """Return the Numba kernel; none without sinks."""
    from variants._tiles.numba_sink_gradient import sink_gradient_kernel

    return (sink_gradient_kernel(THREADS),) if problem.sinks else ()


def sink_launches(problem: Problem, kernels: Sequence[Any]) -> tuple[Launch, ...]:
    """Return the launch of these kernels, after D has been computed."""
    args = ("sinks", "lse", "D", "dsinks", np.int32(problem.batch), np.int32(problem.q_len))
    return tuple(Launch(kernel, (problem.heads,), (THREADS,), args) for kernel in kernels)


def sink_gradient_bytes(problem: Problem) -> tuple[int, int]:
    """Return the bytes read and written, at the `sectors` level; 0 without sinks."""
    if not problem.sinks:
        return 0, 0
    first = np.arange(problem.batch * problem.heads) * problem.q_len
    rows = int(2 * run_bytes(first, problem.q_len, FLOAT32_BYTES).sum())
    return rows + problem.heads * THREADS // LANES * SECTOR_BYTES, problem.heads * SECTOR_BYTES
