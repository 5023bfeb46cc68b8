"""What the softmax kernels have in common: sums and maxima over a block of threads.

The CUDA twin of this text is rows.cuh: same names, same order. How X and Y are stored is `conversions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from variants._features.numba_stored import conversions
from variants._rows import THREADS

WARPS = THREADS // 32
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)

# Numba computes indices in 64 bits and lets a negative one count from the end. Masks show the compiler that an index is
# not negative.
MASK = 0x7FFFFFFF
THREAD_MASK = THREADS - 1


@cuda.jit(device=True, forceinline=True)
def thread_index():
    return cuda.threadIdx.x & THREAD_MASK


@cuda.jit(device=True, forceinline=True)
def row_index():
    return cuda.blockIdx.x & MASK


# x_j, and -inf beyond the row, whose weight is 0. All threads take as many steps of a loop over columns: otherwise an
# unrolled loop would let the lanes of a warp at the end of the row get out of step.
@functools.cache
def elements(dtype: str) -> Callable:
    """A device function for rows of X stored as `dtype`."""
    _, widen, _ = conversions(dtype)

    @cuda.jit(device=True, forceinline=True)
    def element(x, j, columns):
        return widen(x[j]) if j < columns else MINUS_INFINITY

    return element


# exp(x - m), and 0 for x = -inf even while nothing else has been seen (m = -inf), since (-inf) - (-inf) is NaN.
@cuda.jit(device=True, forceinline=True)
def exp_below(x, m):
    return libdevice.expf(x - (ZERO if m == MINUS_INFINITY else m))


# The largest x of the block, or the sum of all, for every thread. Each warp writes its own to shared memory, and all
# threads combine these in the same order. A kernel calls each function at most once, so no thread writes `parts` a
# second time.
@cuda.jit(device=True, forceinline=True)
def block_max(x):
    parts = cuda.shared.array(WARPS, float32)
    distance = 16
    while distance > 0:
        x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, distance))
        distance //= 2
    if thread_index() % 32 == 0:
        parts[thread_index() // 32] = x
    cuda.syncthreads()
    x = parts[0]
    for warp in range(1, WARPS):
        x = max(x, parts[warp])
    return x


@cuda.jit(device=True, forceinline=True)
def block_sum(x):
    parts = cuda.shared.array(WARPS, float32)
    distance = 16
    while distance > 0:
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
        distance //= 2
    if thread_index() % 32 == 0:
        parts[thread_index() // 32] = x
    cuda.syncthreads()
    x = parts[0]
    for warp in range(1, WARPS):
        x += parts[warp]
    return x
