"""FlashAttention, forward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 1. Line numbers are the paper's.

O is rewritten once per K/V block. It is in float32, since rounding it to 16 bits every time would add up; fa1_round
writes it in the problem's dtype in the end. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32, uint32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_limits import RowBlock
from variants._features.numba_scores import MINUS_INFINITY
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import THREADS, exp_below, numba_tiles, row_sum, thread_column, thread_index
from variants.attention.fa1.numba_rows_seeing import rows_seeing_in


@functools.cache
def fa1_kernels(head_dim: int, tile: Tile, dtype: str, spans: bool, features: NumbaFeatures) -> SimpleNamespace:
    """The kernels `fa1_initialise`, `fa1` and `fa1_round` for these compile-time parameters.

    `spans`: whether what rows see is read from arrays.
    """
    D, BR, BC = head_dim, tile.Br, tile.Bc
    (load_tile, _), (load_running_tile, store_running_tile) = copies(D, dtype), copies(D, "float32")
    _, _, narrow = conversions(dtype)
    tiles, rows_seeing = numba_tiles(head_dim, tile, features), rows_seeing_in(spans, features, tile)
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of, tile_row = tiles.row_of, tiles.key_of, tiles.element_of, tiles.tile_row
    own_rows, has_row, has_element, seen_in_tile = tiles.own_rows, tiles.has_row, tiles.has_element, tiles.seen_in_tile
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V, limits = tiles.add_P_V, features.limits
    limits_of_sequence, limits_of_block, first, end = limits.of_sequence, limits.of_block, limits.first, limits.end

    # Line 2: O = 0, l = 0, m = -inf in global memory.
    @cuda.jit
    def fa1_initialise(O, l, m, q_len):
        block, t = own_rows(q_len), thread_index()
        for e in range(t, block.rows * D, THREADS):
            O[block.batch, block.head, block.first_row + e // D, e % D] = 0
        if t < block.rows:
            l[block.batch, block.head, block.first_row + t] = 0
            m[block.batch, block.head, block.first_row + t] = MINUS_INFINITY

    # Lines 3 to 15: one block per head.
    @cuda.jit
    def fa1(Q, K, V, O, l, m, q_len, kv_len, group, tau, limits):
        K_tile, V_tile = cuda.shared.array((BC, LD), float32, 16), cuda.shared.array((BC, LD), float32, 16)
        Q_tile, O_tile = cuda.shared.array((BR, LD), float32, 16), cuda.shared.array((BR, LD), float32, 16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, 16)
        l_tile, m_tile = cuda.shared.array(BR, float32), cuda.shared.array(BR, float32)
        S, PV = cuda.local.array((TM, TN), float32), cuda.local.array((TM, TD), float32)
        l_new, m_new = cuda.local.array(TM, float32), cuda.local.array(TM, float32)
        weight_old, weight_new = cuda.local.array(TM, float32), cuda.local.array(TM, float32)
        bounds = cuda.local.array((2, TM), int32)

        t, own = thread_index(), own_rows(q_len)
        batch, head, kv_head = own.batch, own.head, uint32(own.head) // uint32(group)
        Q_head, K_head, V_head = Q[batch, head], K[batch, kv_head], V[batch, kv_head]
        O_head, l_head, m_head = O[batch, head], l[batch, head], m[batch, head]

        # Line 5: for all K_j, V_j with a key that some row sees.
        run, first_seeing = limits_of_sequence(limits, batch, q_len, kv_len), 0
        for first_key in range(first(run, 0) // BC * BC, end(run, q_len - 1), BC):
            # Line 6: load K_j, V_j.
            keys = min(BC, kv_len - first_key)
            load_tile(K_tile, BC, K_head, first_key, keys)
            load_tile(V_tile, BC, V_head, first_key, keys)

            # Line 7: for all Q_i with a row that sees some key of the tile.
            first_seeing, end_seeing = rows_seeing(run, first_key, keys, q_len, first_seeing)
            for first_row in range(first_seeing // BR * BR, end_seeing, BR):
                # Line 8: load Q_i, O_i, l_i, m_i.
                rows = min(BR, q_len - first_row)
                block = RowBlock(batch, head, first_row // BR, 0, first_row, rows)
                seen = limits_of_block(limits, block, q_len, kv_len)
                load_tile(Q_tile, BR, Q_head, first_row, rows)
                load_running_tile(O_tile, BR, O_head, first_row, rows)
                if t < BR:
                    l_tile[t] = l_head[first_row + t] if t < rows else float32(0)
                    m_tile[t] = m_head[first_row + t] if t < rows else MINUS_INFINITY
                cuda.syncthreads()

                # Line 9: S = tau Q_i K_j^T.
                multiply_Q_Kt(S, Q_tile, K_tile)
                seen_here = seen_in_tile(bounds, seen, (), first_row, first_key, keys)
                scale_and_mask(S, tau, (), seen_here, first_row, first_key)

                for i in range(TM):
                    # Line 10: m~ = rowmax(S), P~ = exp(S - m~), l~ = rowsum(P~).
                    m_here = row_max(S, i)
                    total = float32(0)
                    for j in range(TN):
                        p = exp_below(S[i, j], m_here)
                        P_tile[row_of(i), key_of(j)] = p
                        total += p
                    l_here = row_sum(total)

                    # Line 11: m_new = max(m, m~), l_new = exp(m - m_new) l + exp(m~ - m_new) l~.
                    m_old = m_tile[tile_row(i)]
                    m_new[i] = max(m_old, m_here)
                    old_part = exp_below(m_old, m_new[i]) * l_tile[tile_row(i)]
                    correction = exp_below(m_here, m_new[i])
                    l_new[i] = old_part + correction * l_here

                    # What line 12 multiplies O and P~ V by. While a row has seen nothing, O stays 0.
                    inverse = float32(0) if l_new[i] == 0 else float32(1) / l_new[i]
                    weight_old[i], weight_new[i] = old_part * inverse, correction * inverse
                cuda.syncthreads()

                # Line 12: O_i = diag(l_new)^-1 (diag(l) exp(m - m_new) O_i + exp(m~ - m_new) P~ V_j).
                for i in range(TM):
                    for j in range(TD):
                        PV[i, j] = 0
                add_P_V(PV, P_tile, V_tile, keys, seen_here)
                for i in range(TM):
                    if has_row(i):
                        for j in range(TD):
                            if has_element(j):
                                O_ij = O_tile[row_of(i), element_of(j)]
                                O_tile[row_of(i), element_of(j)] = weight_old[i] * O_ij + weight_new[i] * PV[i, j]
                        if thread_column() == 0:
                            l_tile[row_of(i)], m_tile[row_of(i)] = l_new[i], m_new[i]
                cuda.syncthreads()

                # Lines 12 and 13: write O_i, l_i, m_i. Each thread reads back only what it wrote itself.
                store_running_tile(O_head, first_row, O_tile, rows)
                if t < rows:
                    l_head[first_row + t], m_head[first_row + t] = l_tile[t], m_tile[t]

    # Line 16: return O, in the problem's dtype.
    @cuda.jit
    def fa1_round(O_running, O, q_len):
        block = own_rows(q_len)
        for e in range(thread_index(), block.rows * D, THREADS):
            row, column = block.first_row + e // D, e % D
            O[block.batch, block.head, row, column] = narrow(O_running[block.batch, block.head, row, column])

    return SimpleNamespace(fa1_initialise=fa1_initialise, fa1=fa1, fa1_round=fa1_round)
