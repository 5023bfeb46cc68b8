"""One tile of rows of a block that owns keys: P and dS of it, and what is summed of them.

The CUDA twin is scoring.cuh: same names, same order. Line numbers are those of Dao 2023, arXiv 2307.08691, algorithm 2.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_dropout import numba_dropout
from variants._features.numba_dropout_fragments import kept_in_keys
from variants._features.numba_scores import numba_scores
from variants._features.numba_tile_order import NumbaRule
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    LOG2_E,
    chunks_further,
    exp2_approx,
    keep_loop,
    lane_index,
    load_shared,
    swizzled,
    thread_index,
    unknown,
)
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward import APPROXIMATE, BackwardMmaTile
from variants._mma_backward.numba_dq import FRAGMENT, adds_to_dQ
from variants._mma_backward.numba_products import load_floats, numba_products
from variants._mma_backward.numba_rows_of_sequence import numba_rows_of_sequence
from variants._mma_backward.numba_seen import Pairs, numba_seen
from variants._mma_backward.numba_shares import FLOAT_BYTES, numba_shares

load_word = load_shared(4)


class KeyBlock(NamedTuple):
    """K_j and V_j of one head, and what all rows of the query heads that share them need."""

    chip: Any
    """Where dynamic shared memory begins."""
    seeing: Any
    not_finite: Any
    """Where shared memory says whether K_j had NaN or infinity."""
    first_key: Any
    q_len: Any
    group: Any
    tau2: Any
    """tau times log2 e; the factor before score terms, if there are some."""
    dropout: Any
    terms: Any
    kv_len: Any
    all_rows: Any
    """Of a head, in all sequences."""
    noted: Any
    """Where shared memory says where the sequence begins, if there are several."""


@functools.cache
def query_heads(varlen: bool) -> Any:
    """Device function: the turn's query head, counted through the batch."""
    head_across = numba_rows_of_sequence(varlen).head_across

    @cuda.jit(device=True, forceinline=True)
    def head_of(block, turn):
        return uint64(head_across()) * uint64(uint32(block.group)) + uint64(uint32(turn.head))

    return head_of


def numba_scoring(
    head_dim: int,
    tile: BackwardMmaTile,
    dtype: str,
    adds_dQ: bool,
    spans: bool,
    drops: bool,
    terms: tuple[str, ...] = (),
    rule: NumbaRule | None = None,
    varlen: bool = False,
) -> SimpleNamespace:
    """`score` and `sum_handed` for these compile-time parameters; `terms`: as for `numba_scores`; `rule`: a mask's that
    hides pairs besides limits."""
    caps = APPROXIMATE["softcap"] in terms
    own_rows, head_of = numba_rows_of_sequence(varlen), query_heads(varlen)
    fragments_before, first_row_of = own_rows.fragments, own_rows.first_row
    shares, seen, tiles = (
        numba_shares(head_dim, tile, adds_dQ, caps),
        numba_seen(spans),
        numba_tiles(head_dim, tile.warps, dtype),
    )
    products = numba_products(head_dim, tile, dtype, adds_dQ, spans, caps, rule)
    BR, ROW_BYTES, lane_in_A, lane_in_K = tile.Br, tiles.ROW_BYTES, tiles.lane_in_A, tiles.lane_in_K
    STEPS, HANDS_WEIGHTS, LAG, STAGES = shares.STEPS, shares.HANDS_WEIGHTS, shares.LAG, shares.STAGES
    KEY_GROUPS, WARP_KEYS, WARP_ROWS = shares.KEY_GROUPS, shares.WARP_KEYS, shares.WARP_ROWS
    ROWS_AT_ONCE, TM, TN, DQ_TILES = shares.ROWS_AT_ONCE, shares.TM, shares.TN, shares.DQ_TILES
    SCORES, WEIGHTS, LAST_SUM = shares.SCORES, shares.WEIGHTS, shares.SUMS[0] - 1
    KEYS_BYTES, ROWS_BYTES = shares.KEYS_BYTES, shares.ROWS_BYTES
    W_ROW_BYTES, W_BYTES = shares.W_ROW_BYTES, shares.W_BYTES
    share_of, Q_tile, L_of, dS_tile = shares.share_of, shares.Q_tile, shares.L_of, shares.dS_tile
    all_see, some_see, mask, store_weights = seen.all_see, seen.some_see, products.mask, products.store_weights
    hide = products.hide
    multiply_A_Bt, round_weights, clear_weights = products.multiply_A_Bt, products.round_weights, products.clear_weights
    add_kept_Wt_Y, add_handed_Wt_Y = products.add_kept_Wt_Y, products.add_handed_Wt_Y
    add_dS_K = adds_to_dQ(head_dim, tile, dtype) if adds_dQ else None
    kept, dropout = kept_in_keys(drops, TM, TN), numba_dropout(drops)
    MARKS, draw, both, minus = kept.MARKS, kept.draw, kept.both, kept.minus
    of_head, factor, scores = dropout.of_head, dropout.factor, numba_scores(terms)
    HAS_TERMS, score_of_head, with_derivative = bool(terms), scores.of_head, scores.with_derivative

    # Line 11: P = exp(tau S - L_i), in the place of S.
    @cuda.jit(device=True, forceinline=True)
    def exponentiate_8_rows(j, S, L_lane, tau2):
        L_low, L_high = load_floats(L_lane + 8 * j * FLOAT_BYTES)
        for i in range(TM):
            for h in range(2):
                S[i, j, 2 * h] = exp2_approx(libdevice.fmaf(S[i, j, 2 * h], tau2, -L_low))
                S[i, j, 2 * h + 1] = exp2_approx(libdevice.fmaf(S[i, j, 2 * h + 1], tau2, -L_high))

    # Line 14: dS = P o (dP - D_i), in the place of dP, which is 0 where the weight drops out.
    @cuda.jit(device=True, forceinline=True)
    def multiply_P_of_8_rows(j, dP, P, D_lane, growth, marks):
        D_low, D_high = load_floats(D_lane + 8 * j * FLOAT_BYTES)
        for i in range(TM):
            for h in range(2):
                low = minus(dP[i, j, 2 * h], D_low, growth, marks, i, h, j, 0)
                high = minus(dP[i, j, 2 * h + 1], D_high, growth, marks, i, h, j, 1)
                dP[i, j, 2 * h] = P[i, j, 2 * h] * low
                dP[i, j, 2 * h + 1] = P[i, j, 2 * h + 1] * high

    # Lines 11 and 14 with score terms, at once: the derivative of a score is a factor of dS, and wants no register
    # until then. `key` and `row` are the lane's first ones.
    @cuda.jit(device=True, forceinline=True)
    def weigh_8_rows(j, S, dP, L_lane, score_factor, growth, marks, score, key, row):
        L_low, L_high = load_floats(L_lane + 8 * j * FLOAT_BYTES)
        delta_low, delta_high = load_floats(L_lane + BR * FLOAT_BYTES + 8 * j * FLOAT_BYTES)
        for i in range(TM):
            for h in range(2):
                for e in range(2):
                    L_j, delta_j = (L_high, delta_high) if e else (L_low, delta_low)
                    of_row, of_key = int32(row + 8 * j + e), int32(key + 16 * i + 8 * h)
                    s, derivative = with_derivative(score, score_factor * S[i, j, 2 * h + e], of_row, of_key)
                    P = exp2_approx(libdevice.fmaf(s, LOG2_E, -L_j))
                    S[i, j, 2 * h + e] = P
                    dP[i, j, 2 * h + e] = derivative * (
                        P * minus(dP[i, j, 2 * h + e], delta_j, growth, marks, i, h, j, e)
                    )

    weigh = unrolled(TN, weigh_8_rows)
    exponentiate, multiply_P = unrolled(TN, exponentiate_8_rows), unrolled(TN, multiply_P_of_8_rows)

    # Line 12: 0 where a weight drops out, of what is rounded.
    @cuda.jit(device=True, forceinline=True)
    def drop_of_8_rows(j, P, marks):
        for i in range(TM):
            for h in range(2):
                at = (j & 1) * 2 + h
                P[j >> 1, i, at] = both(P[j >> 1, i, at], marks, i, h, j)

    drop = unrolled(TN, drop_of_8_rows)

    # Lines 10 to 14: P and dS of the turn's tile. Then lines 12 and 16 for the warp's own keys, or P and dS for other
    # warps to sum. `all_seen`: whether every row sees every key, and all of K_j is finite; `hidden`: which
    # pairs a mask hides besides.
    @cuda.jit(device=True, forceinline=True)
    def score(sums, block, turn, all_seen, hidden):
        stage, W_tile = int32(uint32(turn.number) % uint32(STAGES)), dS_tile(block.chip, turn.number)
        end = unknown(int32(WARP_ROWS)) if WARP_ROWS > ROWS_AT_ONCE else int32(WARP_ROWS)
        for beyond in range(int32(0), end, int32(ROWS_AT_ONCE)):
            keep_loop()
            # Rows of the tile from `above` on, with the warp's keys.
            warp = uint32(thread_index()) >> uint32(5)
            warps_key = int32(warp % uint32(KEY_GROUPS) * uint32(WARP_KEYS))
            key = int32(block.first_key + warps_key)
            above = int32(int32(warp // uint32(KEY_GROUPS) * uint32(WARP_ROWS)) + beyond)
            row = int32(turn.first_row + above)
            by_all, by_some = True, True
            if not all_seen:
                pairs = Pairs(row, int32(min(int32(row + ROWS_AT_ONCE), block.q_len) - 1), key, int32(WARP_KEYS))
                by_all = all_see(block.seeing, pairs)
                by_all = by_all and load_word(block.not_finite) == 0
                by_some = row < block.q_len and some_see(block.seeing, pairs)
            P, dS = cuda.local.array(WEIGHTS, uint32), cuda.local.array(WEIGHTS, uint32)
            marks = cuda.local.array(MARKS, uint32)
            if by_some:
                S, dP = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
                Q_i = Q_tile(block.chip, unknown(stage))
                rows_at = uint32(above) * uint32(ROW_BYTES)
                K_lane = uint32(block.chip + lane_in_A() + uint32(warps_key) * uint32(ROW_BYTES))
                L_lane = uint32(L_of(block.chip, unknown(stage), above) + (lane_index() & 3) * 2 * FLOAT_BYTES)
                # Line 10: S = Q_i K_j^T. Line 11: P = exp(tau S - L_i).
                multiply_A_Bt(S, K_lane, uint32(Q_i + lane_in_K() + rows_at))
                if not HAS_TERMS:
                    exponentiate(S, L_lane, block.tau2)
                # Line 13: dP = dO_i V_j^T. Line 14: dS = P o (dP - D_i).
                multiply_A_Bt(dP, uint32(K_lane + KEYS_BYTES), uint32(Q_i + ROWS_BYTES + lane_in_K() + rows_at))
                head = int32(cuda.blockIdx.x * block.group + turn.head)
                draw(marks, of_head(block.dropout, head, cuda.blockIdx.z), key, row)
                if HAS_TERMS:
                    # What terms have of the head is read here, once for each of these rows.
                    lane = int32(lane_index())
                    of_terms = score_of_head(block.terms, unknown(head), block.q_len, block.kv_len)
                    first_key, first_row = int32(key + (lane >> 2)), int32(row + (lane & 3) * 2)
                    weigh(S, dP, L_lane, block.tau2, factor(block.dropout), marks, of_terms, first_key, first_row)
                else:
                    multiply_P(dP, S, uint32(L_lane + BR * FLOAT_BYTES), factor(block.dropout), marks)
                if not by_all:
                    mask(S, dP, block.seeing, key, row)
                hide(S, dP, hidden, warps_key, above)
                round_weights(P, S)
                drop(P, marks)
                round_weights(dS, dP)

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                if not HANDS_WEIGHTS:
                    own_lane = uint32(Q_i + lane_in_A() + rows_at)
                    add_kept_Wt_Y(sums[0], P, uint32(own_lane + ROWS_BYTES))
                    add_kept_Wt_Y(sums[LAST_SUM], dS, own_lane)
            else:
                # What others sum has these keys and rows, too.
                clear_weights(P)
                clear_weights(dS)
            if LAG:
                lane = lane_index()
                W_lane = swizzled(W_ROW_BYTES, lane & uint32(15), lane >> uint32(4))
                W_lane = uint32(W_tile + W_lane + uint32(warps_key) * uint32(W_ROW_BYTES))
                to = chunks_further(W_lane, uint32(uint32(above) >> uint32(3)))
                store_weights(to, dS)
                if HANDS_WEIGHTS:
                    store_weights(uint32(to + W_BYTES), P)

    # What is summed of the dS^T and P^T that warps stored in a turn: lines 12 or 16, and 15.
    @cuda.jit(device=True, forceinline=True)
    def sum_handed(sums, block, turn, dQ):
        W_tile = dS_tile(block.chip, turn.number)
        if HANDS_WEIGHTS:
            own_key, own_step, of_dV = share_of(thread_index())
            lane = lane_index()
            W_lane = uint32(W_tile + swizzled(W_ROW_BYTES, lane & uint32(15), lane >> uint32(4)))
            W_lane = uint32(W_lane + uint32(of_dV) * uint32(W_BYTES) + uint32(own_key) * uint32(W_ROW_BYTES))
            # Worked out here, so that it takes no register while others score.
            number = turn.number if adds_dQ else unknown(turn.number)
            stage = int32(uint32(number) % uint32(STAGES))
            Y_tile = uint32(Q_tile(block.chip, stage) + uint32(of_dV) * uint32(ROWS_BYTES))
            Y_lane = uint32(Y_tile + lane_in_A() + uint32(own_step) * uint32(2 * CHUNK_BYTES))
            add_handed_Wt_Y(sums[0], W_lane, Y_lane, int32(STEPS - own_step))
        # Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
        if adds_dQ:
            before = fragments_before(head_of(block, turn), block.all_rows, first_row_of(block.noted))
            dQ_head = dQ + before * uint64(DQ_TILES) * uint64(FRAGMENT * FLOAT_BYTES)
            add_dS_K(dQ_head, W_tile, block.chip, turn.first_row, block.q_len)

    return SimpleNamespace(score=score, sum_handed=sum_handed)
