"""The Numba twin of kernel.cu. Numba lacks the instructions of tensor cores, which are inline assembly here."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32, uint32, uint64

from variants._mma import numba_mma as ptx

D, BC, BR = 32, 32, 64
WORDS = (BR + 2 * BC) * D // 2  # of 32 bits, of all tiles
INFINITY = np.float32(np.inf)
load_chunk, store_chunk, store_pair = ptx.load_global(16), ptx.store_shared(16), ptx.store_global(4)
multiply_add, pack = ptx.numba_mma("float16").multiply_add, ptx.numba_mma("float16").packed
ZEROS = (uint32(0), uint32(0), uint32(0), uint32(0))


# Address in shared memory of chunk `chunk` of a row; see kernel.cu.
@cuda.jit(device=True, forceinline=True)
def place(tile, row, chunk):
    return uint32(tile + uint32(row * D * 2) + uint32((chunk ^ (row >> 1 & 3)) * 16))


@cuda.jit(device=True, forceinline=True)
def load_tile(tile, height, array, first, end):
    start = ptx.global_address(array) + uint64(first) * uint64(D * 2)
    for i in range(cuda.threadIdx.y * 32 + cuda.threadIdx.x, height * D // 8, 128):
        row, chunk = i // (D // 8), i % (D // 8)
        x = load_chunk(start + uint64(row * D * 2 + chunk * 16)) if row < end else ZEROS
        store_chunk(place(tile, row, chunk), x)


@cuda.jit
def attention(Q, K, V, O, rows, n, tau):
    tiles = cuda.shared.array(WORDS, uint32, alignment=128)
    Q_tile = ptx.shared_address(tiles)
    K_tile = uint32(Q_tile + uint32(BR * D * 2))
    V_tile = uint32(K_tile + uint32(BC * D * 2))
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)

    load_tile(Q_tile, BR, Q, block_row, rows - block_row)
    column = lane % 4 * 2
    m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
    s, o, a = cuda.local.array((1, 4, 4), float32), cuda.local.array((1, 4, 4), float32), cuda.local.array(4, uint32)
    for h in range(2):
        m[h], l[h] = -INFINITY, float32(0)
    for i in range(16):
        o[0, i // 4, i % 4] = float32(0)
    for first in range(0, n, BC):
        cuda.syncthreads()
        load_tile(K_tile, BC, K, first, n - first)
        load_tile(V_tile, BC, V, first, n - first)
        cuda.syncthreads()
        for i in range(16):
            s[0, i // 4, i % 4] = float32(0)
        for c in range(0, D // 8, 2):
            q = ptx.load_matrices(place(Q_tile, 16 * warp + lane % 16, c + lane // 16))
            for j in range(0, BC, 16):
                k = ptx.load_matrices(place(K_tile, j + lane % 16, c + lane // 16))
                multiply_add(s, 0, j // 8, q, k[0], k[2])
                multiply_add(s, 0, j // 8 + 1, q, k[1], k[3])
        for i in range(4):
            for e in range(4):
                s[0, i, e] = tau * s[0, i, e] if first + 8 * i + column + e % 2 < n else -INFINITY
        for h in range(2):
            m_new, total = m[h], float32(0)
            for i in range(4):
                m_new = max(m_new, max(s[0, i, 2 * h], s[0, i, 2 * h + 1]))
            m_new = ptx.quad_max(m_new)
            correction = math.exp(m[h] - m_new)
            m[h] = m_new
            for i in range(4):
                for e in range(2 * h, 2 * h + 2):
                    s[0, i, e] = math.exp(s[0, i, e] - m_new)
                    total += s[0, i, e]
                    o[0, i, e] *= correction
            l[h] = correction * l[h] + ptx.quad_sum(total)
        for j in range(0, BC, 16):
            for i in range(4):
                a[i] = pack(s[0, j // 8 + i // 2, i % 2 * 2], s[0, j // 8 + i // 2, i % 2 * 2 + 1])
            for c in range(0, D // 8, 2):
                v = ptx.load_matrices_transposed(place(V_tile, j + lane % 16, c + lane // 16))
                multiply_add(o, 0, c, a, v[0], v[1])
                multiply_add(o, 0, c + 1, a, v[2], v[3])
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        if row < rows:
            for i in range(4):
                to = uint64(row * D + 8 * i + column) * uint64(2)
                store_pair(ptx.global_address(O) + to, pack(o[0, i, 2 * h] / l[h], o[0, i, 2 * h + 1] / l[h]))


KERNELS = (attention,)
