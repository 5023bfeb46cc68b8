"""FlashAttention-2, backward pass, with dQ in a launch of its own: Dao 2023, arXiv 2307.08691, algorithm 2.

Line numbers are the paper's. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._tiles import Tile
from variants._tiles.numba_backward import numba_backward
from variants._tiles.numba_grids import head_across, key_block_across, kv_head_across, row_block_across
from variants._tiles.numba_tiles import (
    ONE,
    ZERO,
    batch_index,
    block_index,
    copies,
    head_index,
    numba_tiles,
    thread_index,
)


@functools.cache
def bwd_fa2_of_keys(head_dim: int, tile: Tile, dtype: str, spans: bool) -> tuple[Any, Any]:
    """The kernels that own keys, `prepare` and `of_keys`; the tile is turned: Br keys, Bc rows.

    `spans`: see `numba_backward`.
    """
    D = head_dim
    load_tile, store_tile = copies(D, dtype)
    tiles, backward = numba_tiles(head_dim, tile, spans), numba_backward(head_dim, tile, spans)
    KEYS, ROWS = backward.KEYS, backward.ROWS
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    keep_limits_of_keys, row_dots = backward.keep_limits_of_keys, backward.row_dots
    rows_seeing, span_in_tile = backward.rows_seeing, tiles.span_in_tile
    weights_and_gradients, gather, add_P_V = backward.weights_and_gradients, backward.gather, tiles.add_P_V

    # Line 4: D = rowsum(dO o O).
    @cuda.jit
    def bwd_fa2_ordered_prepare(O, dO, delta):
        O_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        delta_tile = cuda.shared.array(ROWS, float32)

        q_len = O.shape[2]
        first_row = block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        O_head = O[batch_index(), head_index()]
        dO_head = dO[batch_index(), head_index()]
        delta_head = delta[batch_index(), head_index()]
        t = thread_index()
        load_tile(O_tile, ROWS, O_head, first_row, rows)
        load_tile(dO_tile, ROWS, dO_head, first_row, rows)
        cuda.syncthreads()
        row_dots(delta_tile, dO_tile, O_tile)
        cuda.syncthreads()
        if t < rows:
            delta_head[first_row + t] = delta_tile[t]

    # Lines 5 to 19 without 15: a block owns K_j and V_j of one head, and the query heads that share them. The first
    # keys of all heads start first, which most rows see where causal.
    @cuda.jit
    def bwd_fa2_ordered_of_keys(Q, K, V, dO, lse, delta, dK, dV, group, tau, before, after):
        K_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        V_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        Q_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(ROWS, float32)
        delta_tile = cuda.shared.array(ROWS, float32)
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD), float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        t = thread_index()
        q_len, kv_len = Q.shape[2], K.shape[2]
        first_key = key_block_across() * KEYS
        keys = min(KEYS, kv_len - first_key)
        ahead, behind = keep_limits_of_keys(before, after, first_key, keys, q_len)
        last_key = first_key + keys - 1
        start_row, end_row, first_row_by_all, end_row_by_all = rows_seeing(
            first_key, last_key, q_len, kv_len, ahead, behind
        )
        K_head = K[batch_index(), head_across()]
        V_head = V[batch_index(), head_across()]
        dK_head = dK[batch_index(), head_across()]
        dV_head = dV[batch_index(), head_across()]

        # Line 6: load K_j, V_j, if any row sees one of the keys.
        if start_row < end_row:
            load_tile(K_tile, KEYS, K_head, first_key, keys)
            load_tile(V_tile, KEYS, V_head, first_key, keys)

        # Line 7: dK_j = 0, dV_j = 0, on chip.
        for i in range(TM):
            for j in range(TD):
                dK_acc[i, j] = ZERO
                dV_acc[i, j] = ZERO

        # Line 8: for all Q_i with a row that sees some key of the tile, of all heads that share it.
        for member in range(group):
            head = head_across() * group + member
            Q_head = Q[batch_index(), head]
            dO_head = dO[batch_index(), head]
            lse_head = lse[batch_index(), head]
            delta_head = delta[batch_index(), head]
            for first_row in range(start_row, end_row, ROWS):
                # Line 9: load Q_i, dO_i, L_i, D_i, once nobody reads the last ones any more.
                rows = min(ROWS, q_len - first_row)
                cuda.syncthreads()
                load_tile(Q_tile, ROWS, Q_head, first_row, rows)
                load_tile(dO_tile, ROWS, dO_head, first_row, rows)
                if t < ROWS:
                    lse_tile[t] = lse_head[first_row + t] if t < rows else ZERO
                    delta_tile[t] = delta_head[first_row + t] if t < rows else ZERO
                cuda.syncthreads()

                # Lines 10, 11, 13 and 14: S = tau Q_i K_j^T, P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
                span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind)
                weights_and_gradients(
                    P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first, end, ()
                )
                cuda.syncthreads()

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                first_by_all = first_row_by_all - first_row
                end_by_all = end_row_by_all - first_row
                add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end)
                add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end)

        # Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        cuda.syncthreads()
        gather(K_tile, KEYS, dK_acc, TM, tau)
        gather(V_tile, KEYS, dV_acc, TM, ONE)
        cuda.syncthreads()
        store_tile(dK_head, first_key, K_tile, keys)
        store_tile(dV_head, first_key, V_tile, keys)

    return bwd_fa2_ordered_prepare, bwd_fa2_ordered_of_keys


@functools.cache
def bwd_fa2_of_rows(head_dim: int, tile: Tile, dtype: str, spans: bool) -> Any:
    """The kernel that owns rows, as one of the forward pass does; `spans`: see `numba_tiles`."""
    D, BR, BC = head_dim, tile.Br, tile.Bc
    load_tile, store_tile = copies(D, dtype)
    tiles = numba_tiles(head_dim, tile, spans)
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    gather = numba_backward(head_dim, tile).gather
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, tile_row = tiles.row_of, tiles.key_of, tiles.tile_row
    multiply_Q_Kt, span_in_tile, add_P_V = tiles.multiply_Q_Kt, tiles.span_in_tile, tiles.add_P_V

    # Line 15 alone: a block owns Q_i and dO_i of one head. S and dP are worked out once more. Last rows start first.
    @cuda.jit
    def bwd_fa2_ordered_of_rows(Q, K, V, dO, lse, delta, dQ, group, tau, before, after):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        V_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(BR, float32)
        delta_tile = cuda.shared.array(BR, float32)
        S = cuda.local.array((TM, TN), float32)
        dP = cuda.local.array((TM, TN), float32)
        dQ_acc = cuda.local.array((TM, TD), float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        t = thread_index()
        q_len, kv_len = Q.shape[2], K.shape[2]
        first_row = row_block_across() * BR
        rows = min(BR, q_len - first_row)
        Q_head = Q[batch_index(), head_across()]
        dO_head = dO[batch_index(), head_across()]
        lse_head = lse[batch_index(), head_across()]
        delta_head = delta[batch_index(), head_across()]
        dQ_head = dQ[batch_index(), head_across()]
        K_head = K[batch_index(), kv_head_across(group)]
        V_head = V[batch_index(), kv_head_across(group)]
        load_tile(Q_tile, BR, Q_head, first_row, rows)
        load_tile(dO_tile, BR, dO_head, first_row, rows)
        if t < BR:
            lse_tile[t] = lse_head[first_row + t] if t < rows else ZERO
            delta_tile[t] = delta_head[first_row + t] if t < rows else ZERO

        for i in range(TM):
            for j in range(TD):
                dQ_acc[i, j] = ZERO

        # All K_j with a key that some row sees: from the first row's first to the last row's last.
        last_row = first_row + rows - 1
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        first_by_last = first_seen(last_row, q_len, kv_len, before)
        end_by_first = end_seen(first_row, q_len, kv_len, after)
        end_by_last = end_seen(last_row, q_len, kv_len, after)
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            # Load K_j, V_j, once nobody reads the last ones any more.
            keys = min(BC, kv_len - first_key)
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, keys)
            load_tile(V_tile, BC, V_head, first_key, keys)
            cuda.syncthreads()

            # Lines 10, 11, 13 and 14, a row per row this time.
            multiply_Q_Kt(S, Q_tile, K_tile)
            multiply_Q_Kt(dP, dO_tile, V_tile)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            for i in range(TM):
                lse_i = lse_tile[tile_row(i)]
                delta_i = delta_tile[tile_row(i)]
                for j in range(TN):
                    seen = first[i] <= key_of(j) and key_of(j) < end[i]
                    p = libdevice.fast_expf(tau * S[i, j] - lse_i) if seen else ZERO
                    dS_tile[row_of(i), key_of(j)] = p * (dP[i, j] - delta_i) if seen else ZERO
            cuda.syncthreads()

            # Line 15: dQ_i = dQ_i + dS K_j.
            add_P_V(dQ_acc, dS_tile, K_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end)

        # dQ_i, which is times tau, gathered where Q_i was.
        cuda.syncthreads()
        gather(Q_tile, BR, dQ_acc, TM, tau)
        cuda.syncthreads()
        store_tile(dQ_head, first_row, Q_tile, rows)

    return bwd_fa2_ordered_of_rows
