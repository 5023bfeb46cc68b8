"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32, int32, uint8, uint32
from numba.cuda import libdevice

from variants._path import numba_eight_bits as mma

D, BC, BR, STRIDE = 32, 32, 64, 48
Q_BYTES, KV_BYTES, TILE_BYTES = BR * STRIDE, BC * STRIDE, (BR + 2 * BC) * STRIDE


@cuda.jit(device=True)
def largest_magnitude(array, length):
    largest = float32(1e-30)
    for row in range(length):
        largest = max(largest, abs(float32(array[0, 0, row, cuda.threadIdx.x])))
    return mma.largest_of_warp(largest)


# scales[i] of Q, K and V: the smallest power of two that brings the largest magnitude to at most 448.
@cuda.jit
def find_scale(Q, K, V, scales, rows, n):
    if cuda.blockIdx.x == 0:
        largest = largest_magnitude(Q, rows)
    elif cuda.blockIdx.x == 1:
        largest = largest_magnitude(K, n)
    else:
        largest = largest_magnitude(V, n)
    bits = libdevice.float_as_int(libdevice.fdiv_rn(largest, float32(448)))
    scales[cuda.blockIdx.x] = libdevice.int_as_float(int32((bits + 0x7FFFFF) & 0x7F800000))


# The place of a key in a row of the transposed V; see kernel.cu.
@cuda.jit(device=True, forceinline=True)
def place(key):
    return key // 16 * 16 + key % 8 // 2 * 4 + key % 16 // 8 * 2 + key % 2


@cuda.jit(device=True, forceinline=True)
def load_tile(TRANSPOSED, tile, to, height, array, first, end, scale):
    for i in range(cuda.threadIdx.y * 32 + cuda.threadIdx.x, height * D // 4, 128):
        row, c = int32(i) // int32(D // 4), int32(i) % int32(D // 4) * 4
        x = mma.load_four(array, (first + row) * D + c, row < end)
        four = mma.pack(x[0] / scale, x[1] / scale, x[2] / scale, x[3] / scale)
        if TRANSPOSED:
            for e in range(4):
                tile[to + (c + e) * STRIDE + place(row)] = uint8(four >> uint32(8 * e))
        else:
            mma.store_word(uint32(mma.shared_address(tile) + uint32(to + row * STRIDE + c)), four)


@cuda.jit
def attention(Q, K, V, O, scales, rows, n, tau):
    tiles = cuda.shared.array(TILE_BYTES, uint8, alignment=16)
    Q_tile = mma.shared_address(tiles)
    K_tile, V_tile = uint32(Q_tile + uint32(Q_BYTES)), uint32(Q_tile + uint32(Q_BYTES + KV_BYTES))
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)
    q_scale, k_scale, v_scale = scales[0], scales[1], scales[2]
    mine = lane // 4 * STRIDE + lane % 4 * 4

    load_tile(False, tiles, 0, BR, Q, block_row, rows - block_row, q_scale)
    column = lane % 4 * 2
    m, l, a = cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(4, uint32)
    s, o = cuda.local.array(16, float32), cuda.local.array(16, float32)
    mma.fill(m, 2, -mma.INFINITY)
    mma.fill(l, 2, float32(0))
    mma.fill(o, 16, float32(0))
    for first in range(0, n, BC):
        cuda.syncthreads()
        load_tile(False, tiles, Q_BYTES, BC, K, first, n - first, k_scale)
        load_tile(True, tiles, Q_BYTES + KV_BYTES, BC, V, first, n - first, v_scale)
        cuda.syncthreads()
        mma.fill(s, 16, float32(0))
        for i in range(4):
            a[i] = mma.load_word(uint32(Q_tile + uint32((16 * warp + i % 2 * 8) * STRIDE + mine + i // 2 * 16)))
        for i in range(4):
            k = uint32(K_tile + uint32(8 * i * STRIDE + mine))
            mma.multiply_add(s, 4 * i, a, mma.load_word(k), mma.load_word(uint32(k + uint32(16))))
        for i in range(16):
            s[i] = tau * q_scale * k_scale * s[i] if first + i // 4 * 8 + column + i % 2 < n else -mma.INFINITY
        for h in range(2):
            m_new, total = m[h], float32(0)
            for i in range(2 * h, 16, 4):
                m_new = max(m_new, max(s[i], s[i + 1]))
            m_new = mma.quad_max(m_new)
            correction = math.exp(m[h] - m_new)
            m[h] = m_new
            for i in range(2 * h, 16, 4):
                for e in range(i, i + 2):
                    s[e] = float32(256) * math.exp(s[e] - m_new)
                    total += s[e]
                    o[e] *= correction
            l[h] = correction * l[h] + mma.quad_sum(total)
        for i in range(4):
            p = i // 2 * 8 + i % 2 * 2
            a[i] = mma.pack(s[p], s[p + 1], s[p + 4], s[p + 5])
        for i in range(4):
            v = uint32(V_tile + uint32(8 * i * STRIDE + mine))
            mma.multiply_add(o, 4 * i, a, mma.load_word(v), mma.load_word(uint32(v + uint32(16))))
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        f = v_scale / l[h]
        if row < rows:
            for i in range(2 * h, 16, 4):
                mma.store_pair(O, row * D + i // 4 * 8 + column, o[i] * f, o[i + 1] * f)


KERNELS = (find_scale, attention)
