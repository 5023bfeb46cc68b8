"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32, int32, uint32, uint64

from variants._path import numba_hopper as mma

D, BC, BR, CONSUMERS = 32, 32, 64, 128
WORDS = (BR + 4 * BC) * D // 2  # of 32 bits, of all tiles
Q_BYTES, TILE_BYTES = BR * D * 2, BC * D * 2


@cuda.jit(arch="sm_90a")
def attention(Q, K, V, O, rows, n, tau):
    Q_tile = mma.shared_address(cuda.shared.array(WORDS, uint32, alignment=1024))
    K_tiles = uint32(Q_tile + uint32(BR * D * 2))
    V_tiles = uint32(K_tiles + uint32(2 * BC * D * 2))
    full = mma.shared_address(cuda.shared.array(5, uint64))  # the barriers: two `full`, two `empty`, and Q's
    empty, Q_full = mma.nth(full, 2), mma.nth(full, 4)
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)

    if warp == 0 and lane == 0:
        mma.init_barrier(Q_full, 1)
        for stage in range(2):
            mma.init_barrier(mma.nth(full, stage), 1)
            mma.init_barrier(mma.nth(empty, stage), CONSUMERS)
        mma.publish_barriers()
    cuda.syncthreads()
    if warp == 4 and lane == 0:
        mma.arrive_and_expect(Q_full, Q_BYTES)
        mma.copy_tile(Q_tile, Q, block_row, Q_full)
        for first in range(0, n, BC):
            stage, parity = uint32(first // BC & 1), uint32(first // BC // 2 & 1)
            mma.wait(mma.nth(empty, stage), uint32(1) - parity)
            mma.arrive_and_expect(mma.nth(full, stage), 2 * TILE_BYTES)
            mma.copy_tile(mma.nth(K_tiles, stage, TILE_BYTES), K, int32(first), mma.nth(full, stage))
            mma.copy_tile(mma.nth(V_tiles, stage, TILE_BYTES), V, int32(first), mma.nth(full, stage))
    if warp == 4:
        return

    column = lane % 4 * 2
    m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
    s, o = cuda.local.array(16, float32), cuda.local.array(16, float32)
    mma.fill(m, 2, -mma.INFINITY)
    mma.fill(l, 2, float32(0))
    mma.fill(o, 16, float32(0))
    mma.wait(Q_full, uint32(0))
    for first in range(0, n, BC):
        stage, parity = uint32(first // BC & 1), uint32(first // BC // 2 & 1)
        mma.wait(mma.nth(full, stage), parity)
        q, k = mma.along_rows(Q_tile), mma.along_rows(mma.nth(K_tiles, stage, TILE_BYTES))
        mma.fill(s, 16, float32(0))
        mma.begin_products()
        for c in range(D // 16):
            mma.add_Q_Kt(s, q + mma.steps_along(BR, c), k + mma.steps_along(BC, c))
        mma.wait_for_products(s)
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
        v = mma.across_rows(mma.nth(V_tiles, stage, TILE_BYTES), BC)
        mma.begin_products()
        for j in range(BC // 16):
            mma.add_P_V(o, mma.pack_eight(s, 8 * j), v + mma.steps_across(j))
        mma.wait_for_products(o)
        mma.arrive(mma.nth(empty, stage))
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        if row < rows:
            for i in range(2 * h, 16, 4):
                mma.store_pair(O, row * D + i // 4 * 8 + column, o[i] / l[h], o[i + 1] / l[h])


KERNELS = (attention,)
