"""Safe softmax with online normalizer: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3. Line numbers are
that algorithm's; V is columns here.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32

from variants._features.numba_stored import conversions
from variants._rows import THREADS
from variants._rows.numba_rows import MASK, MINUS_INFINITY, WARPS, ZERO, elements, exp_below, row_index, thread_index


# Equation 4: the maximum and the sum of two sets of columns. Either may be empty: m = -inf, d = 0.
@cuda.jit(device=True, forceinline=True)
def combine(m, d, m_other, d_other):
    m_both = max(m, m_other)
    return m_both, d * exp_below(m, m_both) + d_other * exp_below(m_other, m_both)


# m and d of the whole block, for every thread, in the same bits. Lanes that combine each other's may differ in the last
# bit of d, so all take what the first lane of each warp has left.
@cuda.jit(device=True, forceinline=True)
def block_combine(m, d):
    m_parts = cuda.shared.array(WARPS, float32)
    d_parts = cuda.shared.array(WARPS, float32)
    distance = 16
    while distance > 0:
        m_other = cuda.shfl_xor_sync(0xFFFFFFFF, m, distance)
        d_other = cuda.shfl_xor_sync(0xFFFFFFFF, d, distance)
        m, d = combine(m, d, m_other, d_other)
        distance //= 2
    if thread_index() % 32 == 0:
        m_parts[thread_index() // 32] = m
        d_parts[thread_index() // 32] = d
    cuda.syncthreads()
    m = m_parts[0]
    d = d_parts[0]
    for warp in range(1, WARPS):
        m, d = combine(m, d, m_parts[warp], d_parts[warp])
    return m, d


@functools.cache
def online_kernel(dtype: str) -> Any:
    """The kernel for X and Y stored as `dtype`."""
    _, _, narrow = conversions(dtype)
    element = elements(dtype)

    @cuda.jit(launch_bounds=THREADS)
    def online_softmax(X, Y, columns):
        # The block owns one row.
        x, y = X[row_index()], Y[row_index()]

        # Lines 1 and 2: m = -inf, d = 0.
        m = MINUS_INFINITY
        d = ZERO

        # Line 3: each thread over its own columns.
        for start in range(0, columns, THREADS):
            # Lines 4 and 5: m = max(m, x_j), d = d exp(m_old - m) + exp(x_j - m).
            x_j = element(x, (start & MASK) + thread_index(), columns)
            m_new = max(m, x_j)
            d = d * exp_below(m, m_new) + exp_below(x_j, m_new)
            m = m_new
        m, d = block_combine(m, d)

        # Lines 7 to 9: y_i = exp(x_i - m) / d.
        for start in range(0, columns, THREADS):
            i = (start & MASK) + thread_index()
            if i < columns:
                y[i] = narrow(exp_below(element(x, i, columns), m) / d)

    return online_softmax
