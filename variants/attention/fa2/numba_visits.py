"""FlashAttention-2 where what a row sees is no run of keys: Dao 2023, arXiv 2307.08691, algorithm 1, whose lines are
numbered here, over the tiles that are listed (_tiles/numba_visits.py), as Dao et al. 2022, arXiv 2205.14135, algorithm
5 (block-sparse FlashAttention).

The CUDA twin is kernel.cu with VISITS; a kernel of its own, because parameters of a feature that is off would show in
numba_kernel.py's PTX.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, float32, int32, uint32

from variants._dropout.numba_dropout import numba_dropout
from variants._scores.numba_scores import numba_scores
from variants._tiles import Tile
from variants._tiles.numba_copies import copy_tile_of, wait_for_copies
from variants._tiles.numba_grids import head_across, kv_head_across, row_block_across
from variants._tiles.numba_shared import shared_tile
from variants._tiles.numba_tiles import (
    MASK,
    MINUS_INFINITY,
    THREADS,
    ZERO,
    batch_index,
    copies,
    exp_below,
    numba_tiles,
    row_sum,
    thread_column,
    thread_index,
)
from variants._tiles.numba_visits import numba_visits
from variants._tiles.visits import NumbaRule


@functools.cache
def fa2_visits_kernel(
    head_dim: int, tile: Tile, room: int, dtype: str, spans: bool, features: tuple[str, ...], of_rule: NumbaRule
) -> Any:
    """The kernel for these compile-time parameters, `features` of scores and dropout and the rule among them.

    `spans`: see `numba_tiles`.
    """
    D, BR, BC = head_dim, tile.Br, tile.Bc
    _, store_tile = copies(D, dtype)
    copy_rows, copy_tile = copy_tile_of(D, BR, dtype), copy_tile_of(D, BC, dtype)
    tiles, scores = numba_tiles(head_dim, tile, spans, features), numba_scores(features)
    slope_of, sink_of, SINK_WEIGHT = scores.slope_of, scores.sink_of, scores.SINK_WEIGHT
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    dropout = numba_dropout(features, TN)
    kept, dropped, factor_of = dropout.kept, dropout.dropped, dropout.factor_of
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    Q_place, K_place = shared_tile(0, BR, LD), shared_tile(BR * LD, BC, LD)
    V_place, P_place = shared_tile((BR + BC) * LD, BC, LD), shared_tile((BR + 2 * BC) * LD, P_ROWS, LP)
    statistics_place = shared_tile((BR + 2 * BC) * LD, 2, P_ROWS)
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element, span_in_tile = tiles.has_row, tiles.has_element, tiles.span_in_tile
    multiply_Q_Kt, scale_and_mask, row_max = tiles.multiply_Q_Kt, tiles.scale_and_mask, tiles.row_max
    add_P_V, tile_element = tiles.add_P_V, tiles.tile_element
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    visiting = numba_visits(tile, of_rule)
    WORDS, ROWS_NOTED = visiting.WORDS, visiting.ROWS_NOTED
    list_of, note_seen, is_noted = visiting.list_of, visiting.note_seen, visiting.is_noted

    # S = -inf where it is noted that the row does not see the key.
    @cuda.jit(device=True, forceinline=True)
    def mask_noted(S, noted):
        for i in range(TM):
            for j in range(TN):
                if not is_noted(noted, row_of(i), key_of(j)):
                    S[i, j] = MINUS_INFINITY

    # O += P V_j over the tile's keys, each only where it is noted that the row sees it.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_noted(O, P_tile, V_tile, keys, first, end, noted):
        for k in range(keys):
            for i in range(TM):
                p = P_tile[row_of(i), k & MASK]
                if first[i] <= k and k < end[i] and is_noted(noted, row_of(i), k):
                    for j in range(TD):
                        O[i, j] += p * V_tile[k & MASK, tile_element(j)]

    # K_j or V_j of the tile that begins at first_key.
    @cuda.jit(device=True, forceinline=True)
    def copy_keys(tile, head, first_key, kv_len):
        copy_tile(tile, head, first_key, min(BC, kv_len - first_key))

    @cuda.jit(launch_bounds=(THREADS, room))
    def fa2(
        Q, K, V, O, lse, group, tau, before, after,
        visits, lists_per_sequence, lists_per_head, rule_0, rule_1, rule_2,
        softcap, slopes, sinks, draw, kept_factor,
    ):  # fmt: skip
        Q_tile, K_tile, V_tile, P_tile = Q_place(), K_place(), V_place(), P_place()
        noted = cuda.shared.array((ROWS_NOTED, WORDS), uint32)
        S = cuda.local.array((TM, TN), float32)
        O_acc = cuda.local.array((TM, TD), float32)
        l = cuda.local.array(TM, float32)
        m = cuda.local.array(TM, float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        # Line 3: the block owns Q_i and O_i of one head. The last rows of all heads start first.
        q_len, kv_len = Q.shape[2], K.shape[2]
        first_row = row_block_across() * BR
        rows = min(BR, q_len - first_row)
        Q_head = Q[batch_index(), head_across()]
        K_head = K[batch_index(), kv_head_across(group)]
        V_head = V[batch_index(), kv_head_across(group)]
        O_head = O[batch_index(), head_across()]
        lse_head = lse[batch_index(), head_across()]

        # Line 4: load Q_i.
        copy_rows(Q_tile, Q_head, first_row, rows)

        # Line 5: O_i = 0, l_i = 0, m_i = -inf, on chip. A sink is a key before all others, without a value.
        slope, sink = slope_of(slopes, head_across()), sink_of(sinks, head_across())
        for i in range(TM):
            l[i] = SINK_WEIGHT
            m[i] = sink
            for j in range(TD):
                O_acc[i, j] = ZERO

        # Line 6: for all K_j, V_j with a key that some row sees, as they are listed.
        last_row = first_row + rows - 1
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_last = first_seen(last_row, q_len, kv_len, before)
        end_by_first = end_seen(first_row, q_len, kv_len, after)
        sequence, head = list_of(lists_per_sequence, lists_per_head, head_across())
        rule = (rule_0, rule_1, rule_2, head)
        listed = visits[sequence, head, row_block_across()]
        # Line 7 of the first: load K_j. Ever after K_j comes while the V before it is multiplied, and V_j while K_j is.
        count, next_entry = listed[0], int32(0)
        if count > 0:
            next_entry = listed[1]
            copy_keys(K_tile, K_head, (next_entry >> 1) * BC, kv_len)
        for n in range(count):
            entry = next_entry
            first_key, is_mixed = (entry >> 1) * BC, entry & 1 != 0
            is_last = n + 1 == count
            if not is_last:
                next_entry = listed[(2 + n) & MASK]
            next_key = (next_entry >> 1) * BC
            keys = min(BC, kv_len - first_key)

            # Line 7: load V_j, once nobody reads V_(j-1) any more. K_j has come.
            wait_for_copies()
            cuda.syncthreads()
            copy_keys(V_tile, V_head, first_key, kv_len)
            if is_mixed:
                note_seen(noted, rule, first_row, rows, first_key, keys)
                cuda.syncthreads()

            # Line 8: S = tau Q_i K_j^T.
            multiply_Q_Kt(S, Q_tile, K_tile)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            scale_and_mask(S, tau, softcap, slope, first_row + kv_len - q_len - first_key, first, end)
            if is_mixed:
                mask_noted(S, noted)

            # Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P).
            # Line 10, first half: O_i = diag(exp(m_old - m)) O_i.
            for i in range(TM):
                m_new = max(m[i], row_max(S, i))
                correction = exp_below(m[i], m_new)
                m[i] = m_new

                # Dropout leaves the sum as it is.
                bits = kept(draw, first_row + row_of(i), first_key, thread_column(), head_across(), batch_index())
                total = ZERO
                for j in range(TN):
                    p = exp_below(S[i, j], m_new)
                    P_tile[row_of(i), key_of(j)] = dropped(p, bits, j)
                    total += p
                l[i] = correction * l[i] + row_sum(total)
                for j in range(TD):
                    O_acc[i, j] *= correction

            # Line 7 of the next: load K_(j+1), once nobody reads K_j any more. V_j has come.
            wait_for_copies()
            cuda.syncthreads()
            if not is_last:
                copy_keys(K_tile, K_head, next_key, kv_len)

            # Line 10, second half: O_i = O_i + P V_j.
            if is_mixed:
                add_P_V_noted(O_acc, P_tile, V_tile, keys, first, end, noted)
            else:
                add_P_V(O_acc, P_tile, V_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end)

        # Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that saw nothing has l = 0: its O stays 0.
        wait_for_copies()
        cuda.syncthreads()
        statistics = statistics_place()
        l_tile, m_tile = statistics[0], statistics[1]
        for i in range(TM):
            inverse = ZERO if l[i] == ZERO else factor_of(kept_factor) / l[i]
            for j in range(TD):
                if has_row(i) and has_element(j):
                    Q_tile[row_of(i), element_of(j)] = O_acc[i, j] * inverse
            if thread_column() == 0:
                l_tile[row_of(i)] = l[i]
                m_tile[row_of(i)] = m[i]
        cuda.syncthreads()

        # Line 14: write O_i.
        store_tile(O_head, first_row, Q_tile, rows)

        # Lines 13 and 15: L_i = m_i + log(l_i), which is -inf where nothing was seen; write it.
        t = thread_index()
        if t < rows:
            lse_head[first_row + t] = m_tile[t] + math.log(l_tile[t])

    return fa2
