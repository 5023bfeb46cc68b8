"""Sums dK and dV over the devices that a block of keys visits, in float32, a thread per element.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int64

from variants._features.numba_stored import conversions


@functools.cache
def ring_sum_kernels(dtype: str) -> SimpleNamespace:
    """The kernels `ring_add` and `ring_store`."""
    _, widen, narrow = conversions(dtype)

    # dK_s = dK_s + dK_t, dV_s = dV_s + dV_t: the sum, which has come from the device before, and the part of this
    # device. The first part begins the sum.
    @cuda.jit
    def ring_add(dK_t, dV_t, dK_s, dV_s, count, is_first):
        e = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if e >= count:
            return
        dK_s[e] = widen(dK_t[e]) if is_first else dK_s[e] + widen(dK_t[e])
        dV_s[e] = widen(dV_t[e]) if is_first else dV_s[e] + widen(dV_t[e])

    # dK = dK_s + dK_t, dV = dV_s + dV_t on the device to which they belong, rounded to the problem's dtype.
    @cuda.jit
    def ring_store(dK_t, dV_t, dK_s, dV_s, dK, dV, count):
        e = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if e >= count:
            return
        dK[e] = narrow(dK_s[e] + widen(dK_t[e]))
        dV[e] = narrow(dV_s[e] + widen(dV_t[e]))

    return SimpleNamespace(ring_add=ring_add, ring_store=ring_store)
