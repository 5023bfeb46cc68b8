"""FlashAttention-2, backward pass: Dao 2023, arXiv 2307.08691, algorithm 2. Line numbers are the paper's.

dQ is summed in memory by many blocks at once, in float32; bwd_fa2_round writes it in the problem's own dtype. The CUDA
twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._dropout.numba_dropout import numba_dropout
from variants._tiles import Tile
from variants._tiles.numba_backward import numba_backward
from variants._tiles.numba_copies import copy_tile_of, wait_for_copies
from variants._tiles.numba_grids import head_across, key_block_across
from variants._tiles.numba_shared import shared_tile
from variants._tiles.numba_tiles import (
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
def bwd_fa2_kernels(
    head_dim: int, tile: Tile, dtype: str, blocks_per_sm: int, spans: bool, features: tuple[str, ...]
) -> SimpleNamespace:
    """The kernels `bwd_fa2_prepare`, `bwd_fa2` and `bwd_fa2_round`; the tile is turned: Br keys, Bc rows.

    `spans` and `features`: see `numba_backward`. `blocks_per_sm` share a multiprocessor at least.
    """
    D = head_dim
    load_tile, store_tile = copies(D, dtype)
    copy_tile = copy_tile_of(D, tile.Bc, dtype)
    _, _, narrow = conversions(dtype)
    tiles, backward = numba_tiles(head_dim, tile, spans), numba_backward(head_dim, tile, spans, features)
    factor_of = numba_dropout(features).factor_of
    KEYS, ROWS, TQ = backward.KEYS, backward.ROWS, backward.TQ
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    keep_limits_of_keys, row_dots = backward.keep_limits_of_keys, backward.row_dots
    rows_seeing, span_in_tile = backward.rows_seeing, tiles.span_in_tile
    K_place, V_place = shared_tile(0, KEYS, LD), shared_tile(KEYS * LD, KEYS, LD)
    Q_place, dO_place = shared_tile(2 * KEYS * LD, ROWS, LD), shared_tile((2 * KEYS + ROWS) * LD, ROWS, LD)
    weights = 2 * (KEYS + ROWS) * LD
    P_place, dS_place = shared_tile(weights, P_ROWS, LP), shared_tile(weights + P_ROWS * LP, P_ROWS, LP)
    statistics_place = shared_tile(weights + 2 * P_ROWS * LP, 2, ROWS)
    weights_and_gradients, gather = backward.weights_and_gradients, backward.gather
    add_P_V, multiply_dS_K = tiles.add_P_V, backward.multiply_dS_K

    # Line 3: dQ = 0. Line 4: D = rowsum(dO o O).
    @cuda.jit
    def bwd_fa2_prepare(O, dO, delta, dQ):
        O_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        delta_tile = cuda.shared.array(ROWS, float32)

        q_len = O.shape[2]
        first_row = block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        O_head = O[batch_index(), head_index()]
        dO_head = dO[batch_index(), head_index()]
        delta_head = delta[batch_index(), head_index()]
        dQ_head = dQ[batch_index(), head_index()]
        t = thread_index()
        for start in range(0, rows * D, THREADS):
            if start + t < rows * D:
                dQ_head[first_row + (start + t) // D, (start + t) % D] = ZERO
        load_tile(O_tile, ROWS, O_head, first_row, rows)
        load_tile(dO_tile, ROWS, dO_head, first_row, rows)
        cuda.syncthreads()
        row_dots(delta_tile, dO_tile, O_tile)
        cuda.syncthreads()
        if t < rows:
            delta_head[first_row + t] = delta_tile[t]

    # Lines 5 to 19: a block owns K_j and V_j of one head, and the query heads that share them. The first keys of all
    # heads start first, which most rows see where causal.
    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def bwd_fa2(Q, K, V, dO, lse, delta, dQ, dK, dV, group, tau, before, after, draw, kept_factor):
        K_tile, V_tile, Q_tile, dO_tile = K_place(), V_place(), Q_place(), dO_place()
        P_tile, dS_tile = P_place(), dS_place()
        statistics = statistics_place()
        lse_tile, delta_tile = statistics[0], statistics[1]
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD), float32)
        dQ_part = cuda.local.array((TQ, TD), float32)
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
        if start_row < end_row:
            copy_tile(Q_tile, Q[batch_index(), head_across() * group], start_row, min(ROWS, q_len - start_row))
        for member in range(group):
            head = head_across() * group + member
            dO_head = dO[batch_index(), head]
            lse_head = lse[batch_index(), head]
            delta_head = delta[batch_index(), head]
            dQ_head = dQ[batch_index(), head]
            for first_row in range(start_row, end_row, ROWS):
                # Line 9: load dO_i, once nobody adds what is gathered there any more, L_i and D_i; Q_i is on its way.
                rows = min(ROWS, q_len - first_row)
                cuda.syncthreads()
                copy_tile(dO_tile, dO_head, first_row, rows)
                if t < ROWS:
                    lse_tile[t] = lse_head[first_row + t] if t < rows else ZERO
                    delta_tile[t] = delta_head[first_row + t] if t < rows else ZERO
                wait_for_copies()
                cuda.syncthreads()

                # Lines 10, 11, 13 and 14: S = tau Q_i K_j^T, P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
                span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind)
                weights_and_gradients(
                    P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first, end,
                    (draw, kept_factor, head, first_row, first_key),
                )  # fmt: skip
                cuda.syncthreads()

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                first_by_all = first_row_by_all - first_row
                end_by_all = end_row_by_all - first_row
                add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end)
                add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end)

                # Line 15: dQ_i = dQ_i + tau dS K_j in memory, gathered where dO_i was and added as one run; other
                # blocks add theirs at the same time. The next Q_i comes meanwhile, of this head or of the next one.
                multiply_dS_K(
                    dQ_part, dS_tile, K_tile, first_by_all, end_by_all, first_key, keys, first_row, rows, q_len, kv_len,
                    ahead, behind,
                )  # fmt: skip
                cuda.syncthreads()
                of_next_head = first_row + ROWS >= end_row
                if not of_next_head or member + 1 < group:
                    next_head = head + 1 if of_next_head else head
                    next_row = start_row if of_next_head else first_row + ROWS
                    copy_tile(Q_tile, Q[batch_index(), next_head], next_row, min(ROWS, q_len - next_row))
                gather(dO_tile, ROWS, dQ_part, TQ, tau)
                cuda.syncthreads()
                for start in range(0, rows * D, THREADS):
                    e = start + t
                    if e < rows * D:
                        cuda.atomic.add(dQ_head, (first_row + e // D, e % D), dO_tile[e // D, e % D])

        # Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        cuda.syncthreads()
        gather(K_tile, KEYS, dK_acc, TM, tau)
        gather(V_tile, KEYS, dV_acc, TM, factor_of(kept_factor))
        cuda.syncthreads()
        store_tile(dK_head, first_key, K_tile, keys)
        store_tile(dV_head, first_key, V_tile, keys)

    # Line 20: return dQ, in the problem's own dtype.
    @cuda.jit
    def bwd_fa2_round(dQ_running, dQ):
        q_len = dQ.shape[2]
        first_row = block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        running_head = dQ_running[batch_index(), head_index()]
        dQ_head = dQ[batch_index(), head_index()]
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                dQ_head[first_row + e // D, e % D] = narrow(running_head[first_row + e // D, e % D])

    return SimpleNamespace(bwd_fa2_prepare=bwd_fa2_prepare, bwd_fa2=bwd_fa2, bwd_fa2_round=bwd_fa2_round)
