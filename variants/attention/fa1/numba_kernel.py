"""FlashAttention, forward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 1. Line numbers are the paper's.

O is rewritten once per K/V block. It is kept in float32, for rounding it to 16 bits every time would add up; fa1_round
writes it in the problem's own dtype in the end. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._tiles import Tile
from variants._tiles.numba_tiles import (
    MINUS_INFINITY,
    ONE,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    conversions,
    copies,
    exp_below,
    head_index,
    kv_head_index,
    numba_tiles,
    row_sum,
    thread_column,
    thread_index,
)


@functools.cache
def fa1_kernels(head_dim: int, tile: Tile, dtype: str, spans: bool) -> SimpleNamespace:
    """The kernels `fa1_initialise`, `fa1` and `fa1_round` for these compile-time parameters.

    `spans`: see `numba_tiles`.
    """
    D, BR, BC, SPANS = head_dim, tile.Br, tile.Bc, spans
    load_tile, _ = copies(D, dtype)
    load_running_tile, store_running_tile = copies(D, "float32")
    _, _, narrow = conversions(dtype)
    tiles = numba_tiles(head_dim, tile, spans)
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of, tile_row = tiles.row_of, tiles.key_of, tiles.element_of, tiles.tile_row
    has_row, has_element, span_in_tile = tiles.has_row, tiles.has_element, tiles.span_in_tile
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V = tiles.add_P_V
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    limits_in_memory = tiles.limits_in_memory

    # Line 2: O = 0, l = 0, m = -inf in global memory.
    @cuda.jit
    def fa1_initialise(O, l, m):
        q_len = O.shape[2]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        O_head = O[batch_index(), head_index()]
        l_head = l[batch_index(), head_index()]
        m_head = m[batch_index(), head_index()]
        t = thread_index()
        for start in range(0, rows * D, THREADS):
            if start + t < rows * D:
                O_head[first_row + (start + t) // D, (start + t) % D] = ZERO
        if t < rows:
            l_head[first_row + t] = ZERO
            m_head[first_row + t] = MINUS_INFINITY

    # Rows that see a key of the tile. A key's own row lies on it; rows from `after` ahead of that one to `before`
    # behind see the key.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(so_far, first_key, keys, q_len, kv_len, before, after):
        own_row = first_key + q_len - kv_len
        return max(own_row - after, 0), min(own_row + keys + before, q_len)

    if SPANS:
        # Those that see the tile lie together, and none of them ahead of those that see the tile before, `so_far`.
        @cuda.jit(device=True, forceinline=True)
        def rows_seeing(so_far, first_key, keys, q_len, kv_len, before, after):
            first_row = so_far
            while first_row < q_len and end_seen(min(first_row + BR, q_len) - 1, q_len, kv_len, after) <= first_key:
                first_row += BR
            end_row = first_row
            while end_row < q_len and first_seen(end_row, q_len, kv_len, before) < first_key + keys:
                end_row += BR
            return first_row, end_row

    # Lines 3 to 15: one block per head.
    @cuda.jit
    def fa1(Q, K, V, O, l, m, group, tau, before, after):
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        V_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        O_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        l_tile = cuda.shared.array(BR, float32)
        m_tile = cuda.shared.array(BR, float32)
        S = cuda.local.array((TM, TN), float32)
        PV = cuda.local.array((TM, TD), float32)
        l_new = cuda.local.array(TM, float32)
        m_new = cuda.local.array(TM, float32)
        weight_old = cuda.local.array(TM, float32)
        weight_new = cuda.local.array(TM, float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        t = thread_index()
        q_len, kv_len = Q.shape[2], K.shape[2]
        Q_head = Q[batch_index(), head_index()]
        K_head = K[batch_index(), kv_head_index(group)]
        V_head = V[batch_index(), kv_head_index(group)]
        O_head = O[batch_index(), head_index()]
        l_head = l[batch_index(), head_index()]
        m_head = m[batch_index(), head_index()]

        # Line 5: for all K_j, V_j with a key that some row sees.
        before_all, after_all = limits_in_memory(before, after)
        first_by_first = first_seen(0, q_len, kv_len, before_all)
        end_by_last = end_seen(q_len - 1, q_len, kv_len, after_all)
        first_seeing = 0
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            # Line 6: load K_j, V_j.
            keys = min(BC, kv_len - first_key)
            load_tile(K_tile, BC, K_head, first_key, keys)
            load_tile(V_tile, BC, V_head, first_key, keys)

            # Line 7: for all Q_i with a row that sees some key of the tile.
            first_seeing, end_seeing = rows_seeing(first_seeing, first_key, keys, q_len, kv_len, before_all, after_all)
            for first_row in range(first_seeing // BR * BR, end_seeing, BR):
                # Line 8: load Q_i, O_i, l_i, m_i.
                rows = min(BR, q_len - first_row)
                before_rows, after_rows = keep_limits(before, after, first_row, rows, kv_len)
                load_tile(Q_tile, BR, Q_head, first_row, rows)
                load_running_tile(O_tile, BR, O_head, first_row, rows)
                if t < BR:
                    l_tile[t] = l_head[first_row + t] if t < rows else ZERO
                    m_tile[t] = m_head[first_row + t] if t < rows else MINUS_INFINITY
                cuda.syncthreads()

                # Line 9: S = tau Q_i K_j^T.
                multiply_Q_Kt(S, Q_tile, K_tile)
                span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before_rows, after_rows)
                scale_and_mask(S, tau, (), ZERO, 0, first, end)

                for i in range(TM):
                    # Line 10: m~ = rowmax(S), P~ = exp(S - m~), l~ = rowsum(P~).
                    m_here = row_max(S, i)
                    total = ZERO
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

                    # What line 12 multiplies O and P~ V by. Where nothing was seen yet, O stays 0.
                    inverse = ZERO if l_new[i] == ZERO else ONE / l_new[i]
                    weight_old[i] = old_part * inverse
                    weight_new[i] = correction * inverse
                cuda.syncthreads()

                # Line 12: O_i = diag(l_new)^-1 (diag(l) exp(m - m_new) O_i + exp(m~ - m_new) P~ V_j).
                for i in range(TM):
                    for j in range(TD):
                        PV[i, j] = ZERO
                first_by_all = first_seen(first_row + rows - 1, q_len, kv_len, before_rows) - first_key
                end_by_all = end_seen(first_row, q_len, kv_len, after_rows) - first_key
                add_P_V(PV, P_tile, V_tile, first_by_all, end_by_all, keys, first, end)
                for i in range(TM):
                    if has_row(i):
                        for j in range(TD):
                            if has_element(j):
                                O_ij = O_tile[row_of(i), element_of(j)]
                                O_tile[row_of(i), element_of(j)] = weight_old[i] * O_ij + weight_new[i] * PV[i, j]
                        if thread_column() == 0:
                            l_tile[row_of(i)] = l_new[i]
                            m_tile[row_of(i)] = m_new[i]
                cuda.syncthreads()

                # Lines 12 and 13: write O_i, l_i, m_i. Each thread reads back only what it wrote itself.
                store_running_tile(O_head, first_row, O_tile, rows)
                if t < rows:
                    l_head[first_row + t] = l_tile[t]
                    m_head[first_row + t] = m_tile[t]

    # Line 16: return O, in the problem's own dtype.
    @cuda.jit
    def fa1_round(O_running, O):
        q_len = O.shape[2]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        running_head = O_running[batch_index(), head_index()]
        O_head = O[batch_index(), head_index()]
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                O_head[first_row + e // D, e % D] = narrow(running_head[first_row + e // D, e % D])

    return SimpleNamespace(fa1_initialise=fa1_initialise, fa1=fa1, fa1_round=fa1_round)
