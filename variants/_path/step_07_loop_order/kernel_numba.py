"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_warp import ALL, warp_max, warp_sum

D, BC, BR = 32, 32, 32


@cuda.jit
def attention(Q, K, V, O, rows, n, tau):
    K_tile = cuda.shared.array((BC, D), float32)
    V_tile = cuda.shared.array((BC, D), float32)
    warp, lane = cuda.threadIdx.y, cuda.threadIdx.x
    row = cuda.blockIdx.x * BR + warp
    q = Q[0, 0, row, lane] if row < rows else float32(0.0)
    m, l, o = float32(-math.inf), float32(0.0), float32(0.0)
    for first in range(0, n, BC):
        cuda.syncthreads()
        for c in range(warp, D, BR):
            exists = first + lane < n
            K_tile[lane, c] = K[0, 0, first + lane, c] if exists else float32(0.0)
            V_tile[lane, c] = V[0, 0, first + lane, c] if exists else float32(0.0)
        cuda.syncthreads()
        s = float32(0.0)
        for c in range(D):
            s += cuda.shfl_sync(ALL, q, c) * K_tile[lane, c]
        s = tau * s if first + lane < n else float32(-math.inf)
        m_new = max(m, warp_max(s))
        correction, p = math.exp(m - m_new), math.exp(s - m_new)
        l = l * correction + warp_sum(p)
        o *= correction
        for j in range(BC):
            o += cuda.shfl_sync(ALL, p, j) * V_tile[j, lane]
        m = m_new
    if row < rows:
        O[0, 0, row, lane] = o / l


KERNELS = (attention,)
