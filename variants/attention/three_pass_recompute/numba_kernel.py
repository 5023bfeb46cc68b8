"""Attention with the safe softmax of Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2, a tile of keys at a
time, and the scores computed anew in each of its three sweeps. Line numbers are that algorithm's, its d_V is l here.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32

from variants._tiles import Tile
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    MINUS_INFINITY,
    ONE,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    copies,
    exp_below,
    head_index,
    kv_head_index,
    numba_tiles,
    row_sum,
)


@functools.cache
def three_pass_recompute_kernel(head_dim: int, tile: Tile, dtype: str, spans: bool) -> Any:
    """The kernel for these compile-time parameters; `spans`: see `numba_tiles`."""
    D, BR, BC = head_dim, tile.Br, tile.Bc
    load_tile, store_tile = copies(D, dtype)
    tiles = numba_tiles(head_dim, tile, spans)
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element, span_in_tile = tiles.has_row, tiles.has_element, tiles.span_in_tile
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V = tiles.add_P_V
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_recompute(Q, K, V, O, group, tau, before, after):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        KV_tile = cuda.shared.array((BC, LD), float32, alignment=16)  # K_j, then V_j
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        inverse = cuda.local.array(TM, float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        # The block owns Q_i and O_i of one head.
        q_len, kv_len = Q.shape[2], K.shape[2]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        Q_head = Q[batch_index(), head_index()]
        K_head = K[batch_index(), kv_head_index(group)]
        V_head = V[batch_index(), kv_head_index(group)]
        O_head = O[batch_index(), head_index()]
        last_row = first_row + rows - 1
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        first_by_last = first_seen(last_row, q_len, kv_len, before)
        end_by_first = end_seen(first_row, q_len, kv_len, after)
        end_by_last = end_seen(last_row, q_len, kv_len, after)
        load_tile(Q_tile, BR, Q_head, first_row, rows)

        # Line 1: m = -inf.
        for i in range(TM):
            m[i] = MINUS_INFINITY

        # Line 2, sweep one: all K_j with a key that some row sees: from the first row's first to the last row's last.
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            keys = min(BC, kv_len - first_key)

            # Load K_j, once nobody reads K_(j-1) any more. The x of the paper is S = tau Q_i K_j^T.
            cuda.syncthreads()
            load_tile(KV_tile, BC, K_head, first_key, keys)
            cuda.syncthreads()
            multiply_Q_Kt(S, Q_tile, KV_tile)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            scale_and_mask(S, tau, (), ZERO, 0, first, end)

            # Line 3: m = max(m, rowmax(S)).
            for i in range(TM):
                m[i] = max(m[i], row_max(S, i))

        # Line 5: l = 0.
        for i in range(TM):
            l[i] = ZERO

        # Line 6, sweep two: the scores once more, with the final m.
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            keys = min(BC, kv_len - first_key)

            cuda.syncthreads()
            load_tile(KV_tile, BC, K_head, first_key, keys)
            cuda.syncthreads()
            multiply_Q_Kt(S, Q_tile, KV_tile)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            scale_and_mask(S, tau, (), ZERO, 0, first, end)

            # Line 7: l = l + rowsum(exp(S - m)).
            for i in range(TM):
                total = ZERO
                for j in range(TN):
                    total += exp_below(S[i, j], m[i])
                l[i] += row_sum(total)

        # A row that saw nothing has l = 0: its weights and its O stay 0.
        for i in range(TM):
            inverse[i] = ZERO if l[i] == ZERO else ONE / l[i]
            for j in range(TD):
                O_acc[i, j] = ZERO

        # Line 9, sweep three: the scores once more, with the final m and l.
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            keys = min(BC, kv_len - first_key)

            cuda.syncthreads()
            load_tile(KV_tile, BC, K_head, first_key, keys)
            cuda.syncthreads()
            multiply_Q_Kt(S, Q_tile, KV_tile)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            scale_and_mask(S, tau, (), ZERO, 0, first, end)

            # Line 10: P = exp(S - m) / l.
            for i in range(TM):
                for j in range(TN):
                    P_tile[row_of(i), key_of(j)] = exp_below(S[i, j], m[i]) * inverse[i]

            # O_i = O_i + P V_j, with V_j in the place of K_j once nobody reads that any more.
            cuda.syncthreads()
            load_tile(KV_tile, BC, V_head, first_key, keys)
            cuda.syncthreads()
            add_P_V(O_acc, P_tile, KV_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end)

        # Gather O_i where Q_i was, and write it.
        cuda.syncthreads()
        for i in range(TM):
            for j in range(TD):
                if has_row(i) and has_element(j):
                    Q_tile[row_of(i), element_of(j)] = O_acc[i, j]
        cuda.syncthreads()
        store_tile(O_head, first_row, Q_tile, rows)

    return three_pass_recompute
