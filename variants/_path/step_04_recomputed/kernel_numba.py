"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_warp import warp_sum


@cuda.jit
def attention(Q, K, V, O, n, tau):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    q = Q[0, 0, row, lane]
    m, l = float32(-math.inf), float32(0.0)
    for j in range(n):
        s = tau * warp_sum(q * K[0, 0, j, lane])
        m_new = max(m, s)
        l = l * math.exp(m - m_new) + math.exp(s - m_new)
        m = m_new
    o = float32(0.0)
    for j in range(n):
        s = tau * warp_sum(q * K[0, 0, j, lane])
        p = math.exp(s - m) / l
        o += p * V[0, 0, j, lane]
    O[0, 0, row, lane] = o


KERNELS = (attention,)
