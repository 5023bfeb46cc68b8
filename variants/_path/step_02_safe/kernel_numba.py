"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_warp import ALL, warp_max, warp_sum

D = 32


# S = tau Q K^T.
@cuda.jit
def scores(Q, K, S, n, tau):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    q = Q[0, 0, row, lane]
    for first in range(0, n, 32):
        s = float32(0.0)
        for j in range(min(32, n - first)):
            dot = warp_sum(q * K[0, 0, first + j, lane])
            if lane == j:
                s = tau * dot
        if first + lane < n:
            S[row, first + lane] = s


# P = exp(S - m) / l with the maximum m of the row, in the place of S.
@cuda.jit
def softmax(S, n):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m = float32(-math.inf)
    for j in range(lane, n, 32):
        m = max(m, S[row, j])
    m = warp_max(m)
    l = float32(0.0)
    for j in range(lane, n, 32):
        l += math.exp(S[row, j] - m)
    l = warp_sum(l)
    for j in range(lane, n, 32):
        S[row, j] = math.exp(S[row, j] - m) / l


# O = P V.
@cuda.jit
def output(P, V, O, n):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    o = float32(0.0)
    for first in range(0, n, 32):
        p = P[row, first + lane] if first + lane < n else float32(0.0)
        for j in range(min(32, n - first)):
            o += cuda.shfl_sync(ALL, p, j) * V[0, 0, first + j, lane]
    O[0, 0, row, lane] = o


KERNELS = (scores, softmax, output)
