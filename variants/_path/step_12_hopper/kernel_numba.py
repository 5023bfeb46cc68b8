"""The Numba twin of kernel.cu. Numba lacks Hopper's instructions, which are inline assembly here."""

from __future__ import annotations

import math

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._hopper import numba_hopper as hopper
from variants._hopper.numba_products import numba_products
from variants._mma import numba_mma as ptx
from variants._mma.numba_assembly import I32, U32, U64, assembly

D, BC, BR, CONSUMERS = 32, 32, 64, 128
WORDS = (BR + 4 * BC) * D // 2  # of 32 bits, of all tiles
Q_BYTES, TILE_BYTES = BR * D * 2, BC * D * 2
INFINITY = np.float32(np.inf)
store_pair, pack = ptx.store_global(4), ptx.numba_mma("float16").packed
along_rows, across_rows = hopper.numba_hopper(D).along_rows, hopper.numba_hopper(D).across_rows
steps_along, steps_across = hopper.numba_hopper(D).steps_along, hopper.numba_hopper(D).steps_across
add_Q_Kt = numba_products(BC, D, "float16").multiply_add_along
add_P_V = numba_products(BC, D, "float16").multiply_add
wait_for_products = hopper.wait_for_products(0, 16)


# One thread begins to copy a tile, from row `row` of the array on.
@intrinsic
def copy_tile(typing_context, tile, tensor_map, row, barrier):
    ptx_text = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1, {0, $2}], [$3];"
    return assembly(ptx_text, types.void(U32, U64, I32, U32), together=True)


@cuda.jit(arch="sm_90a")
def attention(Q, K, V, O, rows, n, tau):
    tiles = cuda.shared.array(WORDS, uint32, alignment=1024)
    barriers = ptx.shared_address(cuda.shared.array(5, uint64))
    Q_tile = ptx.shared_address(tiles)
    K_tiles = uint32(Q_tile + uint32(Q_BYTES))
    V_tiles = uint32(K_tiles + uint32(2 * TILE_BYTES))
    full, empty, Q_full = barriers, uint32(barriers + uint32(16)), uint32(barriers + uint32(32))
    warp, lane, block_row = int32(cuda.threadIdx.y), int32(cuda.threadIdx.x), int32(cuda.blockIdx.x * BR)

    if warp == 0 and lane == 0:
        hopper.init_barrier(Q_full, 1)
        for stage in range(2):
            hopper.init_barrier(uint32(full + uint32(8 * stage)), 1)
            hopper.init_barrier(uint32(empty + uint32(8 * stage)), CONSUMERS)
        hopper.publish_barriers()
    cuda.syncthreads()
    if warp == 4 and lane == 0:
        hopper.arrive_and_expect(Q_full, Q_BYTES)
        copy_tile(Q_tile, Q, block_row, Q_full)
        for first in range(0, n, BC):
            stage, parity = uint32(first // BC & 1), uint32(first // BC // 2 & 1)
            hopper.wait(uint32(empty + uint32(8) * stage), uint32(1) - parity)
            arrived = uint32(full + uint32(8) * stage)
            hopper.arrive_and_expect(arrived, 2 * TILE_BYTES)
            copy_tile(uint32(K_tiles + stage * uint32(TILE_BYTES)), K, int32(first), arrived)
            copy_tile(uint32(V_tiles + stage * uint32(TILE_BYTES)), V, int32(first), arrived)
    if warp == 4:
        return

    column = lane % 4 * 2
    m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
    s, o = cuda.local.array(16, float32), cuda.local.array(16, float32)
    for h in range(2):
        m[h], l[h] = -INFINITY, float32(0)
    for i in range(16):
        o[i] = float32(0)
    hopper.wait(Q_full, uint32(0))
    for first in range(0, n, BC):
        stage, parity = uint32(first // BC & 1), uint32(first // BC // 2 & 1)
        hopper.wait(uint32(full + uint32(8) * stage), parity)
        q, k = along_rows(Q_tile), along_rows(uint32(K_tiles + stage * uint32(TILE_BYTES)))
        for i in range(16):
            s[i] = float32(0)
        hopper.begin_products()
        for c in range(D // 16):
            add_Q_Kt(s, q + steps_along(BR, c), k + steps_along(BC, c))
        hopper.commit_products()
        wait_for_products(s)
        for i in range(16):
            s[i] = tau * s[i] if first + i // 4 * 8 + column + i % 2 < n else -INFINITY
        for h in range(2):
            m_new, total = m[h], float32(0)
            for i in range(2 * h, 16, 4):
                m_new = max(m_new, max(s[i], s[i + 1]))
            m_new = ptx.quad_max(m_new)
            correction = math.exp(m[h] - m_new)
            m[h] = m_new
            for i in range(2 * h, 16, 4):
                for e in range(i, i + 2):
                    s[e] = math.exp(s[e] - m_new)
                    total += s[e]
                    o[e] *= correction
            l[h] = correction * l[h] + ptx.quad_sum(total)
        v = across_rows(uint32(V_tiles + stage * uint32(TILE_BYTES)), BC)
        hopper.begin_products()
        for j in range(BC // 16):
            a = (
                pack(s[8 * j], s[8 * j + 1]),
                pack(s[8 * j + 2], s[8 * j + 3]),
                pack(s[8 * j + 4], s[8 * j + 5]),
                pack(s[8 * j + 6], s[8 * j + 7]),
            )
            add_P_V(o, a, v + steps_across(j))
        hopper.commit_products()
        wait_for_products(o)
        hopper.arrive(uint32(empty + uint32(8) * stage))
    for h in range(2):
        row = block_row + 16 * warp + lane // 4 + 8 * h
        if row < rows:
            for i in range(2 * h, 16, 4):
                to = uint64(row * D + i // 4 * 8 + column) * uint64(2)
                store_pair(ptx.global_address(O) + to, pack(o[i] / l[h], o[i + 1] / l[h]))


KERNELS = (attention,)
