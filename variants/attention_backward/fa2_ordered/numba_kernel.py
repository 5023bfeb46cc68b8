"""FlashAttention-2, backward pass, with dQ in a launch of its own: Dao 2023, arXiv 2307.08691, algorithm 2.

Line numbers are the paper's. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_backward import RowsInMemory, load_statistics, numba_backward
from variants._tiles.numba_grids import kv_head_across, rows_of_sequence_across
from variants._tiles.numba_strided_tiles import layout_copies
from variants._tiles.numba_tiles import ONE, ZERO, batch_index, block_index, head_index


@functools.cache
def bwd_fa2_of_keys(in_memory: RowsInMemory, tile: Tile, features: NumbaFeatures, bias: str) -> tuple[Any, Any]:
    """The kernels that own keys, `prepare` and `of_keys`; the tile is turned: Br keys, Bc rows.

    `bias`: as for `numba_bias_gradient`.
    """
    load_tile, _ = layout_copies(in_memory.D, in_memory.dtype, in_memory.aligned)
    load_V_tile, _ = layout_copies(in_memory.DV, in_memory.dtype, in_memory.aligned)
    backward = numba_backward(in_memory, tile, features, bias)
    tiles, tiles_of_V = backward.tiles, backward.tiles_of_V
    KEYS, ROWS = backward.KEYS, backward.ROWS
    TM, TD, TD_of_V, P_ROWS = tiles.TM, tiles.TD, tiles_of_V.TD, tiles.P_ROWS
    LD, LDV, LP = tiles.LD, tiles_of_V.LD, tiles.LP
    own_sequence_across, own_keys_across = backward.own_sequence_across, backward.own_keys_across
    _, has_rows, key_in_K, row_in_Q, *_ = features.sequences  # mirrored
    rows_seeing, in_tile = backward.rows_seeing, backward.in_tile
    order_, tiles_of_block = features.order, features.order.of_block  # mirrored
    first_of, tile_after, exists, pairs_of = order_.first, order_.after, order_.exists, order_.pairs
    row_dots_in_memory, weights_and_gradients = backward.row_dots_in_memory, backward.weights_and_gradients
    store_dK_dV, score_of_head = backward.store_dK_dV, features.scores.of_head
    add_P_dO, add_dS_Q = tiles_of_V.add_P_V, tiles.add_P_V

    # Line 4: D = rowsum(dO o O).
    @cuda.jit
    def bwd_fa2_ordered_prepare(O, dO, delta, q_len, layout, gradients):
        batch, head, first_row = batch_index(), head_index(), block_index() * ROWS
        rows = min(ROWS, q_len - first_row)
        row_dots_in_memory(delta[batch, head], dO[batch, head], O[batch, head], first_row, rows)

    # Lines 5 to 19 without 15. `limits`, `order` and `sequences`: mirrored, which rows see a key. Of `layout` and
    # `gradients` there is nothing to ask: arrays know their strides.
    @cuda.jit
    def bwd_fa2_ordered_of_keys(
        Q, K, V, dO, lse, delta, dK, dV, q_len, kv_len, group, tau, score_tau, limits, order, scores, sequences,
        layout, gradients,
    ):  # fmt: skip
        K_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        V_tile = cuda.shared.array((KEYS, LDV), float32, alignment=16)
        Q_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        dO_tile = cuda.shared.array((ROWS, LDV), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(ROWS, float32)
        delta_tile = cuda.shared.array(ROWS, float32)
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD_of_V), float32)
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

        # Line 6: load K_j, V_j, if any row sees one of the keys.
        if exists(first_tile):
            load_tile(K_tile, KEYS, K[batch, kv_head], first_key, keys)
            load_V_tile(V_tile, KEYS, V[batch, kv_head], first_key, keys)

        # Line 7: dK_j = 0, dV_j = 0, on chip.
        for i in range(TM):
            for j in range(TD):
                dK_acc[i, j] = ZERO
            for j in range(TD_of_V):
                dV_acc[i, j] = ZERO

        # Line 8: for all Q_i with a row that sees some key of the tile, of all heads that share it.
        for member in range(group):
            head = kv_head * group + member
            Q_head, dO_head = Q[batch, head], dO[batch, head]
            lse_head, delta_head = lse[batch, head], delta[batch, head]
            score = score_of_head(scores, head, own_rows, own_keys)
            next = first_tile
            while exists(next):
                tile, next = next, tile_after(tiles, next)
                first_row = tile.first_key

                # Line 9: load Q_i, dO_i, L_i, D_i, once no thread reads the last ones any more.
                rows, row_in_head = min(ROWS, own_rows - first_row), row_in_Q(own, first_row)
                cuda.syncthreads()
                load_tile(Q_tile, ROWS, Q_head, row_in_head, rows)
                load_V_tile(dO_tile, ROWS, dO_head, row_in_head, rows)
                load_statistics(lse_tile, delta_tile, ROWS, lse_head, delta_head, row_in_head, rows)
                pairs = pairs_of(tiles, tile, rows)  # of listed tiles; else nothing
                cuda.syncthreads()

                # Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T,
                # dS = P o (dP - D_i).
                weights_and_gradients(
                    P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, score_tau, seeing, pairs,
                    score, (), ONE, (), first_row, rows,
                )  # fmt: skip
                cuda.syncthreads()

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                seen = in_tile(bounds, seeing, pairs, first_row, rows)
                add_P_dO(dV_acc, P_tile, dO_tile, rows, seen)
                add_dS_Q(dK_acc, dS_tile, Q_tile, rows, seen)

        # Line 18: write dK_j, dV_j.
        dK_head, dV_head = dK[batch, kv_head], dV[batch, kv_head]
        store_dK_dV(dK_head, dV_head, K_tile, V_tile, dK_acc, dV_acc, tau, ONE, first_key, keys)

    return bwd_fa2_ordered_prepare, bwd_fa2_ordered_of_keys


@functools.cache
def bwd_fa2_of_rows(in_memory: RowsInMemory, tile: Tile, features: NumbaFeatures, bias: str) -> Any:
    """The kernel that owns rows, as one of the forward pass does. `bias`: as for `numba_bias_gradient`."""
    BR, BC = tile.Br, tile.Bc
    load_tile, store_tile = layout_copies(in_memory.D, in_memory.dtype, in_memory.aligned)
    load_V_tile, _ = layout_copies(in_memory.DV, in_memory.dtype, in_memory.aligned)
    backward = numba_backward(in_memory, tile, features, bias)
    tiles, limits_of_block = backward.tiles, features.limits.of_block
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    LDV, multiply_dO_Vt = backward.tiles_of_V.LD, backward.tiles_of_V.multiply_Q_Kt
    row_of, key_of, gather = tiles.row_of, tiles.key_of, tiles.gather
    multiply_Q_Kt, seen_in_tile, add_P_V = tiles.multiply_Q_Kt, tiles.seen_in_tile, tiles.add_P_V
    _, has_rows, row_in_Q, key_in_K, *_ = features.sequences
    order_, tiles_of_block = features.order, features.order.of_block
    first_tile, tile_after, exists, pairs_of = order_.first, order_.after, order_.exists, order_.pairs
    rows_across = rows_of_sequence_across(BR, features.sequences)
    score_of_head, row_gradients = features.scores.of_head, backward.row_gradients

    # Line 15 alone: a block owns Q_i and dO_i of one head, as in the forward pass. S and dP are computed once more. The
    # last rows start first.
    @cuda.jit
    def bwd_fa2_ordered_of_rows(
        Q, K, V, dO, lse, delta, dQ, q_len, kv_len, group, tau, score_tau, limits, order, scores, sequences,
        layout, gradients,
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
        dQ_acc = cuda.local.array((TM, TD), float32)
        bounds = cuda.local.array((2, TM), int32)

        own, block = rows_across(sequences, q_len, kv_len)
        if not has_rows(own):
            return
        batch, head, first_row, rows = own.batch, block.head, block.first_row, block.rows
        row_in_head, kv_head = row_in_Q(own, first_row), kv_head_across(group)
        K_head, V_head = K[batch, kv_head], V[batch, kv_head]
        load_tile(Q_tile, BR, Q[batch, head], row_in_head, rows)
        load_V_tile(dO_tile, BR, dO[batch, head], row_in_head, rows)
        load_statistics(lse_tile, delta_tile, BR, lse[batch, head], delta[batch, head], row_in_head, rows)
        for i in range(TM):
            for j in range(TD):
                dQ_acc[i, j] = ZERO
        score = score_of_head(scores, head, own.q_len, own.kv_len)

        # For all K_j with a key that some row sees.
        seen = limits_of_block(limits, block, own.q_len, own.kv_len)
        tiles = tiles_of_block(order, block, seen.first_key, seen.end_key, own.q_len, own.kv_len)
        next = first_tile(tiles)
        while exists(next):
            tile, next = next, tile_after(tiles, next)
            first_key, keys = tile.first_key, min(BC, own.kv_len - tile.first_key)

            # Load K_j, V_j, once no thread reads the last ones any more.
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, key_in_K(own, first_key), keys)
            load_V_tile(V_tile, BC, V_head, key_in_K(own, first_key), keys)
            pairs = pairs_of(tiles, tile, keys)  # of listed tiles; else nothing
            cuda.syncthreads()

            # Lines 10, 11, 13 and 14, here a row per row: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T,
            # dS = P o (dP - D_i).
            multiply_Q_Kt(S, Q_tile, K_tile)
            multiply_dO_Vt(dP, dO_tile, V_tile)
            seen_here = seen_in_tile(bounds, seen, pairs, first_row, first_key, keys)
            row_gradients(S, dP, lse_tile, delta_tile, score_tau, score, seen_here, first_row, rows, first_key)
            for i in range(TM):
                for j in range(TN):
                    dS_tile[row_of(i), key_of(j)] = S[i, j]
            cuda.syncthreads()

            # Line 15: dQ_i = dQ_i + dS K_j.
            add_P_V(dQ_acc, dS_tile, K_tile, keys, seen_here)

        # Write dQ_i, which is multiplied by tau, gathered where Q_i was.
        cuda.syncthreads()
        gather(Q_tile, dQ_acc, tau)
        cuda.syncthreads()
        store_tile(dQ[batch, head], row_in_head, Q_tile, rows)

    return bwd_fa2_ordered_of_rows
