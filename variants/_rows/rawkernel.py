"""CUDA sources that begin with rows.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import SoftmaxProblem
from variants._rows import THREADS
from variants._tiles.rawkernel import raw_kernel


def row_kernel(folder: str, name: str, problem: SoftmaxProblem) -> tuple[Any, tuple[np.int32, ...]]:
    """The kernel `name` of variants/softmax/`folder`/kernel.cu, and the columns, which pointers do not know."""
    options = (f"-DTHREADS={THREADS}", f"-DSTORED_AS_{problem.dtype}")
    kernel = raw_kernel(f"softmax/{folder}", name, options, (("_rows", "rows.cuh"),))
    return kernel, (np.int32(problem.columns),)
