"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32, int32, uint32

from variants._path import numba_tensor_cores as mma

D, BC, BR = 32, 32, 64
WORDS = (BR + 2 * BC) * D // 2  # of 32 bits, of all tiles


# Address in shared memory of chunk `chunk` of a row; see kernel.cu.
@cuda.jit(device=True, forceinline=True)
def place(tile, row, chunk):
    return uint32(tile + uint32(row * D * 2) + uint32((chunk ^ (row >> 1 & 3)) * 16))


@cuda.jit(device=True, forceinline=True)
def load_tile(tile, height, array, first, end):
    for i in range(cuda.threadIdx.y * 32 + cuda.threadIdx.x, height * D // 8, 128):
        row, chunk = i // (D // 8), i % (D // 8)
        mma.copy_eight(place(tile, row, chunk), array, (first + row) * D + chunk * 8, row < end)


@cuda.jit
def attention(Q, K, V, O, rows, n, tau):
    Q_tile = mma.shared_address(cuda.shared.array(WORDS, uint32, alignment=128))
    K_tile = uint32(Q_tile + uint32(BR * D * 2))
    V_tile = uint32(K_tile + uint32(BC * D * 2))
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)

    load_tile(Q_tile, BR, Q, block_row, rows - block_row)
    column = lane % 4 * 2
    m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
    s, o = cuda.local.array(16, float32), cuda.local.array(16, float32)
    mma.fill(m, 2, -mma.INFINITY)
    mma.fill(l, 2, float32(0))
    mma.fill(o, 16, float32(0))
    for first in range(0, n, BC):
        cuda.syncthreads()
        load_tile(K_tile, BC, K, first, n - first)
        load_tile(V_tile, BC, V, first, n - first)
        cuda.syncthreads()
        mma.fill(s, 16, float32(0))
        for c in range(0, D // 8, 2):
            q = mma.load_matrices(place(Q_tile, 16 * warp + lane % 16, c + lane // 16))
            for j in range(0, BC, 16):
                k = mma.load_matrices(place(K_tile, j + lane % 16, c + lane // 16))
                mma.multiply_add(s, j // 2, q, k[0], k[2])
                mma.multiply_add(s, j // 2 + 4, q, k[1], k[3])
        for i in range(16):
            s[i] = tau * s[i] if first + i // 4 * 8 + column + i % 2 < n else -mma.INFINITY
        for h in range(2):
            m_new, total = m[h], float32(0)
            for i in range(2 * h, 16, 4):
                m_new = max(m_new, max(s[i], s[i + 1]))
            m_new = mma.quad_max(m_new)
            correction = math.exp(m[h] - m_new)
            m[h] = m_new
            for i in range(2 * h, 16, 4):
                for e in range(i, i + 2):
                    s[e] = math.exp(s[e] - m_new)
                    total += s[e]
                    o[e] *= correction
            l[h] = correction * l[h] + mma.quad_sum(total)
        for j in range(0, BC, 16):
            p = mma.pack_eight(s, j // 2)
            for c in range(0, D // 8, 2):
                v = mma.load_transposed(place(V_tile, j + lane % 16, c + lane // 16))
                mma.multiply_add(o, 4 * c, p, v[0], v[1])
                mma.multiply_add(o, 4 * c + 4, p, v[2], v[3])
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        if row < rows:
            for i in range(2 * h, 16, 4):
                mma.store_pair(O, row * D + i // 4 * 8 + column, o[i] / l[h], o[i + 1] / l[h])


KERNELS = (attention,)
