"""Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are
below. What comes before and after is numba_backward_ends.py.

The CUDA twin is backward_keys.cu: same names, same order of everything. What belongs together is passed on as a tuple:

- `chip`: where dynamic shared memory begins, the words of `limits`, and `keys_not_finite`
- `seen_by`: q_len, kv_len, and which rows see keys: `ahead` and `behind` of numba_rows_seeing.py
- `rows_of`: Q, dO, L, delta and the number of heads that share K and V
- `dropout`: the kernel's two parameters for it, and the number of heads that share K and V
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._dropout.numba_dropout import numba_dropout
from variants._dropout.numba_fragments import drawn_keys
from variants._mma.backward import BackwardMmaTile
from variants._mma.numba_backward import NOTHING, ZERO, load_floats, numba_backward
from variants._mma.numba_dq_fragments import FLOAT_BYTES, FRAGMENT
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    chunks_further,
    commit_copies,
    copy_async,
    exp2_approx,
    global_address,
    keep_loop,
    lane_index,
    load_shared,
    shared_address,
    store_shared,
    swizzled,
    thread_index,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_not_finite import numba_not_finite
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._tiles.numba_grids import head_index_across

NOT_A_NUMBER = np.uint32(0x7FFFFFFF)
NOTHINGS = (NOTHING, NOTHING, NOTHING, NOTHING)
WORD = np.uint32(4)
load_word, store_word, store_chunk = load_shared(4), store_shared(4), store_shared(16)
copy_word, wait_for_all = copy_async(4), wait_for_copies(0)


# The loop's limits are read anew, too: the first row, the end, and how often a tile of rows is scored or summed.
@cuda.jit(device=True, forceinline=True)
def begin_of(chip):
    return int32(load_word(chip[1]))


@cuda.jit(device=True, forceinline=True)
def end_of(chip):
    return int32(load_word(uint32(chip[1] + WORD)))


@cuda.jit(device=True, forceinline=True)
def turns_of(chip):
    return int32(load_word(uint32(chip[1] + WORD + WORD)))


@functools.cache
def keys_kernel(
    head_dim: int, tile: BackwardMmaTile, dtype: str, sums_dQ: bool, spans: bool, features: tuple[str, ...]
) -> Any:
    """The kernel `bwd_mma_of_keys`; `sums_dQ`: blocks add their parts to dQ in memory, all at once.

    `spans`: it is told by arrays which rows see a key; `features`: dropout, or none.
    """
    D, BR, BC, SUMS_DQ = head_dim, tile.Br, tile.Bc, sums_dQ
    tiles, clearing = numba_tiles(D, tile.warps, dtype), numba_not_finite(D, dtype)
    backward = numba_backward(D, tile, dtype, sums_dQ, spans)
    THREADS, ROW_BYTES, copy_tile, store_tile = tiles.THREADS, tiles.ROW_BYTES, tiles.copy_tile, tiles.store_tile
    copied_not_finite, lane_in_A, lane_in_K = tiles.copied_not_finite, tiles.lane_in_A, tiles.lane_in_K
    clear_not_finite, move_not_finite = clearing.clear_not_finite, clearing.move_not_finite
    STEPS, HANDS_WEIGHTS, LAG, STAGES = backward.STEPS, backward.HANDS_WEIGHTS, backward.LAG, backward.STAGES
    KEY_GROUPS, WARP_KEYS, WARP_ROWS = backward.KEY_GROUPS, backward.WARP_KEYS, backward.WARP_ROWS
    ROWS_AT_ONCE, TM, TN, SUMS = backward.ROWS_AT_ONCE, backward.TM, backward.TN, backward.SUMS
    SUM_TILES, SUM_STEPS = backward.SUM_TILES, backward.SUM_STEPS
    KEYS_BYTES, ROWS_BYTES, DQ_TILES = backward.KEYS_BYTES, backward.ROWS_BYTES, backward.DQ_TILES
    W_ROW_BYTES, W_BYTES, W_STAGE_BYTES = backward.W_ROW_BYTES, backward.W_BYTES, backward.W_STAGE_BYTES
    SHARED_ROWS, SHARED_W, SHARED_STATS = backward.SHARED_ROWS, backward.SHARED_W, backward.SHARED_STATS
    SCORES, OF_SUMS, WEIGHTS = backward.SCORES, backward.OF_SUMS, backward.WEIGHTS
    keep_limits_of_keys, all_see, some_see = backward.keep_limits_of_keys, backward.all_see, backward.some_see
    share_of, tiles_seeing, copy_tile_again = backward.share_of, backward.tiles_seeing, backward.copy_tile_again
    multiply_A_Bt, round_weights, mask = backward.multiply_A_Bt, backward.round_weights, backward.mask
    add_kept_Wt_Y, add_handed_Wt_Y = backward.add_kept_Wt_Y, backward.add_handed_Wt_Y
    store_weights, add_dS_K, gather = backward.store_weights, backward.add_dS_K, backward.gather
    STATS_BYTES = 2 * BR * FLOAT_BYTES
    drawn, factor_of = drawn_keys(features, TM, TN), numba_dropout(features).factor_of
    MARKS, draw_keys, left_of_both, grown_less = drawn.MARKS, drawn.draw_keys, drawn.left_of_both, drawn.grown_less

    # Lines 8 and 9: Q_i, dO_i, L_i, D_i.
    @cuda.jit(device=True, forceinline=True)
    def copy_rows(chip, rows_of, seen_by, member, first_row, stage):
        Q, dO, L, delta, group = rows_of
        rows = int32(min(int32(BR), int32(seen_by[0] - first_row)))
        head = uint64(head_index_across()) * uint64(uint32(group)) + uint64(uint32(member))
        first = head * uint64(uint32(seen_by[0])) + uint64(uint32(first_row))
        Q_tile = uint32(chip[0] + SHARED_ROWS + uint32(stage) * uint32(2 * ROWS_BYTES))
        copy_tile_again(Q_tile, global_address(Q) + first * uint64(D * STORED_BYTES), rows)
        copy_tile_again(uint32(Q_tile + ROWS_BYTES), global_address(dO) + first * uint64(D * STORED_BYTES), rows)
        thread = thread_index()
        if thread < BR:
            of_thread = uint32(thread) * uint32(FLOAT_BYTES)
            L_at = uint32(chip[0] + SHARED_STATS + uint32(stage) * uint32(STATS_BYTES) + of_thread)
            of_row = first * uint64(FLOAT_BYTES) + uint64(of_thread)
            copy_word(L_at, global_address(L) + of_row, thread < rows)
            copy_word(uint32(L_at + BR * FLOAT_BYTES), global_address(delta) + of_row, thread < rows)

    # Line 11: P = exp(tau S - lse_i).
    @cuda.jit(device=True, forceinline=True)
    def weights_of_8_rows(j, S, L_lane, tau2):
        L_low, L_high = load_floats(L_lane + 8 * j * FLOAT_BYTES)
        for m in range(TM):
            for h in range(2):
                S[m, j, 2 * h] = exp2_approx(libdevice.fmaf(S[m, j, 2 * h], tau2, -L_low))
                S[m, j, 2 * h + 1] = exp2_approx(libdevice.fmaf(S[m, j, 2 * h + 1], tau2, -L_high))

    # Line 14: dS = P o (dP - D_i), under dropout with 0 for dP that drops out.
    @cuda.jit(device=True, forceinline=True)
    def gradients_of_8_rows(j, dP, P, D_lane, marks, dropout):
        D_low, D_high = load_floats(D_lane + 8 * j * FLOAT_BYTES)
        for m in range(TM):
            for h in range(2):
                low = grown_less(dP[m, j, 2 * h], D_low, marks, m, h, j, 0, dropout[1])
                high = grown_less(dP[m, j, 2 * h + 1], D_high, marks, m, h, j, 1, dropout[1])
                dP[m, j, 2 * h] = P[m, j, 2 * h] * low
                dP[m, j, 2 * h + 1] = P[m, j, 2 * h + 1] * high

    exponentiate, multiply_P = unrolled(TN, weights_of_8_rows), unrolled(TN, gradients_of_8_rows)

    # Line 12: what is left of P.
    @cuda.jit(device=True, forceinline=True)
    def drop_of_8_rows(j, P, marks):
        for m in range(TM):
            for h in range(2):
                at = (j & 1) * 2 + h
                P[j >> 1, m, at] = left_of_both(P[j >> 1, m, at], marks, m, h, j)

    drop = unrolled(TN, drop_of_8_rows)

    @cuda.jit(device=True, forceinline=True)
    def clear_sums(j, sums):
        for of in range(SUMS):
            for i in range(SUM_TILES):
                for c in range(4):
                    sums[of, i, j, c] = ZERO

    clear_all_sums = unrolled(2 * SUM_STEPS, clear_sums)

    @cuda.jit(device=True, forceinline=True)
    def clear_weights(s, W):
        for m in range(TM):
            for c in range(4):
                W[s, m, c] = NOTHING

    clear_all_weights = unrolled(TN // 2, clear_weights)

    # Lines 10, 11, 13 and 14: P and dS of the tile. Then lines 12 and 16, or their weights for others to sum.
    # `all_seen`: whether every row sees every key, all of which are finite.
    @cuda.jit(device=True, forceinline=True)
    def score(sums, chip, seen_by, tau2, dropout, member, first_key, first_row, stage, W_tile, all_seen):
        q_len, kv_len, ahead, behind = seen_by
        end = unknown(int32(WARP_ROWS)) if WARP_ROWS > ROWS_AT_ONCE else int32(WARP_ROWS)
        for beyond in range(int32(0), end, int32(ROWS_AT_ONCE)):
            keep_loop()
            # Rows of the tile from `above` on, with the warp's keys.
            warp = uint32(thread_index()) >> uint32(5)
            warps_key = int32(warp % uint32(KEY_GROUPS) * uint32(WARP_KEYS))
            key = int32(first_key + warps_key)
            above = int32(int32(warp // uint32(KEY_GROUPS) * uint32(WARP_ROWS)) + beyond)
            row = int32(first_row + above)
            by_all, by_some = True, True
            if not all_seen:
                last = int32(min(int32(row + ROWS_AT_ONCE), q_len) - 1)
                by_all = all_see(row, last, key, int32(WARP_KEYS), q_len, kv_len, ahead, behind)
                by_all = by_all and load_word(chip[2]) == 0
                by_some = row < q_len and some_see(row, last, key, int32(WARP_KEYS), q_len, kv_len, ahead, behind)
            P, dS = cuda.local.array(WEIGHTS, uint32), cuda.local.array(WEIGHTS, uint32)
            marks = cuda.local.array(MARKS, uint32)
            if by_some:
                S, dP = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
                Q_tile = uint32(chip[0] + SHARED_ROWS + uint32(unknown(stage)) * uint32(2 * ROWS_BYTES))
                rows_at = uint32(above) * uint32(ROW_BYTES)
                K_lane = uint32(chip[0] + lane_in_A() + uint32(warps_key) * uint32(ROW_BYTES))
                L_lane = uint32(chip[0] + SHARED_STATS + uint32(unknown(stage)) * uint32(STATS_BYTES))
                L_lane = uint32(L_lane + uint32(above) * uint32(FLOAT_BYTES) + (lane_index() & 3) * 2 * FLOAT_BYTES)
                # Line 10: S = Q_i K_j^T. Line 11.
                multiply_A_Bt(S, K_lane, uint32(Q_tile + lane_in_K() + rows_at))
                exponentiate(S, L_lane, tau2)
                # Line 13: dP = dO_i V_j^T. Line 14.
                multiply_A_Bt(dP, uint32(K_lane + KEYS_BYTES), uint32(Q_tile + ROWS_BYTES + lane_in_K() + rows_at))
                draw_keys(marks, dropout[0], int32(cuda.blockIdx.x * dropout[2] + member), key, row)
                multiply_P(dP, S, uint32(L_lane + BR * FLOAT_BYTES), marks, dropout)
                if not by_all:
                    mask(S, dP, key, row, q_len, kv_len, ahead, behind)
                round_weights(P, S)
                drop(P, marks)
                round_weights(dS, dP)

                # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                if not HANDS_WEIGHTS:
                    own_lane = uint32(Q_tile + lane_in_A() + rows_at)
                    add_kept_Wt_Y(sums[0], P, uint32(own_lane + ROWS_BYTES))
                    add_kept_Wt_Y(sums[SUMS - 1], dS, own_lane)
            else:
                # What others sum has these keys and rows, too.
                clear_all_weights(P)
                clear_all_weights(dS)
            if LAG:
                lane = lane_index()
                W_lane = swizzled(W_ROW_BYTES, lane & uint32(15), lane >> uint32(4))
                W_lane = uint32(W_tile + W_lane + uint32(warps_key) * uint32(W_ROW_BYTES))
                to = chunks_further(W_lane, uint32(uint32(above) >> uint32(3)))
                store_weights(to, dS)
                if HANDS_WEIGHTS:
                    store_weights(uint32(to + W_BYTES), P)

    # What is summed of others' dS^T and P^T: line 12 or 16, and line 15.
    @cuda.jit(device=True, forceinline=True)
    def sum_handed(sums, chip, seen_by, dQ, group, member, first_row, stage, W_tile):
        if HANDS_WEIGHTS:
            own_key, own_step, of_dV = share_of(thread_index())
            lane = lane_index()
            W_lane = uint32(W_tile + swizzled(W_ROW_BYTES, lane & uint32(15), lane >> uint32(4)))
            W_lane = uint32(W_lane + uint32(of_dV) * uint32(W_BYTES) + uint32(own_key) * uint32(W_ROW_BYTES))
            Y_tile = uint32(chip[0] + SHARED_ROWS + uint32(2 * stage + of_dV) * uint32(ROWS_BYTES))
            Y_lane = uint32(Y_tile + lane_in_A() + uint32(own_step) * uint32(2 * CHUNK_BYTES))
            add_handed_Wt_Y(sums[0], W_lane, Y_lane, int32(STEPS - own_step))
        if SUMS_DQ:
            # Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
            head = uint64(head_index_across()) * uint64(uint32(group)) + uint64(uint32(member))
            fragments = head * uint64(uint32(seen_by[0] + 15) >> uint32(4)) * uint64(DQ_TILES)
            add_dS_K(dQ + fragments * uint64(FRAGMENT * FLOAT_BYTES), W_tile, chip[0], first_row, seen_by[0])

    # Of the tile before: which of the loop's counters it had.
    @cuda.jit(device=True, forceinline=True)
    def sum_before(sums, chip, seen_by, dQ, group, member, first_row, step):
        is_first = first_row == begin_of(chip)
        W_before = uint32(chip[0] + SHARED_W + (uint32(step + 1) & uint32(1)) * uint32(W_STAGE_BYTES))
        row_before = int32((end_of(chip) if is_first else first_row) - BR)
        stage = int32(uint32(step - 1) % uint32(STAGES))
        sum_handed(sums, chip, seen_by, dQ, group, int32(member - is_first), row_before, stage, W_before)

    # Where the block's keys begin in K, V, dK and dV.
    @cuda.jit(device=True, forceinline=True)
    def place_of_keys(first_key, kv_len):
        first = uint64(head_index_across()) * uint64(uint32(kv_len)) + uint64(uint32(first_key))
        return first * uint64(D * STORED_BYTES)

    # A block owns K_j and V_j of one head, and the query heads that share them. L is lse times log2 e, D = rowsum(dO o
    # O), tau2 is tau times log2 e. The grid is (heads of K and V, tiles of keys, batch).
    @cuda.jit(device=True, forceinline=True)
    def of_keys(Q, K, V, dO, L, delta, dQ, dK, dV, group, tau, tau2, before, after, draw, kept_factor):
        K_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        V_tile = uint32(K_tile + KEYS_BYTES)
        limits = shared_address(cuda.shared.array(4, uint32))
        chip, rows_of = (K_tile, limits, uint32(limits + uint32(12))), (Q, dO, L, delta, group)
        q_len, kv_len = int32(Q.shape[2]), int32(K.shape[2])
        dropout = (draw, kept_factor, group)

        # The first keys, which most rows see where causal, of all heads start first.
        first_key = int32(cuda.blockIdx.y * BC)
        keys = int32(min(int32(BC), int32(kv_len - first_key)))
        ahead, behind = keep_limits_of_keys(before, after, first_key, keys, q_len, kv_len)
        seen_by = (q_len, kv_len, ahead, behind)
        first_tile, count = tiles_seeing(first_key, keys, q_len, kv_len, ahead, behind)
        if thread_index() == 0:
            store_word(limits, uint32(first_tile * BR))
            store_word(uint32(limits + WORD), uint32(int32(first_tile + count) * BR))
            store_word(uint32(limits + WORD + WORD), uint32(int32(group * count) + LAG) if count > 0 else NOTHING)

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for chunk in range(thread_index(), int32(SHARED_STATS // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(K_tile + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
        cuda.syncthreads()

        # Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers.
        sums = cuda.local.array(OF_SUMS, float32)  # dV_j, dK_j, not yet times tau; or one of them
        clear_all_sums(sums)
        if count > 0:
            first_kv = place_of_keys(first_key, kv_len)
            copy_tile(K_tile, BC, global_address(K) + first_kv, keys)
            copy_tile(V_tile, BC, global_address(V) + first_kv, keys)
            copy_rows(chip, rows_of, seen_by, int32(0), int32(first_tile * BR), int32(0))
            commit_copies()
            wait_for_all()
            found = cuda.syncthreads_or(copied_not_finite(K_tile, BC)) != 0
            if thread_index() == 0:
                store_word(chip[2], uint32(found))
            if found and thread_index() < BC:
                move_not_finite(K_tile, V_tile, thread_index())

        # All tiles of rows with one that sees some key, of all heads that share the keys, one tile ahead of its use.
        member, first_row, step = int32(0), int32(first_tile * BR), int32(0)
        while step < turns_of(chip):
            # Q_i and dO_i have come, and nobody reads the tiles any more that the next copies overwrite, nor weights of
            # two steps before. In a tile with a row that does not see all keys, both must be finite: products of 0 are
            # not.
            stage = int32(uint32(step) % uint32(STAGES))
            last_row = int32(min(int32(first_row + BR), q_len) - 1)
            all_seen = all_see(first_row, last_row, first_key, int32(BC), q_len, kv_len, ahead, behind)
            wait_for_all()
            if not all_seen and step < int32(turns_of(chip) - LAG):
                Q_tile = uint32(K_tile + SHARED_ROWS + uint32(stage) * uint32(2 * ROWS_BYTES))
                dO_tile = uint32(Q_tile + ROWS_BYTES)
                if cuda.syncthreads_or(copied_not_finite(Q_tile, BR) | copied_not_finite(dO_tile, BR)) != 0:
                    r = thread_index()
                    if r < BR:
                        in_Q, in_dO = clear_not_finite(Q_tile, r), clear_not_finite(dO_tile, r)
                        if in_Q or in_dO:
                            L_at = uint32(K_tile + SHARED_STATS + uint32(stage) * uint32(STATS_BYTES))
                            store_word(L_at + uint32(r) * WORD, NOT_A_NUMBER)
                    cuda.syncthreads()
            else:
                cuda.syncthreads()
            if int32(step + 1) < int32(turns_of(chip) - LAG):
                is_last = int32(first_row + BR) == end_of(chip)
                next_row = begin_of(chip) if is_last else int32(first_row + BR)
                next_stage = int32(uint32(step + 1) % uint32(STAGES))
                copy_rows(chip, rows_of, seen_by, int32(member + is_last), next_row, next_stage)
            commit_copies()

            W_tile = uint32(K_tile + SHARED_W + (uint32(step) & uint32(1)) * uint32(W_STAGE_BYTES))
            all_seen = all_seen and load_word(chip[2]) == 0
            if HANDS_WEIGHTS:
                # Half of eight warps score while the others sum: exponentials, and products, at the same time.
                scores_in = int32(thread_index() >= THREADS // 2)
                for half in range(int32(0), unknown(int32(2)), int32(1)):
                    keep_loop()
                    if half == scores_in:
                        if step < int32(turns_of(chip) - LAG):
                            score(
                                sums,
                                chip,
                                seen_by,
                                tau2,
                                dropout,
                                member,
                                first_key,
                                first_row,
                                stage,
                                W_tile,
                                all_seen,
                            )
                    elif step > 0:
                        sum_before(sums, chip, seen_by, dQ, group, member, first_row, step)
            else:
                if step < int32(turns_of(chip) - LAG):
                    score(sums, chip, seen_by, tau2, dropout, member, first_key, first_row, stage, W_tile, all_seen)
                if LAG and step > 0:
                    sum_before(sums, chip, seen_by, dQ, group, member, first_row, step)
            first_row, step = int32(first_row + BR), int32(step + 1)
            if first_row == end_of(chip):
                first_row, member = begin_of(chip), int32(member + 1)

        # Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        cuda.syncthreads()
        if HANDS_WEIGHTS:
            of_dV = share_of(thread_index())[2] != 0
            gather(V_tile if of_dV else K_tile, sums[0], factor_of(kept_factor) if of_dV else tau)
        else:
            gather(K_tile, sums[SUMS - 1], tau)
            gather(V_tile, sums[0], factor_of(kept_factor))
        cuda.syncthreads()
        key = unknown(first_key)
        stored, end_kv = int32(min(int32(BC), int32(kv_len - key))), place_of_keys(key, kv_len)
        store_tile(global_address(dK) + end_kv, K_tile, stored)
        store_tile(global_address(dV) + end_kv, V_tile, stored)

    if SUMS_DQ:

        @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
        def bwd_mma_of_keys(Q, K, V, dO, L, delta, dQ, dK, dV, group, tau, tau2, before, after, draw, kept_factor):
            sums = global_address(dQ)
            of_keys(Q, K, V, dO, L, delta, sums, dK, dV, group, tau, tau2, before, after, draw, kept_factor)

    else:

        @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
        def bwd_mma_of_keys(Q, K, V, dO, L, delta, dK, dV, group, tau, tau2, before, after, draw, kept_factor):
            nowhere = uint64(0)
            of_keys(Q, K, V, dO, L, delta, nowhere, dK, dV, group, tau, tau2, before, after, draw, kept_factor)

    return bwd_mma_of_keys
