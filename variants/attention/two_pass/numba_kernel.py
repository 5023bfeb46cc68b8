"""Attention with the online softmax of Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3, a tile of keys at a
time. Line numbers are that algorithm's, its d_V is l here and its x is S = tau Q_i K_j^T.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_grids import kv_head_index
from variants._tiles.numba_sweep import numba_sweep
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import BLOCKS_PER_SM, ONE, THREADS, ZERO, exp_below, numba_tiles, row_sum


@functools.cache
def two_pass_kernel(head_dim: int, tile: Tile, dtype: str, features: NumbaFeatures) -> Any:
    """The kernel for these compile-time parameters."""
    BR, BC = tile.Br, tile.Bc
    load_tile, store_tile = copies(head_dim, dtype)
    tiles, scores_of_tile = numba_tiles(head_dim, tile, features), numba_sweep(head_dim, tile, dtype, features)
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    own_rows, row_of, key_of, row_max = tiles.own_rows, tiles.row_of, tiles.key_of, tiles.row_max
    add_P_V, gather = tiles.add_P_V, tiles.gather
    limits_of_block, score_of_head = features.limits.of_block, features.scores.of_head
    logit, SINK_WEIGHT = features.sink.logit, features.sink.WEIGHT

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def two_pass(Q, K, V, O, q_len, kv_len, group, tau, limits, scores, sink):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        KV_tile = cuda.shared.array((BC, LD), float32, alignment=16)  # K_j, then V_j
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        inverse = cuda.local.array(TM, float32)
        bounds = cuda.local.array((2, TM), int32)

        # The block owns Q_i and O_i of one head.
        block = own_rows(q_len)
        first_row, rows, kv_head = block.first_row, block.rows, kv_head_index(group)
        K_head, V_head = K[block.batch, kv_head], V[block.batch, kv_head]
        seen = limits_of_block(limits, block, q_len, kv_len)
        load_tile(Q_tile, BR, Q[block.batch, block.head], first_row, rows)
        score = score_of_head(scores, block.head, q_len, kv_len)

        # Lines 1 and 2: m = -inf, l = 0. A sink is a key before all others, without a value.
        first_m = logit(sink, block.head)
        for i in range(TM):
            l[i] = SINK_WEIGHT
            m[i] = first_m

        # Line 3: for all K_j.
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            keys = min(BC, kv_len - first_key)
            scores_of_tile(S, bounds, Q_tile, KV_tile, K_head, first_row, first_key, keys, tau, score, seen)

            # Lines 4 and 5: m = max(m, rowmax(S)), l = l exp(m_old - m) + rowsum(exp(S - m)).
            for i in range(TM):
                m_new = max(m[i], row_max(S, i))
                total = ZERO
                for j in range(TN):
                    total += exp_below(S[i, j], m_new)
                l[i] = l[i] * exp_below(m[i], m_new) + row_sum(total)
                m[i] = m_new

        # A row that sees nothing has l = 0: its weights and its O stay 0.
        for i in range(TM):
            inverse[i] = ZERO if l[i] == ZERO else ONE / l[i]
            for j in range(TD):
                O_acc[i, j] = ZERO

        # Line 7: for all K_j once more, with the final m and l.
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            keys = min(BC, kv_len - first_key)
            seen_here = scores_of_tile(S, bounds, Q_tile, KV_tile, K_head, first_row, first_key, keys, tau, score, seen)

            # Line 8: P = exp(S - m) / l.
            for i in range(TM):
                for j in range(TN):
                    P_tile[row_of(i), key_of(j)] = exp_below(S[i, j], m[i]) * inverse[i]

            # O_i = O_i + P V_j, with V_j in the place of K_j once no thread reads that any more.
            cuda.syncthreads()
            load_tile(KV_tile, BC, V_head, first_key, keys)
            cuda.syncthreads()
            add_P_V(O_acc, P_tile, KV_tile, keys, seen_here)

        # Gather O_i where Q_i was, and write it.
        cuda.syncthreads()
        gather(Q_tile, O_acc, ONE)
        cuda.syncthreads()
        store_tile(O[block.batch, block.head], first_row, Q_tile, rows)

    return two_pass
