"""FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. The CUDA twin is kernel.cu."""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_copies import wait_for_copies
from variants._tiles.numba_grids import kv_head_across, rows_of_sequence_across
from variants._tiles.numba_shared import shared_tile
from variants._tiles.numba_strided_tiles import layout_copies, layout_copy_tile
from variants._tiles.numba_tiles import THREADS, exp_below, numba_tiles, row_sum, thread_column, thread_index


@functools.cache
def fa2_kernel(
    D: int, DV: int, tile: Tile, blocks_per_sm: int, dtype: str, features: NumbaFeatures, aligned: int | None
) -> Any:
    """The kernel for rows of Q and K of D elements and rows of V of DV; `aligned` as of `layout_copies`."""
    BR, BC = tile.Br, tile.Bc
    _, store_tile = layout_copies(DV, dtype, aligned)
    copy_rows, copy_K = layout_copy_tile(D, BR, dtype, aligned), layout_copy_tile(D, BC, dtype, aligned)
    copy_V = layout_copy_tile(DV, BC, dtype, aligned)
    tiles = numba_tiles(D, tile, features, DV, steps_at_once=2 if D <= 64 else 4)  # the faster one on an H200
    TM, TN, TD, P_ROWS, LD, LDV, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LDV, tiles.LP
    # Q_i and later O_i, K_j, V_j and P lie one behind the other.
    K_first = BR * max(LD, LDV)
    V_first = K_first + BC * LD
    P_first = V_first + BC * LDV
    Q_place, O_place, K_place = shared_tile(0, BR, LD), shared_tile(0, BR, LDV), shared_tile(K_first, BC, LD)
    V_place, P_place = shared_tile(V_first, BC, LDV), shared_tile(P_first, P_ROWS, LP)
    statistics_place = shared_tile(P_first, 2, P_ROWS)
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element, seen_in_tile = tiles.has_row, tiles.has_element, tiles.seen_in_tile
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V, order_, dropout_ = tiles.add_P_V, features.order, features.dropout
    first_tile, tile_after, exists, pairs_of = order_.first, order_.after, order_.exists, order_.pairs
    limits_of_block, tiles_of_block, score_of_head = features.limits.of_block, order_.of_block, features.scores.of_head
    logit, SINK_WEIGHT = features.sink.logit, features.sink.WEIGHT
    dropout_of_head, kept_of, or_zero, factor = dropout_.of_head, dropout_.kept, dropout_.or_zero, dropout_.factor

    _, has_rows, row_in_Q, key_in_K, *_ = features.sequences
    rows_across = rows_of_sequence_across(BR, features.sequences)

    # Of `layout` there is nothing to ask: arrays know their strides.
    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def fa2(Q, K, V, O, lse, q_len, kv_len, group, tau, limits, order, scores, sink, dropout, sequences, layout):
        Q_tile, K_tile, V_tile, P_tile = Q_place(), K_place(), V_place(), P_place()
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        bounds = cuda.local.array((2, TM), int32)

        # Line 3: the block owns Q_i and O_i of one head. The grid is (heads, blocks of a head, batch): the last rows of
        # all heads start first, since they see most keys under a causal mask. `group` heads share K and V.
        # Rows and keys are counted from the beginning of the sequence.
        own, block = rows_across(sequences, q_len, kv_len)
        if not has_rows(own):
            return
        batch, head, first_row, rows = own.batch, block.head, block.first_row, block.rows
        kv_head = kv_head_across(group)
        Q_head, K_head, V_head = Q[batch, head], K[batch, kv_head], V[batch, kv_head]

        # Line 4: load Q_i.
        copy_rows(Q_tile, Q_head, row_in_Q(own, first_row), rows)
        score = score_of_head(scores, head, own.q_len, own.kv_len)
        drawn = dropout_of_head(dropout, head, batch)

        # Line 5: O_i = 0, l_i = 0, m_i = -inf, on chip. A sink is a key before all others, without a value.
        first_m = logit(sink, head)
        for i in range(TM):
            l[i], m[i] = SINK_WEIGHT, first_m
            for j in range(TD):
                O_acc[i, j] = 0

        # Line 6: for all K_j, V_j with a key that some row sees. Line 7, first tile: load K_j. After that, K_(j+1) is
        # copied while P is multiplied by V_j, and V_j while Q_i is multiplied by K_j.
        seen = limits_of_block(limits, block, own.q_len, own.kv_len)
        tiles = tiles_of_block(order, block, seen.first_key, seen.end_key, own.q_len, own.kv_len)
        next = first_tile(tiles)
        if exists(next):
            copy_K(K_tile, K_head, key_in_K(own, next.first_key), min(BC, own.kv_len - next.first_key))
        while exists(next):
            tile, next = next, tile_after(tiles, next)
            first_key, keys = tile.first_key, min(BC, own.kv_len - tile.first_key)

            # Line 7: load V_j. After the barrier K_j (and Q_i) is complete, and no thread reads V_(j-1) or P any more.
            wait_for_copies()
            cuda.syncthreads()
            copy_V(V_tile, V_head, key_in_K(own, first_key), keys)
            pairs = pairs_of(tiles, tile, keys)

            # Line 8: S = tau Q_i K_j^T.
            multiply_Q_Kt(S, Q_tile, K_tile)
            seen_here = seen_in_tile(bounds, seen, pairs, first_row, first_key, keys)
            scale_and_mask(S, tau, score, seen_here, first_row, first_key)

            # Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P). Dropout leaves l as it
            # is. Line 10, first half: O_i = diag(exp(m_old - m)) O_i.
            for i in range(TM):
                m_new = max(m[i], row_max(S, i))
                correction = exp_below(m[i], m_new)
                m[i] = m_new
                kept = kept_of(drawn, first_row + row_of(i), first_key, thread_column())
                total = float32(0)
                for j in range(TN):
                    p = exp_below(S[i, j], m_new)
                    P_tile[row_of(i), key_of(j)] = or_zero(kept, p, j)
                    total += p
                l[i] = correction * l[i] + row_sum(total)
                for j in range(TD):
                    O_acc[i, j] *= correction

            # Line 7 for the next tile: load K_(j+1). V_j has arrived, P is complete, and no thread reads K_j any more.
            wait_for_copies()
            cuda.syncthreads()
            if exists(next):
                copy_K(K_tile, K_head, key_in_K(own, next.first_key), min(BC, own.kv_len - next.first_key))

            # Line 10, second half: O_i = O_i + P V_j.
            add_P_V(O_acc, P_tile, V_tile, keys, seen_here)

        # Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that sees nothing has l = 0: its O stays 0.
        wait_for_copies()
        cuda.syncthreads()
        O_tile, l_tile, m_tile = O_place(), statistics_place()[0], statistics_place()[1]
        for i in range(TM):
            inverse = float32(0) if l[i] == 0 else factor(dropout) / l[i]
            for j in range(TD):
                if has_row(i) and has_element(j):
                    O_tile[row_of(i), element_of(j)] = O_acc[i, j] * inverse
            if thread_column() == 0:
                l_tile[row_of(i)] = l[i]
                m_tile[row_of(i)] = m[i]
        cuda.syncthreads()

        # Line 14: write O_i.
        store_tile(O[batch, head], row_in_Q(own, first_row), O_tile, rows)

        # Lines 13 and 15: L_i = m_i + log(l_i), which is -inf if the row sees nothing; write it.
        t = thread_index()
        if t < rows:
            lse[batch, head, row_in_Q(own, first_row) + t] = m_tile[t] + math.log(l_tile[t])

    return fa2
