"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_vectors import copy_four, four_of
from variants._path.numba_warp import ALL, warp_max, warp_sum

D, BC, BR = 32, 32, 32


# Column of a tile's row at which chunk `chunk` (four elements, 16 bytes) lies.
@cuda.jit(device=True)
def place(row, chunk):
    return 4 * (chunk ^ (row & 7))


# Block (x, y) has rows from 32 x on, and keys from y `keys` on.
@cuda.jit
def attention(Q, K, V, O_of, m_of, l_of, rows, n, keys, tau):
    K_tile = cuda.shared.array((BC, D), float32, alignment=16)
    V_tile = cuda.shared.array((BC, D), float32, alignment=16)
    warp, lane = cuda.threadIdx.y, cuda.threadIdx.x
    row = cuda.blockIdx.x * BR + warp
    start = cuda.blockIdx.y * keys
    end = min(start + keys, n)
    q = Q[0, 0, row, lane] if row < rows else float32(0.0)
    m, l, o = float32(-math.inf), float32(0.0), float32(0.0)
    for first in range(start, end, BC):
        cuda.syncthreads()
        if warp < BC // 4:
            key, c = 4 * warp + lane // 8, lane % 8 * 4
            to = key * D + place(key, lane % 8)
            copy_four(K_tile, to, K, (first + key) * D + c, first + key < end)
            copy_four(V_tile, to, V, (first + key) * D + c, first + key < end)
        cuda.syncthreads()
        s = float32(0.0)
        for c in range(0, D, 4):
            k = four_of(K_tile, lane * D + place(lane, c // 4))
            s += cuda.shfl_sync(ALL, q, c) * k[0] + cuda.shfl_sync(ALL, q, c + 1) * k[1]
            s += cuda.shfl_sync(ALL, q, c + 2) * k[2] + cuda.shfl_sync(ALL, q, c + 3) * k[3]
        s = tau * s if first + lane < end else float32(-math.inf)
        m_new = max(m, warp_max(s))
        correction, p = math.exp(m - m_new), math.exp(s - m_new)
        l = l * correction + warp_sum(p)
        o *= correction
        for j in range(BC):
            o += cuda.shfl_sync(ALL, p, j) * V_tile[j, place(j, lane // 4) + lane % 4]
        m = m_new
    if row < rows:
        O_of[cuda.blockIdx.y, row, lane] = o
        if lane == 0:
            m_of[cuda.blockIdx.y, row] = m
            l_of[cuda.blockIdx.y, row] = l


# One warp combines what the blocks have found for one row.
@cuda.jit
def combine(O_of, m_of, l_of, O, rows, splits):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    m, l, o = float32(-math.inf), float32(0.0), float32(0.0)
    for split in range(splits):
        m_split = m_of[split, row]
        m_new = max(m, m_split)
        correction, weight = math.exp(m - m_new), math.exp(m_split - m_new)
        l = l * correction + l_of[split, row] * weight
        o = o * correction + O_of[split, row, lane] * weight
        m = m_new
    O[0, 0, row, lane] = o / l


KERNELS = (attention, combine)
