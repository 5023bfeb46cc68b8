"""PagedAttention with the online softmax: Kwon et al. 2023, arXiv 2309.06180, section 4.1, in FlashAttention-2's tiles.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._paged.numba_chunks import numba_chunks
from variants._paged.numba_window import numba_window
from variants._tiles import Tile
from variants._tiles.numba_strided_tiles import layout_copies
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
def scores_of(count: int, features: NumbaFeatures) -> Any:
    """The score terms of so many rows, a tuple with those of each, given the rows' heads."""
    of_head = features.scores.of_head
    if count == 1:

        @cuda.jit(device=True, forceinline=True)
        def of_first_row(scores, head, q_len, kv_len):
            return (of_head(scores, head[0], q_len, kv_len),)

        return of_first_row

    of_others = scores_of(count - 1, features)

    @cuda.jit(device=True, forceinline=True)
    def of_rows(scores, head, q_len, kv_len):
        own = (of_head(scores, head[count - 1], q_len, kv_len),)
        return of_others(scores, head, q_len, kv_len) + own

    return of_rows


@functools.cache
def paged_kernel(
    head_dim: int,
    tile: Tile,
    dtype: str,
    page_size: int,
    features: NumbaFeatures,
    has_window: bool,
    aligned: int | None,
    ragged: bool,
) -> Any:
    """The kernel for these compile-time parameters; Bc divides the page, so that no tile lies in two of them.

    `aligned`: the elements at whose multiples rows of K and V begin; None if pools are dense. `ragged`: whether
    sequences have different numbers of query rows.
    """
    D, BR, BC, PAGE = head_dim, tile.Br, tile.Bc, page_size
    load_key_tile, _ = layout_copies(D, dtype, aligned)
    chunk_of, chunk_has, rows_of, load_rows, store_rows, stat_of = numba_chunks(ragged, D, dtype)
    tiles = numba_tiles(head_dim, tile, features)
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element = tiles.has_row, tiles.has_element
    multiply_Q_Kt, row_max = tiles.multiply_Q_Kt, tiles.row_max
    add_P_V, limits_, scores_, sink_ = tiles.add_P_V, features.limits, features.scores, features.sink
    of_sequence, end_of, unclipped_end = limits_.of_sequence, limits_.end, limits_.unclipped_end
    first_of, scores_of_rows, score_of = numba_window(has_window).first, scores_of(TM, features), scores_.apply
    logit, SINK_WEIGHT = sink_.logit, sink_.WEIGHT

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def paged(Q, K, V, table, lengths, O, lse, chunks, table_len, group, tau, limits, scores, sink):
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
        query = cuda.local.array(TM, int32)
        head = cuda.local.array(TM, int32)

        # The block owns rows of the query heads that share a key/value head of one sequence. They are counted through:
        # row r of the group is query r % q_len.
        sequence, kv_head = batch_index(), head_index()
        first_row = block_index() * BR
        chunk = chunk_of(chunks, sequence)
        q_len = chunk.q_len
        rows = min(BR, group * q_len - first_row)
        if not chunk_has(chunk, rows):
            return
        own = rows_of(chunk, sequence, kv_head, K.shape[1], group, first_row)
        kv_len = lengths[sequence]

        load_rows(Q_tile, BR, Q, own, rows)

        # O = 0, l = 0, m = -inf, on chip. A sink is a key before all others, without a value. Each row of this thread
        # is a query of a head.
        for i in range(TM):
            row = first_row + row_of(i)
            query[i], head[i] = row % q_len, kv_head * group + min(row // q_len, group - 1)
            l[i], m[i] = SINK_WEIGHT, logit(sink, head[i])
            for j in range(TD):
                O_acc[i, j] = ZERO
        score = scores_of_rows(scores, head, q_len, kv_len)

        # The keys of the block are those from the first that its first query sees to the last that its last one does,
        # and some rows see fewer. Where the rows of two heads meet, the last query of all is among them, and the first.
        first_of_rows = first_row % q_len
        last_of_rows = first_of_rows + rows - 1
        first_query = 0 if last_of_rows >= q_len else first_of_rows
        last_query = min(last_of_rows, q_len - 1)
        run = of_sequence(limits, sequence, q_len, kv_len)
        end_by_first, end_by_last = end_of(run, first_query), end_of(run, last_query)
        first_tile = int32(first_of(run, first_query, 0) // BC * BC)
        page = int32(0)
        for first_key in range(first_tile, end_by_last, BC):
            keys = min(BC, kv_len - first_key)

            # Where the tile lies: the table says it of each page once.
            if first_key % PAGE == 0 or first_key == first_tile:
                page = table[sequence, first_key // PAGE]
            row_of_page = (first_key & MASK) % PAGE

            # Load K_j, once no thread reads V_(j-1) any more.
            cuda.syncthreads()
            load_key_tile(KV_tile, BC, K[page & MASK, kv_head], row_of_page, keys)
            cuda.syncthreads()

            # S = tau Q K_j^T.
            multiply_Q_Kt(S, Q_tile, KV_tile)
            for i in range(TM):
                first[i] = first_of(run, query[i], first_key)
                end[i] = min(unclipped_end(run, query[i]) - first_key, keys)
                for j in range(TN):
                    scored = score_of(score[i], tau * S[i, j], query[i], first_key + key_of(j))
                    S[i, j] = scored if first[i] <= key_of(j) and key_of(j) < end[i] else MINUS_INFINITY
            first_by_all = max(first_of(run, last_query, first_key), 0)
            seen = SeenInTile(first, end, first_by_all, min(end_by_first - first_key, keys), ())

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
            load_key_tile(KV_tile, BC, V[page & MASK, kv_head], row_of_page, keys)
            cuda.syncthreads()

            # O = O + P V_j.
            add_P_V(O_acc, P_tile, KV_tile, keys, seen)

        # O = O / l, gathered where Q was. A row that saw nothing has l = 0, or that of the sink: its O stays 0.
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
        store_rows(O, own, Q_tile, rows)

        # lse = m + log(l), which is -inf, or the sink, where nothing was seen.
        t = thread_index()
        if t < rows:
            lse.flat[stat_of(own, t)] = m_tile[t] + math.log(l_tile[t])

    return paged
