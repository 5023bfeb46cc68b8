"""Softmax without the maximum: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 1. Line numbers are that
algorithm's; V is columns here.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import libdevice

from variants._features.numba_stored import conversions
from variants._rows import THREADS
from variants._rows.numba_rows import MASK, ZERO, block_sum, elements, row_index, thread_index


@functools.cache
def native_kernel(dtype: str) -> Any:
    """The kernel for X and Y stored as `dtype`."""
    _, _, narrow = conversions(dtype)
    element = elements(dtype)

    @cuda.jit(launch_bounds=THREADS)
    def native_softmax(X, Y, columns):
        # The block owns one row.
        x, y = X[row_index()], Y[row_index()]

        # Lines 1 to 4: d = sum exp(x_j), each thread over its own columns, then over the block.
        d = ZERO
        for start in range(0, columns, THREADS):
            d += libdevice.expf(element(x, (start & MASK) + thread_index(), columns))
        d = block_sum(d)

        # Lines 5 to 7: y_i = exp(x_i) / d.
        for start in range(0, columns, THREADS):
            i = (start & MASK) + thread_index()
            if i < columns:
                y[i] = narrow(libdevice.expf(element(x, i, columns)) / d)

    return native_softmax
