"""The Numba twin of kernel.cu. Numba lacks the instructions of tensor cores, which are inline assembly here."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64
from numba.cuda import libdevice
from numba.cuda.extending import intrinsic

from variants._mma import numba_mma as ptx
from variants._mma.numba_assembly import F32, U32, assembly
from variants._path.numba_warp import warp_max

D, BC, BR, STRIDE = 32, 32, 64, 48
Q_BYTES, KV_BYTES = BR * STRIDE, BC * STRIDE
TILE_BYTES = Q_BYTES + 2 * KV_BYTES
INFINITY = np.float32(np.inf)
load_four, load_word, store_word, store_pair = (
    ptx.load_global(8),
    ptx.load_shared(4),
    ptx.store_shared(4),
    ptx.store_global(4),
)
pack_halves, unpacked = ptx.numba_mma("float16").packed, ptx.numba_mma("float16").unpacked
ZEROS = (uint32(0), uint32(0))


# Four floats, rounded to e4m3, in one register; `a` at the lowest address.
@intrinsic
def pack(typing_context, a, b, c, d):
    text = """{
    .reg .b16 low, high;
    cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
    cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
    mov.b32 $0, {low, high};
    }"""
    return assembly(text, U32(F32, F32, F32, F32))


# A B + C, 16 x 8 x 32.
@intrinsic
def product_and_sum(typing_context, a, b0, b1, c):
    text = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
    text += "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
    return assembly(text, ptx.C_FRAGMENT(ptx.A_FRAGMENT, U32, U32, ptx.C_FRAGMENT))


@cuda.jit(device=True, forceinline=True)
def multiply_add(c, i, a, b0, b1):
    sums = product_and_sum((a[0], a[1], a[2], a[3]), b0, b1, (c[i], c[i + 1], c[i + 2], c[i + 3]))
    c[i], c[i + 1], c[i + 2], c[i + 3] = sums


@cuda.jit(device=True)
def largest_magnitude(array, length):
    largest = float32(1e-30)
    for row in range(length):
        largest = max(largest, abs(float32(array[0, 0, row, cuda.threadIdx.x])))
    return warp_max(largest)


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
    start = ptx.global_address(array) + uint64(first) * uint64(D * 2)
    for i in range(cuda.threadIdx.y * 32 + cuda.threadIdx.x, height * D // 4, 128):
        row, c = int32(i) // int32(D // 4), int32(i) % int32(D // 4) * 4
        x = load_four(start + uint64(row * D * 2 + c * 2)) if row < end else ZEROS
        low, high = unpacked(x[0]), unpacked(x[1])
        four = pack(low[0] / scale, low[1] / scale, high[0] / scale, high[1] / scale)
        if TRANSPOSED:
            for e in range(4):
                tile[to + (c + e) * STRIDE + place(row)] = uint8(four >> uint32(8 * e))
        else:
            store_word(uint32(ptx.shared_address(tile) + uint32(to + row * STRIDE + c)), four)


@cuda.jit
def attention(Q, K, V, O, scales, rows, n, tau):
    tiles = cuda.shared.array(TILE_BYTES, uint8, alignment=16)
    Q_tile = ptx.shared_address(tiles)
    K_tile = uint32(Q_tile + uint32(Q_BYTES))
    V_tile = uint32(K_tile + uint32(KV_BYTES))
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)
    q_scale, k_scale, v_scale = scales[0], scales[1], scales[2]
    mine = lane // 4 * STRIDE + lane % 4 * 4

    load_tile(False, tiles, 0, BR, Q, block_row, rows - block_row, q_scale)
    column = lane % 4 * 2
    m, l, a = cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(4, uint32)
    s, o = cuda.local.array(16, float32), cuda.local.array(16, float32)
    for h in range(2):
        m[h], l[h] = -INFINITY, float32(0)
    for i in range(16):
        o[i] = float32(0)
    for first in range(0, n, BC):
        cuda.syncthreads()
        load_tile(False, tiles, Q_BYTES, BC, K, first, n - first, k_scale)
        load_tile(True, tiles, Q_BYTES + KV_BYTES, BC, V, first, n - first, v_scale)
        cuda.syncthreads()
        for i in range(16):
            s[i] = float32(0)
        for i in range(4):
            a[i] = load_word(uint32(Q_tile + uint32((16 * warp + i % 2 * 8) * STRIDE + mine + i // 2 * 16)))
        for i in range(4):
            k = uint32(K_tile + uint32(8 * i * STRIDE + mine))
            multiply_add(s, 4 * i, a, load_word(k), load_word(uint32(k + uint32(16))))
        for i in range(16):
            s[i] = tau * q_scale * k_scale * s[i] if first + i // 4 * 8 + column + i % 2 < n else -INFINITY
        for h in range(2):
            m_new, total = m[h], float32(0)
            for i in range(2 * h, 16, 4):
                m_new = max(m_new, max(s[i], s[i + 1]))
            m_new = ptx.quad_max(m_new)
            correction = math.exp(m[h] - m_new)
            m[h] = m_new
            for i in range(2 * h, 16, 4):
                for e in range(i, i + 2):
                    s[e] = float32(256) * math.exp(s[e] - m_new)
                    total += s[e]
                    o[e] *= correction
            l[h] = correction * l[h] + ptx.quad_sum(total)
        for i in range(4):
            p = i // 2 * 8 + i % 2 * 2
            a[i] = pack(s[p], s[p + 1], s[p + 4], s[p + 5])
        for i in range(4):
            v = uint32(V_tile + uint32(8 * i * STRIDE + mine))
            multiply_add(o, 4 * i, a, load_word(v), load_word(uint32(v + uint32(16))))
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        if row < rows:
            f = v_scale / l[h]
            for i in range(2 * h, 16, 4):
                to = uint64(row * D + i // 4 * 8 + column) * uint64(2)
                store_pair(ptx.global_address(O) + to, pack_halves(o[i] * f, o[i + 1] * f))


KERNELS = (find_scale, attention)
