"""Latent attention, decoding: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1, with keys split over blocks.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_shared import shared_tile
from variants._tiles.numba_strided_tiles import layout_copies
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import (
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
    leading_dimension,
    numba_tiles,
    row_sum,
    step_over,
    thread_column,
    thread_index,
)

SHARING = 2
"""Blocks that share a multiprocessor at least: a thread has 64 registers for O alone."""


@functools.cache
def split_kernel(
    latent_dim: int, rope_dim: int, tile: Tile, split_keys: int, dtype: str, page_size: int, features: NumbaFeatures
) -> Any:
    """The kernel that has a split; Bc divides the page, so that no tile lies in two of them, and the split."""
    D, ROPE, BR, BC, SPLIT, PAGE = latent_dim, rope_dim, tile.Br, tile.Bc, split_keys, page_size
    load_latent, _ = layout_copies(D, dtype, 1)
    load_rope, _ = layout_copies(ROPE, dtype, 1)
    _, store_O = copies(D, "float32")
    tiles = numba_tiles(D, tile, features)
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, tile_row, tile_key = tiles.row_of, tiles.key_of, tiles.tile_row, tiles.tile_key
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V, gather, limits_ = tiles.add_P_V, tiles.gather, features.limits
    of_sequence, end_of, unclipped_end = limits_.of_sequence, limits_.end, limits_.unclipped_end

    LR, STEP = leading_dimension(ROPE), step_over(ROPE)
    C_FIRST = BR * LD
    Q_ROPE = C_FIRST + BC * LD
    C_ROPE = Q_ROPE + BR * LR
    P_FIRST = C_ROPE + BC * LR
    Q_place, C_place = shared_tile(0, BR, LD), shared_tile(C_FIRST, BC, LD)
    Q_rope_place, C_rope_place = shared_tile(Q_ROPE, BR, LR), shared_tile(C_ROPE, BC, LR)
    P_place, statistics_place = shared_tile(P_FIRST, P_ROWS, LP), shared_tile(P_FIRST + P_ROWS * LP, 2, P_ROWS)

    # S += the products of STEP elements of Q^R and of K^R, from k on.
    @cuda.jit(device=True, forceinline=True)
    def add_q_k(S, Q_rope, C_rope, k):
        key = cuda.local.array((TN, STEP), float32)
        q = cuda.local.array((TM, STEP), float32)
        for j in range(TN):
            for e in range(STEP):
                key[j, e] = C_rope[tile_key(j), k + e]
        for i in range(TM):
            for e in range(STEP):
                q[i, e] = Q_rope[tile_row(i), k + e]
        for e in range(STEP):
            for i in range(TM):
                for j in range(TN):
                    S[i, j] += q[i, e] * key[j, e]

    # S += Q^R (K^R)^T, the rest of each sum.
    @cuda.jit(device=True, forceinline=True)
    def add_rope_scores(S, Q_rope, C_rope):
        for step in range(ROPE // STEP):
            add_q_k(S, Q_rope, C_rope, STEP * (step & MASK))

    @cuda.jit(launch_bounds=(THREADS, SHARING))
    def mla_split(Q, C, table, lengths, O_split, l_split, m_split, q_len, table_len, heads, tau, limits):
        Q_tile, C_tile = Q_place(), C_place()  # the latent part of keys is their values, too
        Q_rope, C_rope, P_tile, statistics = Q_rope_place(), C_rope_place(), P_place(), statistics_place()
        l_tile, m_tile = statistics[0], statistics[1]
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        first = cuda.local.array(TM, int32)
        end_in_tile = cuda.local.array(TM, int32)

        # All heads of a sequence read the same rows of the cache. Their rows of Q lie one after the other, and are
        # counted through: row r of a sequence is query r % q_len. The block owns BR of them, and a split of the keys.
        # Blocks with the same keys are neighbours.
        sequence, split = batch_index(), head_index()
        first_row = block_index() * BR
        rows = min(BR, heads * q_len - first_row)
        kv_len = lengths[sequence]

        # The keys of the split that a row of this tile sees: up to the last that its last query sees, and some rows see
        # fewer. Where the rows of two heads meet, the last query of all is among them, and the first.
        first_query = first_row % q_len
        last_query = first_query + rows - 1
        heads_meet = last_query >= q_len
        run = of_sequence(limits, sequence, q_len, kv_len)
        end_by_first = end_of(run, 0 if heads_meet else first_query)
        split_first = split * SPLIT
        end = min(split_first + SPLIT, end_of(run, min(last_query, q_len - 1)))
        if split_first >= end:
            return  # no row asks for it

        load_latent(Q_tile, BR, Q[sequence, :, :D], first_row, rows)
        load_rope(Q_rope, BR, Q[sequence, :, D:], first_row, rows)

        # O = 0, l = 0, m = -inf, on chip.
        for i in range(TM):
            l[i] = ZERO
            m[i] = MINUS_INFINITY
            for j in range(TD):
                O_acc[i, j] = ZERO

        page = int32(0)
        for first_key in range(split_first, end, BC):
            keys = min(BC, kv_len - first_key)

            # Where the tile lies: the table says it of each page once.
            if first_key % PAGE == 0 or first_key == split_first:
                page = table[sequence, first_key // PAGE]
            row_of_page = (first_key & MASK) % PAGE
            C_page = C[page & MASK]

            # Load C_j, once no thread reads C_(j-1) any more. It is loaded once for all that follows.
            cuda.syncthreads()
            load_latent(C_tile, BC, C_page[:, :D], row_of_page, keys)
            load_rope(C_rope, BC, C_page[:, D:], row_of_page, keys)
            cuda.syncthreads()

            # S = tau (Q^C C_j^T + Q^R (K_j^R)^T).
            multiply_Q_Kt(S, Q_tile, C_tile)
            add_rope_scores(S, Q_rope, C_rope)
            for i in range(TM):
                first[i] = 0
                end_in_tile[i] = min(unclipped_end(run, (first_row + row_of(i)) % q_len) - first_key, keys)
            seen = SeenInTile(first, end_in_tile, 0, min(end_by_first - first_key, keys), ())
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

            # O = O + P C_j, once P is complete.
            cuda.syncthreads()
            add_P_V(O_acc, P_tile, C_tile, keys, seen)

        # O, which is not divided yet, gathered where Q was, and l and m.
        cuda.syncthreads()
        gather(Q_tile, O_acc, ONE)
        for i in range(TM):
            if thread_column() == 0:
                l_tile[row_of(i)] = l[i]
                m_tile[row_of(i)] = m[i]
        cuda.syncthreads()
        store_O(O_split[sequence, split], first_row, Q_tile, rows)
        t = thread_index()
        if t < rows:
            l_split[sequence, split, first_row + t] = l_tile[t]
            m_split[sequence, split, first_row + t] = m_tile[t]

    return mla_split


@functools.cache
def combine_kernel(latent_dim: int, split_keys: int, dtype: str, features: NumbaFeatures) -> Any:
    """The kernel that puts the splits of a row together."""
    D, SPLIT = latent_dim, split_keys
    PARTS = -(-D // THREADS)  # elements of O per thread
    _, _, narrow = conversions(dtype)
    of_sequence, end_of = features.limits.of_sequence, features.limits.end

    # A block per row: m = max m_s, O = sum exp(m_s - m) O_s over l = sum exp(m_s - m) l_s, one split after the other.
    # What a row sees nothing of is not read: it may not have been written.
    @cuda.jit(launch_bounds=(THREADS, 1))
    def mla_combine(O_split, l_split, m_split, lengths, O, lse, q_len, most_splits, limits):
        O_row = cuda.local.array(PARTS, float32)
        sequence, row, t = head_index(), block_index(), thread_index()
        end = end_of(of_sequence(limits, sequence, q_len, lengths[sequence]), row % q_len)
        l, m = ZERO, MINUS_INFINITY
        for j in range(PARTS):
            O_row[j] = ZERO
        for split in range((end + SPLIT - 1) // SPLIT):
            l_s, m_s = l_split[sequence, split, row], m_split[sequence, split, row]
            m_new = max(m, m_s)
            correction, weight = exp_below(m, m_new), exp_below(m_s, m_new)
            m = m_new
            l = correction * l + weight * l_s
            for j in range(PARTS):
                e = t + THREADS * j
                if e < D:
                    O_row[j] = correction * O_row[j] + weight * O_split[sequence, split, row, e]

        # A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
        inverse = ZERO if l == ZERO else ONE / l
        for j in range(PARTS):
            e = t + THREADS * j
            if e < D:
                O[sequence, row, e] = narrow(O_row[j] * inverse)
        if t == 0:
            lse[sequence, row] = m + math.log(l)

    return mla_combine
