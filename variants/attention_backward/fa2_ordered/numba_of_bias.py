"""The gradient of a bias without atomics: dS, summed over the batch and the axes that the bias does not vary over.

A block owns BR rows and BC keys of one head of dbias, or all rows, keys or heads along an axis that the bias does not
vary over, and goes through all that is summed in one order. The CUDA twin is of_bias.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_limits import RowBlock
from variants._tiles import Tile
from variants._tiles.numba_backward import RowsInMemory, load_statistics, numba_backward
from variants._tiles.numba_bias_gradient import ELSEWHERE
from variants._tiles.numba_strided_tiles import layout_copies
from variants._tiles.numba_tiles import MASK, ZERO, thread_index


@functools.cache
def bwd_fa2_of_bias(in_memory: RowsInMemory, tile: Tile, features: NumbaFeatures) -> Any:
    """The kernel for these compile-time parameters."""
    BR, BC = tile.Br, tile.Bc
    load_tile, _ = layout_copies(in_memory.D, in_memory.dtype, in_memory.aligned)
    load_V_tile, _ = layout_copies(in_memory.DV, in_memory.dtype, in_memory.aligned)
    backward = numba_backward(in_memory, tile, features, ELSEWHERE)
    tiles, limits_of_block, row_gradients = backward.tiles, features.limits.of_block, backward.row_gradients
    LDV, multiply_dO_Vt = backward.tiles_of_V.LD, backward.tiles_of_V.multiply_Q_Kt
    TM, TN, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, has_row = tiles.row_of, tiles.key_of, tiles.has_row
    order_, tiles_of_block = features.order, features.order.of_block
    first_tile, tile_after, exists, pairs_of = order_.first, order_.after, order_.exists, order_.pairs
    multiply_Q_Kt, seen_in_tile, score_of_head = tiles.multiply_Q_Kt, tiles.seen_in_tile, features.scores.of_head

    # The grid is (tiles of keys, tiles of rows, heads), 1 along such an axis, whose stride is 0.
    @cuda.jit
    def bwd_fa2_ordered_of_bias(
        Q, K, V, dO, lse, delta, dbias, batch, heads, q_len, kv_len, group, score_tau, head_stride, row_stride,
        key_stride, limits, order, scores, layout, gradients,
    ):  # fmt: skip
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((BR, LDV), float32, alignment=16)
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        V_tile = cuda.shared.array((BC, LDV), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(BR, float32)
        delta_tile = cuda.shared.array(BR, float32)
        S = cuda.local.array((TM, TN), float32)
        dP = cuda.local.array((TM, TN), float32)
        dS_acc = cuda.local.array((TM, TN), float32)
        bounds = cuda.local.array((2, TM), int32)

        own_head = cuda.blockIdx.z & MASK
        own_row, own_key = (cuda.blockIdx.y & MASK) * BR, (cuda.blockIdx.x & MASK) * BC
        end_head = own_head + 1 if head_stride != 0 else heads
        end_row = min(own_row + BR, q_len) if row_stride != 0 else q_len
        end_key = min(own_key + BC, kv_len) if key_stride != 0 else kv_len
        for i in range(TM):
            for j in range(TN):
                dS_acc[i, j] = ZERO

        for b in range(batch):
            for head in range(own_head, end_head):
                score = score_of_head(scores, head, q_len, kv_len)
                K_head, V_head = K[b, head // group], V[b, head // group]
                for first_row in range(own_row, end_row, BR):
                    # Which of the keys some row sees, once no thread reads the tiles of before any more.
                    rows = min(BR, q_len - first_row)
                    block = RowBlock(b, head, first_row // BR, (q_len + BR - 1) // BR, first_row, rows)
                    cuda.syncthreads()
                    seen = limits_of_block(limits, block, q_len, kv_len)
                    start_key, stop_key = max(seen.first_key // BC * BC, own_key), min(seen.end_key, end_key)
                    if start_key < stop_key:
                        tiles = tiles_of_block(order, block, start_key, stop_key, q_len, kv_len)
                        next, is_loaded = first_tile(tiles), False
                        while exists(next):
                            tile, next = next, tile_after(tiles, next)
                            first_key, keys = tile.first_key, min(BC, kv_len - tile.first_key)
                            if first_key < start_key or stop_key <= first_key:
                                continue  # listed tiles are those of all keys
                            cuda.syncthreads()
                            if not is_loaded:
                                load_tile(Q_tile, BR, Q[b, head], first_row, rows)
                                load_V_tile(dO_tile, BR, dO[b, head], first_row, rows)
                                load_statistics(lse_tile, delta_tile, BR, lse[b, head], delta[b, head], first_row, rows)
                                is_loaded = True
                            load_tile(K_tile, BC, K_head, first_key, keys)
                            load_V_tile(V_tile, BC, V_head, first_key, keys)
                            pairs = pairs_of(tiles, tile, keys)  # of listed tiles; else nothing
                            cuda.syncthreads()

                            # Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T,
                            # dS = P o (dP - D_i).
                            multiply_Q_Kt(S, Q_tile, K_tile)
                            multiply_dO_Vt(dP, dO_tile, V_tile)
                            seen_here = seen_in_tile(bounds, seen, pairs, first_row, first_key, keys)
                            row_gradients(
                                S, dP, lse_tile, delta_tile, score_tau, score, seen_here, first_row, rows, first_key
                            )
                            for i in range(TM):
                                for j in range(TN):
                                    dS_acc[i, j] += dP[i, j]

        # Write dbias, after dS has been summed over the tile's keys or rows if the bias does not vary over these.
        t = thread_index()
        dbias_head = dbias[own_head]
        if row_stride != 0 and key_stride != 0:
            for i in range(TM):
                for j in range(TN):
                    row, key = own_row + row_of(i), own_key + key_of(j)
                    if row < end_row and key < end_key and has_row(i) and key_of(j) < BC:
                        dbias_head[row, key] = dS_acc[i, j]
            return
        for i in range(TM):
            for j in range(TN):
                dS_tile[row_of(i), key_of(j)] = dS_acc[i, j]
        cuda.syncthreads()
        total = ZERO
        if key_stride != 0:
            if t < BC and own_key + t < end_key:
                for r in range(BR):
                    total += dS_tile[r, t]
                dbias_head[0, own_key + t] = total
            return
        if t < BR:
            for k in range(BC):
                total += dS_tile[t, k]
            if row_stride != 0:
                if own_row + t < end_row:
                    dbias_head[own_row + t, 0] = total
            else:
                lse_tile[t] = total
        cuda.syncthreads()
        if row_stride == 0 and t == 0:
            total = ZERO
            for r in range(BR):
                total += lse_tile[r]
            dbias_head[0, 0] = total

    return bwd_fa2_ordered_of_bias
