"""Standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, in three kernels with S and P in global memory.

The softmax is the safe one, Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2. A row of S and of P is the keys
that it sees: what lies ahead of them or behind is neither written nor read. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._dropout.numba_dropout import numba_dropout
from variants._scores.numba_scores import numba_scores
from variants._tiles import Tile
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    MASK,
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
    lanes_max,
    lanes_sum,
    numba_tiles,
    thread_index,
)

WARPS = THREADS // 32
KEYS_AT_ONCE = 16
STEP_KEYS = 32 * KEYS_AT_ONCE


@cuda.jit(device=True, forceinline=True)
def warp_index():
    return thread_index() // 32


@cuda.jit(device=True, forceinline=True)
def lane_index():
    return thread_index() % 32


@functools.cache
def three_pass_kernels(
    head_dim: int, tile: Tile, dtype: str, on_chip: int, spans: bool, features: tuple[str, ...]
) -> SimpleNamespace:
    """The kernels `three_pass_scores`, `three_pass_softmax` and `three_pass_output` for these compile-time parameters.

    `on_chip`: how many elements of a row of S the softmax keeps on chip; `spans`: see `numba_tiles`; `features` of
    scores, and dropout.
    """
    D, BR, BC, SPANS = head_dim, tile.Br, tile.Bc, spans
    load_tile, store_tile = copies(D, dtype)
    stored, widen, narrow = conversions(dtype)
    tiles, scores = numba_tiles(head_dim, tile, spans), numba_scores(features)
    score, slope_of, sink_of, SINKS = scores.score, scores.slope_of, scores.sink_of, scores.SINKS
    dropout = numba_dropout(features)
    DROPOUT, keeps, factor_of = dropout.DROPOUT, dropout.keeps, dropout.factor_of
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    P_ROWS, LD, LP = tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of, element_of = tiles.row_of, tiles.key_of, tiles.element_of
    has_row, has_element, span_in_tile = tiles.has_row, tiles.has_element, tiles.span_in_tile
    multiply_Q_Kt, add_P_V = tiles.multiply_Q_Kt, tiles.add_P_V
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    limits_in_memory = tiles.limits_in_memory
    ON_CHIP = on_chip
    ROWS_PER_WARP = P_ROWS // WARPS  # of a tile of S or P
    COLUMNS_PER_LANE = -(-BC // 32)

    # Rows that see a key, as far as there are rows: first_seeing up to, not including, end_seeing; none beyond the last
    # key.
    @cuda.jit(device=True, forceinline=True)
    def first_seeing(key, q_len, kv_len, after):
        return max(key + q_len - kv_len - after, 0)

    @cuda.jit(device=True, forceinline=True)
    def end_seeing(key, q_len, kv_len, before):
        return key + q_len - kv_len + before + 1 if key < kv_len else 0

    if SPANS:
        # The same of those that are kept: the first that ends behind the key, and the first that begins behind it.
        @cuda.jit(device=True, forceinline=True)
        def first_beyond(key, limit):
            kept, first_row = limit
            low, high = 0, P_ROWS
            while low < high:
                middle = (low + high) // 2
                if kept[middle & MASK] > key:
                    high = middle
                else:
                    low = middle + 1
            return first_row + low

        @cuda.jit(device=True, forceinline=True)
        def first_seeing(key, q_len, kv_len, after):
            return first_beyond(key, after)

        @cuda.jit(device=True, forceinline=True)
        def end_seeing(key, q_len, kv_len, before):
            return first_beyond(key, before) if key < kv_len else 0

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
    def three_pass_scores(Q, K, S, group, tau, before, after, softcap, slopes):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        S_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S_acc = cuda.local.array((TM, TN), float32)
        s = cuda.local.array(ROWS_PER_WARP, float32)

        q_len, kv_len = Q.shape[2], K.shape[2]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        Q_head = Q[batch_index(), head_index()]
        K_head = K[batch_index(), kv_head_index(group)]
        S_head = S[batch_index(), head_index()]
        load_tile(Q_tile, BR, Q_head, first_row, rows)
        slope = slope_of(slopes, head_index())

        # All K_j with a key that some row sees: from the first row's first to the last row's last.
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        end_by_last = end_seen(first_row + rows - 1, q_len, kv_len, after)
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            # Load K_j, once nobody reads K_(j-1) any more.
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, min(BC, kv_len - first_key))
            cuda.syncthreads()

            multiply_Q_Kt(S_acc, Q_tile, K_tile)
            place = first_row + kv_len - q_len - first_key
            for i in range(TM):
                for j in range(TN):
                    scored = score(S_acc[i, j], tau, softcap, slope, key_of(j) - row_of(i), place)
                    S_tile[row_of(i), key_of(j)] = scored

            # A warp writes a row at a time: 32 consecutive elements.
            cuda.syncthreads()
            for start in range(0, BC, 32):
                c = start + lane_index()
                first = first_seeing(first_key + c, q_len, kv_len, after) - first_row
                end = min(end_seeing(first_key + c, q_len, kv_len, before) - first_row, rows) if c < BC else 0
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    s[i] = S_tile[warp_index() + WARPS * i, c] if c < BC else ZERO
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    if first <= r and r < end:
                        S_head.flat[at] = narrow(s[i])
                    at += WARPS * kv_len

    # Algorithm 0, line 2: read S, compute P = softmax(S), write P. A warp takes a row; numbers are algorithm 2's.
    @cuda.jit
    def three_pass_softmax(S, P, before, after, sinks, draw):
        # As much of the row as fits stays on chip; only what lies beyond is read from memory again.
        S_on_chip = cuda.shared.array((WARPS, ON_CHIP), stored)

        q_len, kv_len = S.shape[2], S.shape[3]
        row = block_index() * WARPS + warp_index()
        if row >= q_len:
            return
        before, after = limits_in_memory(before, after)
        first_key = first_seen(row, q_len, kv_len, before)
        seen = end_seen(row, q_len, kv_len, after) - first_key
        first = row * kv_len + first_key
        S_head = S[batch_index(), head_index()]
        P_head = P[batch_index(), head_index()]
        S_kept = S_on_chip[warp_index()]
        s = cuda.local.array(KEYS_AT_ONCE, stored)

        # Lines 1 to 4: m = max_j S_j. A sink is one of them, which is not written as P.
        sink = sink_of(sinks, head_index())
        m = sink
        for start in range(0, seen, STEP_KEYS):
            load_scores(s, S_head, first, start, seen)
            if start < ON_CHIP:
                for c in range(KEYS_AT_ONCE):
                    S_kept[(start & MASK) + c * 32 + lane_index()] = s[c]
            for c in range(KEYS_AT_ONCE):
                m = max(m, widen(s[c]))
        m = lanes_max(m, 32)

        # Lines 5 to 8: l = sum_j exp(S_j - m).
        l = exp_below(sink, m) if SINKS and lane_index() == 0 else ZERO
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            for c in range(KEYS_AT_ONCE):
                l += exp_below(widen(s[c]), m)
        inverse = ONE / lanes_sum(l, 32)

        # Lines 9 to 11: P_j = exp(S_j - m) / l, 0 where it drops out.
        for start in range(0, seen, STEP_KEYS):
            load_scores_again(s, S_kept, S_head, first, start, seen)
            j = start + lane_index()
            for c in range(KEYS_AT_ONCE):
                p = exp_below(widen(s[c]), m) * inverse
                if DROPOUT and not keeps(draw, row, first_key + j + c * 32, head_index(), batch_index()):
                    p = ZERO
                if j + c * 32 < seen:
                    P_head.flat[first + j + c * 32] = narrow(p)

    # Algorithm 0, line 3: load P and V by blocks, compute O = P V, write O. What dropout leaves grows here, where no 16
    # bits are between.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_output(P, V, O, group, before, after, kept_factor):
        V_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        O_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        O_acc = cuda.local.array((TM, TD), float32)
        p = cuda.local.array((COLUMNS_PER_LANE, ROWS_PER_WARP), stored)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        q_len, kv_len = P.shape[2], P.shape[3]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        P_head = P[batch_index(), head_index()]
        V_head = V[batch_index(), kv_head_index(group)]
        O_head = O[batch_index(), head_index()]

        for i in range(TM):
            for j in range(TD):
                O_acc[i, j] = ZERO

        last_row = first_row + rows - 1
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        first_by_last = first_seen(last_row, q_len, kv_len, before)
        end_by_first = end_seen(first_row, q_len, kv_len, after)
        end_by_last = end_seen(last_row, q_len, kv_len, after)
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            keys = min(BC, kv_len - first_key)
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)

            # Load V_j and the tile of P, a row per warp, once nobody reads the last ones any more. Zeros: no row there.
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                first_r = first_seeing(first_key + c, q_len, kv_len, after) - first_row
                end_r = min(end_seeing(first_key + c, q_len, kv_len, before) - first_row, rows) if c < BC else 0
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    p[j, i] = P_head.flat[at] if first_r <= r and r < end_r else stored(0)
                    at += WARPS * kv_len
            cuda.syncthreads()
            load_tile(V_tile, BC, V_head, first_key, keys)
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                for i in range(ROWS_PER_WARP):
                    if c < BC:
                        P_tile[warp_index() + WARPS * i, c] = widen(p[j, i])
            cuda.syncthreads()

            add_P_V(O_acc, P_tile, V_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end)

        for i in range(TM):
            for j in range(TD):
                if has_row(i) and has_element(j):
                    O_tile[row_of(i), element_of(j)] = factor_of(kept_factor) * O_acc[i, j]
        cuda.syncthreads()
        store_tile(O_head, first_row, O_tile, rows)

    return SimpleNamespace(
        three_pass_scores=three_pass_scores,
        three_pass_softmax=three_pass_softmax,
        three_pass_output=three_pass_output,
    )
