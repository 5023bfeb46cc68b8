"""Standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, in three kernels with S and P in global memory.

The softmax is the safe one, Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2. A row of S and of P is the keys
that it sees: what lies before and after them is neither written nor read. The CUDA twins are kernel.cu, softmax.cu and
rows_seeing.cuh.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_lanes import WARPS, lane_index, warp_index
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    MASK,
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
    lanes_max,
    lanes_sum,
    numba_tiles,
)

KEYS_AT_ONCE = 16
STEP_KEYS = 32 * KEYS_AT_ONCE


def rows_seeing_in(spans: bool) -> Any:
    """The device function `rows_seeing`: which rows of a block see a key. It returns the first and their end, counted
    from the block's first row."""

    # In a band, key j lies on row j + q_len - kv_len; rows from `after` before that one to `before` after it see the
    # key.
    if not spans:

        @cuda.jit(device=True, forceinline=True)
        def rows_seeing(run, block, key):
            own_row = key + run.q_len - run.kv_len
            first_row = max(own_row - run.after, 0)
            end_row = own_row + run.before + 1 if key < run.kv_len else 0
            return first_row - block.first_row, min(end_row - block.first_row, block.rows)

        return rows_seeing

    # How many of the block's rows have a limit up to `key`.
    @cuda.jit(device=True, forceinline=True)
    def rows_up_to(limits, rows, key):
        low, high = 0, rows
        while low < high:
            middle = (low + high) // 2
            if limits[middle & MASK] > key:
                high = middle
            else:
                low = middle + 1
        return low

    # Under other masks: from the first row whose run ends after the key to the first whose run begins after it.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(run, block, key):
        return rows_up_to(run.end_keys, block.rows, key), rows_up_to(run.first_keys, block.rows, key)

    return rows_seeing


@functools.cache
def three_pass_kernels(
    head_dim: int, tile: Tile, dtype: str, on_chip: int, spans: bool, features: NumbaFeatures
) -> SimpleNamespace:
    """The kernels `three_pass_scores`, `three_pass_softmax` and `three_pass_output` for these compile-time parameters.

    `on_chip`: how many elements of a row of S stay on chip in the softmax; `spans`: whether what rows see is read from
    arrays.
    """
    D, BR, BC, ON_CHIP = head_dim, tile.Br, tile.Bc, on_chip
    load_tile, store_tile = copies(D, dtype)
    stored, widen, narrow = conversions(dtype)
    tiles, rows_seeing = numba_tiles(head_dim, tile, features), rows_seeing_in(spans)
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    own_rows, row_of, key_of, seen_in_tile = tiles.own_rows, tiles.row_of, tiles.key_of, tiles.seen_in_tile
    multiply_Q_Kt, add_P_V, gather = tiles.multiply_Q_Kt, tiles.add_P_V, tiles.gather
    limits_of_block, limits_of_sequence = features.limits.of_block, features.limits.of_sequence
    first_of, end_of = features.limits.first, features.limits.end
    score_of_head, score_of = features.scores.of_head, features.scores.apply
    logit, SINK_WEIGHT = features.sink.logit, features.sink.WEIGHT
    dropout_of_head, keeps, factor = features.dropout.of_head, features.dropout.keeps, features.dropout.factor
    ROWS_PER_WARP = P_ROWS // WARPS  # of a tile of S or P
    COLUMNS_PER_LANE = -(-BC // 32)

    # S_j for the j of a step of the softmax, KEYS_AT_ONCE per lane, all under way before the first is waited for; -inf
    # beyond what the row sees, which changes neither maximum nor sum.
    @cuda.jit(device=True, forceinline=True)
    def load_scores(s, S_head, first, start, seen):
        j = start + lane_index()
        unseen = narrow(MINUS_INFINITY)
        for c in range(KEYS_AT_ONCE):
            s[c] = S_head.flat[first + j + c * 32] if j + c * 32 < seen else unseen

    # The same once more: from the chip as far as the row is kept there.
    @cuda.jit(device=True, forceinline=True)
    def load_scores_again(s, S_kept, S_head, first, start, seen):
        if start >= ON_CHIP:
            load_scores(s, S_head, first, start, seen)
        else:
            for c in range(KEYS_AT_ONCE):
                s[c] = S_kept[(start & MASK) + c * 32 + lane_index()]

    # Algorithm 0, line 1: load Q, K by blocks, compute S = tau Q K^T, write S.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_scores(Q, K, S, q_len, kv_len, group, tau, limits, scores):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        S_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S_acc = cuda.local.array((TM, TN), float32)
        s = cuda.local.array(ROWS_PER_WARP, float32)

        block = own_rows(q_len)
        first_row, kv_head = block.first_row, kv_head_index(group)
        K_head, S_head = K[block.batch, kv_head], S[block.batch, block.head]
        load_tile(Q_tile, BR, Q[block.batch, block.head], first_row, block.rows)
        seen = limits_of_block(limits, block, q_len, kv_len)
        first_tile = seen.first_key // BC * BC
        if first_tile >= seen.end_key:
            return
        score = score_of_head(scores, block.head, q_len, kv_len)

        # For all K_j with a key that some row sees.
        for first_key in range(first_tile, seen.end_key, BC):
            # Load K_j, once no thread reads K_(j-1) any more.
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, min(BC, kv_len - first_key))
            cuda.syncthreads()
            multiply_Q_Kt(S_acc, Q_tile, K_tile)
            for i in range(TM):
                for j in range(TN):
                    scored = score_of(score, tau * S_acc[i, j], first_row + row_of(i), first_key + key_of(j))
                    S_tile[row_of(i), key_of(j)] = scored

            # A warp writes a row at a time: 32 consecutive elements.
            cuda.syncthreads()
            for start in range(0, BC, 32):
                c = start + lane_index()
                first, end = rows_seeing(seen.run, block, first_key + c if c < BC else kv_len)
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    s[i] = S_tile[warp_index() + WARPS * i, c] if c < BC else ZERO
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    if first <= r and r < end:
                        S_head.flat[at] = narrow(s[i])
                    at += WARPS * kv_len

    # Algorithm 0, line 2: read S, compute P = softmax(S), write P. Each warp takes a row; numbers are algorithm 2's.
    @cuda.jit
    def three_pass_softmax(S, P, q_len, kv_len, limits, sink, dropout):
        # As much of the row as fits stays on chip; only the rest is read from memory again.
        S_on_chip = cuda.shared.array((WARPS, ON_CHIP), stored)

        row = block_index() * WARPS + warp_index()
        if row >= q_len:
            return
        run = limits_of_sequence(limits, batch_index(), q_len, kv_len)
        first_key = first_of(run, row)
        seen = end_of(run, row) - first_key
        first = row * kv_len + first_key
        S_head = S[batch_index(), head_index()]
        P_head = P[batch_index(), head_index()]
        S_kept = S_on_chip[warp_index()]
        s = cuda.local.array(KEYS_AT_ONCE, stored)

        # Lines 1 to 4: m = max_j S_j. A sink is one of them, which is not written as P.
        sink_logit = logit(sink, head_index())
        m = sink_logit
        for start in range(0, seen, STEP_KEYS):
            load_scores(s, S_head, first, start, seen)
            if start < ON_CHIP:
                for c in range(KEYS_AT_ONCE):
                    S_kept[(start & MASK) + c * 32 + lane_index()] = s[c]
            for c in range(KEYS_AT_ONCE):
                m = max(m, widen(s[c]))
        m = lanes_max(m, 32)

        # Lines 5 to 8: l = sum_j exp(S_j - m).
        l = SINK_WEIGHT * exp_below(sink_logit, m) if lane_index() == 0 else ZERO
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            for c in range(KEYS_AT_ONCE):
                l += exp_below(widen(s[c]), m)
        inverse = ONE / lanes_sum(l, 32)

        # Lines 9 to 11: P_j = exp(S_j - m) / l, 0 where it drops out.
        drawn = dropout_of_head(dropout, head_index(), batch_index())
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            j = start + lane_index()
            for c in range(KEYS_AT_ONCE):
                p = exp_below(widen(s[c]), m) * inverse
                kept = keeps(drawn, row, first_key + j + c * 32)
                if j + c * 32 < seen:
                    P_head.flat[first + j + c * 32] = narrow(p if kept else ZERO)

    # Algorithm 0, line 3: load P and V by blocks, compute O = P V, write O. The factor of dropout is applied here,
    # where nothing has been rounded to 16 bits yet.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_output(P, V, O, q_len, kv_len, group, limits, dropout):
        V_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        O_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        O_acc = cuda.local.array((TM, TD), float32)
        bounds = cuda.local.array((2, TM), int32)
        p = cuda.local.array((COLUMNS_PER_LANE, ROWS_PER_WARP), stored)

        block = own_rows(q_len)
        first_row = block.first_row
        P_head, V_head = P[block.batch, block.head], V[block.batch, kv_head_index(group)]
        for i in range(TM):
            for j in range(TD):
                O_acc[i, j] = ZERO

        # For all V_j with a key that some row sees.
        seen = limits_of_block(limits, block, q_len, kv_len)
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            keys = min(BC, kv_len - first_key)

            # Load V_j and the tile of P, a row per warp, once no thread reads the last ones any more; zeros for unseen
            # keys.
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                first, end = rows_seeing(seen.run, block, first_key + c if c < BC else kv_len)
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    p[j, i] = P_head.flat[at] if first <= r and r < end else stored(0)
                    at += WARPS * kv_len
            cuda.syncthreads()
            load_tile(V_tile, BC, V_head, first_key, keys)
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                for i in range(ROWS_PER_WARP):
                    if c < BC:
                        P_tile[warp_index() + WARPS * i, c] = widen(p[j, i])
            cuda.syncthreads()

            add_P_V(O_acc, P_tile, V_tile, keys, seen_in_tile(bounds, seen, (), first_row, first_key, keys))

        gather(O_tile, O_acc, factor(dropout))
        cuda.syncthreads()
        store_tile(O[block.batch, block.head], first_row, O_tile, block.rows)

    return SimpleNamespace(
        three_pass_scores=three_pass_scores,
        three_pass_softmax=three_pass_softmax,
        three_pass_output=three_pass_output,
    )
