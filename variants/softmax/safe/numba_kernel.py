"""Safe softmax: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2. Line numbers are that algorithm's; V is
columns here.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda

from variants._features.numba_stored import conversions
from variants._rows import THREADS
from variants._rows.numba_rows import (
    MASK,
    MINUS_INFINITY,
    ZERO,
    block_max,
    block_sum,
    elements,
    exp_below,
    row_index,
    thread_index,
)


@functools.cache
def safe_kernel(dtype: str) -> Any:
    """The kernel for X and Y stored as `dtype`."""
    _, _, narrow = conversions(dtype)
    element = elements(dtype)

    @cuda.jit(launch_bounds=THREADS)
    def safe_softmax(X, Y, columns):
        # The block owns one row.
        x, y = X[row_index()], Y[row_index()]

        # Lines 1 to 4: m = max x_k, each thread over its own columns, then over the block.
        m = MINUS_INFINITY
        for start in range(0, columns, THREADS):
            m = max(m, element(x, (start & MASK) + thread_index(), columns))
        m = block_max(m)

        # Lines 5 to 8: d = sum exp(x_j - m).
        d = ZERO
        for start in range(0, columns, THREADS):
            d += exp_below(element(x, (start & MASK) + thread_index(), columns), m)
        d = block_sum(d)

        # Lines 9 to 11: y_i = exp(x_i - m) / d.
        for start in range(0, columns, THREADS):
            i = (start & MASK) + thread_index()
            if i < columns:
                y[i] = narrow(exp_below(element(x, i, columns), m) / d)

    return safe_softmax
