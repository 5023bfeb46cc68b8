"""FlashAttention-2, backward pass: Dao 2023, arXiv 2307.08691, algorithm 2. Line numbers are the paper's.

Many blocks add to dQ in memory at the same time, in float32; bwd_fa2_round then writes it as elements are stored. The
CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_backward import RowsInMemory, load_statistics, numba_backward
from variants._tiles.numba_copies import wait_for_copies
from variants._tiles.numba_shared import shared_tile
from variants._tiles.numba_strided_tiles import layout_copies, layout_copy_tile
from variants._tiles.numba_tiles import THREADS, ZERO, batch_index, block_index, head_index, thread_index


@functools.cache
def bwd_fa2_kernels(
    rows_in_memory: RowsInMemory, tile: Tile, blocks_per_sm: int, features: NumbaFeatures, bias: str
) -> SimpleNamespace:
    """The kernels `bwd_fa2_prepare`, `bwd_fa2` and `bwd_fa2_round`; the tile is turned: Br keys, Bc rows.

    At least `blocks_per_sm` blocks share a multiprocessor. `bias`: as for `numba_bias_gradient`.
    """
    D, DV, dtype, aligned = rows_in_memory
    load_tile, _ = layout_copies(D, dtype, aligned)
    load_V_tile, _ = layout_copies(DV, dtype, aligned)
    copy_tile, copy_dO = (layout_copy_tile(width, tile.Bc, dtype, aligned) for width in (D, DV))
    backward = numba_backward(rows_in_memory, tile, features, bias)
    tiles, tiles_of_V = backward.tiles, backward.tiles_of_V
    KEYS, ROWS, TQ = backward.KEYS, backward.ROWS, backward.TQ
    TM, TD, TD_of_V, P_ROWS = tiles.TM, tiles.TD, tiles_of_V.TD, tiles.P_ROWS
    LD, LDV, LP = tiles.LD, tiles_of_V.LD, tiles.LP
    K_place, V_place = shared_tile(0, KEYS, LD), shared_tile(KEYS * LD, KEYS, LDV)
    Q_first = KEYS * (LD + LDV)
    dO_first = Q_first + ROWS * LD
    Q_place, dO_place = shared_tile(Q_first, ROWS, LD), shared_tile(dO_first, ROWS, LDV)
    dQ_place, weights = shared_tile(dO_first, ROWS, LD), dO_first + ROWS * max(LD, LDV)
    P_place, dS_place = shared_tile(weights, P_ROWS, LP), shared_tile(weights + P_ROWS * LP, P_ROWS, LP)
    statistics_place = shared_tile(weights + 2 * P_ROWS * LP, 2, ROWS)
    zero_rows, round_rows, row_dots_in_memory = backward.zero_rows, backward.round_rows, backward.row_dots_in_memory
    own_sequence_across, own_keys_across = backward.own_sequence_across, backward.own_keys_across
    _, has_rows, key_in_K, row_in_Q, *_ = features.sequences  # mirrored
    rows_seeing, in_tile = backward.rows_seeing, backward.in_tile
    order_, tiles_of_block = features.order, features.order.of_block  # mirrored
    first_of, tile_after, exists, pairs_of = order_.first, order_.after, order_.exists, order_.pairs
    weights_and_gradients, multiply_dS_K = backward.weights_and_gradients, backward.multiply_dS_K
    gather_dQ, store_dK_dV = backward.gather_dQ, backward.store_dK_dV
    add_P_dO, add_dS_Q = tiles_of_V.add_P_V, tiles.add_P_V
    dropout_of_head, factor = features.dropout.of_head, features.dropout.factor
    score_of_head, dbias_of_head, zero_dbias = features.scores.of_head, backward.dbias.of_head, backward.dbias.zero

    # Line 3: dQ = 0, and that of the bias. Line 4: D = rowsum(dO o O).
    @cuda.jit
    def bwd_fa2_prepare(O, dO, delta, dQ, q_len, dbias, layout, gradients):
        batch, head, first_row = batch_index(), head_index(), block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        zero_dbias(dbias)
        zero_rows(dQ[batch, head], first_row, rows)
        row_dots_in_memory(delta[batch, head], dO[batch, head], O[batch, head], first_row, rows)

    # Of `layout` and `gradients` there is nothing to ask: arrays know their strides.
    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def bwd_fa2(
        Q, K, V, dO, lse, delta, dQ, dK, dV, q_len, kv_len, group, tau, score_tau, limits, order, scores,
        dropout, dbias, sequences, layout, gradients,
    ):  # fmt: skip
        K_tile, V_tile, Q_tile, dO_tile, dQ_tile = K_place(), V_place(), Q_place(), dO_place(), dQ_place()
        P_tile, dS_tile = P_place(), dS_place()
        statistics = statistics_place()
        lse_tile, delta_tile = statistics[0], statistics[1]
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD_of_V), float32)
        dQ_part = cuda.local.array((TQ, TD), float32)
        bounds = cuda.local.array((2, TM), int32)

        # Line 5: the block owns K_j and V_j of one head. The first keys of all heads start first, since most rows see
        # them under a causal mask. Rows and keys are counted from the beginning of the sequence.
        own = own_sequence_across(sequences, q_len, kv_len)
        if not has_rows(own):
            return
        own_keys, own_rows = own.q_len, own.kv_len  # `own` is mirrored
        block = own_keys_across(own)
        batch, kv_head, keys = block.batch, block.head, block.rows
        first_key = key_in_K(own, block.first_row)
        seeing = rows_seeing(limits, block, own_rows, own_keys)
        tiles = tiles_of_block(order, block, seeing.start_row, seeing.end_row, own_keys, own_rows)
        first_tile = first_of(tiles)

        # Line 6: load K_j, V_j, if any row sees one of the keys. Line 9 for the first tile: load Q_i.
        if exists(first_tile):
            load_tile(K_tile, KEYS, K[batch, kv_head], first_key, keys)
            load_V_tile(V_tile, KEYS, V[batch, kv_head], first_key, keys)
            start_row = first_tile.first_key
            copy_tile(Q_tile, Q[batch, kv_head * group], row_in_Q(own, start_row), min(ROWS, own_rows - start_row))

        # Line 7: dK_j = 0, dV_j = 0, on chip.
        for i in range(TM):
            for j in range(TD):
                dK_acc[i, j] = ZERO
            for j in range(TD_of_V):
                dV_acc[i, j] = ZERO

        # Line 8: for all Q_i with a row that sees some key of the tile, of all `group` heads that share K_j and V_j.
        for member in range(group):
            head = kv_head * group + member
            dO_head, dQ_head = dO[batch, head], dQ[batch, head]
            lse_head, delta_head = lse[batch, head], delta[batch, head]
            dbias_head = dbias_of_head(dbias, head)
            score, drawn = score_of_head(scores, head, own_rows, own_keys), dropout_of_head(dropout, head, batch)
            next = first_tile
            while exists(next):
                tile, next = next, tile_after(tiles, next)
                first_row = tile.first_key

                # Line 9: load dO_i, L_i, D_i, once no thread adds to memory what was gathered there. Q_i is on its way.
                rows, row_in_head = min(ROWS, own_rows - first_row), row_in_Q(own, first_row)
                cuda.syncthreads()
                copy_dO(dO_tile, dO_head, row_in_head, rows)
                load_statistics(lse_tile, delta_tile, ROWS, lse_head, delta_head, row_in_head, rows)
                pairs = pairs_of(tiles, tile, rows)  # of listed tiles; else nothing
                wait_for_copies()
                cuda.syncthreads()

                # Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T,
                # dS = P o (dP - D_i).
                weights_and_gradients(
                    P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, score_tau, seeing, pairs,
                    score, drawn, factor(dropout), dbias_head, first_row, rows,
                )  # fmt: skip
                cuda.syncthreads()

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                seen = in_tile(bounds, seeing, pairs, first_row, rows)
                add_P_dO(dV_acc, P_tile, dO_tile, rows, seen)
                add_dS_Q(dK_acc, dS_tile, Q_tile, rows, seen)

                # Line 15: dQ_i = dQ_i + tau dS K_j in memory, gathered where dO_i was and added as one run; other
                # blocks add to it at the same time. Meanwhile the next Q_i is copied, of this head or the next one.
                multiply_dS_K(dQ_part, dS_tile, K_tile, seeing, seen, keys, first_row, rows)
                cuda.syncthreads()
                of_next_head = not exists(next)
                if not of_next_head or member + 1 < group:
                    next_head = head + 1 if of_next_head else head
                    next_row = first_tile.first_key if of_next_head else next.first_key
                    copy_tile(Q_tile, Q[batch, next_head], row_in_Q(own, next_row), min(ROWS, own_rows - next_row))
                gather_dQ(dQ_tile, dQ_part, tau)
                cuda.syncthreads()
                for start in range(0, rows * D, THREADS):
                    e = start + thread_index()
                    if e < rows * D:
                        cuda.atomic.add(dQ_head, (row_in_head + e // D, e % D), dQ_tile[e // D, e % D])

        # Line 18: write dK_j, dV_j.
        dK_head, dV_head = dK[batch, kv_head], dV[batch, kv_head]
        store_dK_dV(dK_head, dV_head, K_tile, V_tile, dK_acc, dV_acc, tau, factor(dropout), first_key, keys)

    # Line 20: return dQ, as elements are stored.
    @cuda.jit
    def bwd_fa2_round(dQ_running, dQ, q_len, gradients):
        batch, head, first_row = batch_index(), head_index(), block_index() * ROWS
        round_rows(dQ[batch, head], dQ_running[batch, head], first_row, min(ROWS, q_len - first_row))

    return SimpleNamespace(bwd_fa2_prepare=bwd_fa2_prepare, bwd_fa2=bwd_fa2, bwd_fa2_round=bwd_fa2_round)
