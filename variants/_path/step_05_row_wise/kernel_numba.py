"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_warp import warp_sum


@cuda.jit
def attention(Q, K, V, O, n, tau):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    q = Q[0, 0, row, lane]
    m, l, o = float32(-math.inf), float32(0.0), float32(0.0)
    for j in range(n):
        s = tau * warp_sum(q * K[0, 0, j, lane])
        m_new = max(m, s)
        correction, p = math.exp(m - m_new), math.exp(s - m_new)
        l = l * correction + p
        o = o * correction + p * V[0, 0, j, lane]
        m = m_new
    O[0, 0, row, lane] = o / l


KERNELS = (attention,)
