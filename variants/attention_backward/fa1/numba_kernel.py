"""FlashAttention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 4. Line numbers are the paper's.

There is no dropout, so lines 1, 14, 15 and 18 have nothing to do. dQ is rewritten in memory once per K/V block, in
float32; bwd_fa1_round writes it in the problem's own dtype. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._tiles import Tile
from variants._tiles.numba_backward import numba_backward
from variants._tiles.numba_tiles import (
    ONE,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    conversions,
    copies,
    head_index,
    numba_tiles,
    thread_index,
)


@functools.cache
def bwd_fa1_kernels(head_dim: int, tile: Tile, dtype: str, spans: bool) -> SimpleNamespace:
    """The kernels `bwd_fa1_initialise`, `bwd_fa1` and `bwd_fa1_round`; the tile is turned: Br keys, Bc rows.

    `spans`: see `numba_backward`.
    """
    D = head_dim
    load_tile, store_tile = copies(D, dtype)
    _, _, narrow = conversions(dtype)
    tiles, backward = numba_tiles(head_dim, tile, spans), numba_backward(head_dim, tile, spans)
    KEYS, ROWS, TQ = backward.KEYS, backward.ROWS, backward.TQ
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    keep_limits_of_keys, row_dots = backward.keep_limits_of_keys, backward.row_dots
    rows_seeing, span_in_tile = backward.rows_seeing, tiles.span_in_tile
    weights_and_gradients, gather = backward.weights_and_gradients, backward.gather
    add_P_V, multiply_dS_K = tiles.add_P_V, backward.multiply_dS_K

    # Line 5: dQ = 0 in global memory.
    @cuda.jit
    def bwd_fa1_initialise(dQ):
        q_len = dQ.shape[2]
        first_row = block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        dQ_head = dQ[batch_index(), head_index()]
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                dQ_head[first_row + e // D, e % D] = ZERO

    # Lines 6 to 25: one block per head of K and V, with the query heads that share it.
    @cuda.jit
    def bwd_fa1(Q, K, V, O, dO, lse, dQ, dK, dV, group, tau, before, after):
        K_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        V_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        Q_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        O_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)  # O_i, then this K_j's part of dQ_i
        dO_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(ROWS, float32)
        delta_tile = cuda.shared.array(ROWS, float32)
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD), float32)
        dQ_part = cuda.local.array((TQ, TD), float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        t = thread_index()
        q_len, kv_len = Q.shape[2], K.shape[2]
        K_head = K[batch_index(), head_index()]
        V_head = V[batch_index(), head_index()]
        dK_head = dK[batch_index(), head_index()]
        dV_head = dV[batch_index(), head_index()]
        for first_key in range(0, kv_len, KEYS):
            keys = min(KEYS, kv_len - first_key)

            # Line 7: load K_j, V_j, if any row sees one of the keys, once nobody reads what was gathered there.
            cuda.syncthreads()
            ahead, behind = keep_limits_of_keys(before, after, first_key, keys, q_len)
            last_key = first_key + keys - 1
            start_row, end_row, first_row_by_all, end_row_by_all = rows_seeing(
                first_key, last_key, q_len, kv_len, ahead, behind
            )
            if start_row < end_row:
                load_tile(K_tile, KEYS, K_head, first_key, keys)
                load_tile(V_tile, KEYS, V_head, first_key, keys)

            # Line 8: dK_j = 0, dV_j = 0, on chip.
            for i in range(TM):
                for j in range(TD):
                    dK_acc[i, j] = ZERO
                    dV_acc[i, j] = ZERO

            # Line 9: for all Q_i with a row that sees some key of the tile, of all heads that share it.
            for member in range(group):
                head = head_index() * group + member
                Q_head = Q[batch_index(), head]
                O_head = O[batch_index(), head]
                dO_head = dO[batch_index(), head]
                lse_head = lse[batch_index(), head]
                dQ_head = dQ[batch_index(), head]
                for first_row in range(start_row, end_row, ROWS):
                    # Line 10: load Q_i, O_i, dO_i and the log-sum-exp. Behind the barrier of line 21 nobody reads the
                    # last ones any more but the thread itself that overwrites them.
                    rows = min(ROWS, q_len - first_row)
                    load_tile(Q_tile, ROWS, Q_head, first_row, rows)
                    load_tile(O_tile, ROWS, O_head, first_row, rows)
                    load_tile(dO_tile, ROWS, dO_head, first_row, rows)
                    if t < ROWS:
                        lse_tile[t] = lse_head[first_row + t] if t < rows else ZERO
                    cuda.syncthreads()

                    # Line 19: D_i = rowsum(dO_i o O_i).
                    row_dots(delta_tile, dO_tile, O_tile)
                    cuda.syncthreads()

                    # Lines 11 to 13: S = tau Q_i K_j^T, P = exp(S - lse) where seen. Lines 17 and 20: dP = dO_i V_j^T,
                    # dS = P o (dP - D_i).
                    span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind)
                    weights_and_gradients(
                        P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first, end, ()
                    )
                    cuda.syncthreads()

                    # Line 16: dV_j = dV_j + P^T dO_i. Line 22: dK_j = dK_j + dS^T Q_i.
                    first_by_all = first_row_by_all - first_row
                    end_by_all = end_row_by_all - first_row
                    add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end)
                    add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end)

                    # Line 21: dQ_i = dQ_i + tau dS K_j in memory. Each thread reads back only what it wrote itself.
                    multiply_dS_K(
                        dQ_part, dS_tile, K_tile, first_by_all, end_by_all, first_key, keys, first_row, rows, q_len,
                        kv_len, ahead, behind,
                    )  # fmt: skip
                    gather(O_tile, ROWS, dQ_part, TQ, tau)
                    cuda.syncthreads()
                    for start in range(0, rows * D, THREADS):
                        e = start + t
                        if e < rows * D:
                            dQ_head[first_row + e // D, e % D] += O_tile[e // D, e % D]

            # Line 24: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
            cuda.syncthreads()
            gather(K_tile, KEYS, dK_acc, TM, tau)
            gather(V_tile, KEYS, dV_acc, TM, ONE)
            cuda.syncthreads()
            store_tile(dK_head, first_key, K_tile, keys)
            store_tile(dV_head, first_key, V_tile, keys)

    # Line 26: return dQ, in the problem's own dtype.
    @cuda.jit
    def bwd_fa1_round(dQ_running, dQ):
        q_len = dQ.shape[2]
        first_row = block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        running_head = dQ_running[batch_index(), head_index()]
        dQ_head = dQ[batch_index(), head_index()]
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                dQ_head[first_row + e // D, e % D] = narrow(running_head[first_row + e // D, e % D])

    return SimpleNamespace(bwd_fa1_initialise=bwd_fa1_initialise, bwd_fa1=bwd_fa1, bwd_fa1_round=bwd_fa1_round)
