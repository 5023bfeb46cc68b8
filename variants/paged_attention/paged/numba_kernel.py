"""PagedAttention with the online softmax: Kwon et al. 2023, arXiv 2309.06180, section 4.1, in FlashAttention-2's tiles.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._tiles import Tile
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    MASK,
    MINUS_INFINITY,
    ONE,
    THREADS,
    ZERO,
    SeenInTile,
    batch_index,
    block_index,
    exp_below,
    head_index,
    numba_tiles,
    row_sum,
    thread_column,
    thread_index,
)


@functools.cache
def paged_kernel(head_dim: int, tile: Tile, dtype: str, page_size: int, features: NumbaFeatures) -> Any:
    """The kernel for these compile-time parameters; Bc divides the page, so that no tile lies in two of them."""
    D, BR, BC, PAGE = head_dim, tile.Br, tile.Bc, page_size
    load_tile, store_tile = copies(D, dtype)
    tiles = numba_tiles(head_dim, tile, features)
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element = tiles.has_row, tiles.has_element
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V, limits_ = tiles.add_P_V, features.limits
    of_sequence, end_of, unclipped_end = limits_.of_sequence, limits_.end, limits_.unclipped_end

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def paged(Q, K, V, table, lengths, O, lse, q_len, table_len, group, tau, limits):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        KV_tile = cuda.shared.array((BC, LD), float32, alignment=16)  # K_j, then V_j
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        l_tile = cuda.shared.array(P_ROWS, float32)
        m_tile = cuda.shared.array(P_ROWS, float32)
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        # The block owns rows of the query heads that share a key/value head of one sequence. They lie one after the
        # other, and are counted through: row r of the group is query r % q_len.
        sequence, kv_head = batch_index(), head_index()
        Q_rows, O_rows = Q[0, 0], O[0, 0]  # and what lies behind: rows of all heads are counted through
        first_row = block_index() * BR
        rows = min(BR, group * q_len - first_row)
        first_stat = (sequence * K.shape[1] + kv_head) * group * q_len + first_row
        kv_len = lengths[sequence]

        load_tile(Q_tile, BR, Q_rows, first_stat, rows)

        # O = 0, l = 0, m = -inf, on chip.
        for i in range(TM):
            l[i] = ZERO
            m[i] = MINUS_INFINITY
            for j in range(TD):
                O_acc[i, j] = ZERO

        # The keys of the block are those that its last query sees, and some rows see fewer. Where the rows of two heads
        # meet, the last query of all is among them, and the first.
        first_query = first_row % q_len
        last_query = first_query + rows - 1
        heads_meet = last_query >= q_len
        run = of_sequence(limits, sequence, q_len, kv_len)
        end_by_first = end_of(run, 0 if heads_meet else first_query)
        end_by_last = end_of(run, min(last_query, q_len - 1))
        page = int32(0)
        for first_key in range(0, end_by_last, BC):
            keys = min(BC, kv_len - first_key)

            # Where the tile lies: the table says it of each page once.
            if first_key % PAGE == 0:
                page = table[sequence, first_key // PAGE]
            row_of_page = (first_key & MASK) % PAGE

            # Load K_j, once no thread reads V_(j-1) any more.
            cuda.syncthreads()
            load_tile(KV_tile, BC, K[page & MASK, kv_head], row_of_page, keys)
            cuda.syncthreads()

            # S = tau Q K_j^T.
            multiply_Q_Kt(S, Q_tile, KV_tile)
            for i in range(TM):
                first[i] = 0
                end[i] = min(unclipped_end(run, (first_row + row_of(i)) % q_len) - first_key, keys)
            seen = SeenInTile(first, end, 0, min(end_by_first - first_key, keys), ())
            scale_and_mask(S, tau, (), seen, first_row, first_key)

            # m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), O = exp(m_old - m) O.
            for i in range(TM):
                m_new = max(m[i], row_max(S, i))
                correction = exp_below(m[i], m_new)
                m[i] = m_new

                total = ZERO
                for j in range(TN):
                    p = exp_below(S[i, j], m_new)
                    P_tile[row_of(i), key_of(j)] = p
                    total += p
                l[i] = correction * l[i] + row_sum(total)
                for j in range(TD):
                    O_acc[i, j] *= correction

            # Load V_j, once no thread reads K_j any more.
            cuda.syncthreads()
            load_tile(KV_tile, BC, V[page & MASK, kv_head], row_of_page, keys)
            cuda.syncthreads()

            # O = O + P V_j.
            add_P_V(O_acc, P_tile, KV_tile, keys, seen)

        # O = O / l, gathered where Q was. A row that saw nothing has l = 0: its O stays 0.
        cuda.syncthreads()
        for i in range(TM):
            inverse = ZERO if l[i] == ZERO else ONE / l[i]
            for j in range(TD):
                if has_row(i) and has_element(j):
                    Q_tile[row_of(i), element_of(j)] = O_acc[i, j] * inverse
            if thread_column() == 0:
                l_tile[row_of(i)] = l[i]
                m_tile[row_of(i)] = m[i]
        cuda.syncthreads()
        store_tile(O_rows, first_stat, Q_tile, rows)

        # lse = m + log(l), which is -inf where nothing was seen.
        t = thread_index()
        if t < rows:
            lse.flat[first_stat + t] = m_tile[t] + math.log(l_tile[t])

    return paged
