"""CUDA sources that begin with rows.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

from typing import Any

from harness import SoftmaxProblem
from variants._features import stored
from variants._rows import THREADS
from variants._tiles.rawkernel import raw_kernel


def row_kernel(folder: str, name: str, problem: SoftmaxProblem) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu."""
    headers = (*stored(problem.dtype), ("_rows", "rows.cuh"))
    return raw_kernel(folder, name, (f"-DTHREADS={THREADS}",), headers)
