"""Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are
below. What comes before and after is numba_backward_ends.py.

The CUDA twin is backward_keys.cu: same names, same order of everything.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma.backward import STAGES, BackwardMmaTile
from variants._mma.numba_backward import (
    FLOAT_BYTES,
    FRAGMENT,
    NOTHING,
    ZERO,
    load_floats,
    numba_backward,
    quotient,
    remainder,
)
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    block_index,
    commit_copies,
    copy_async,
    end_seen,
    exp2_approx,
    first_seen,
    global_address,
    head_index,
    load_shared,
    shared_address,
    store_shared,
    thread_index,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_not_finite import numba_not_finite
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled

ONE = np.float32(1)
NOT_A_NUMBER = np.uint32(0x7FFFFFFF)
NOTHINGS = (NOTHING, NOTHING, NOTHING, NOTHING)
load_word, store_word, store_chunk = load_shared(4), store_shared(4), store_shared(16)
copy_word, wait_for_all = copy_async(4), wait_for_copies(0)


@functools.cache
def keys_kernel(head_dim: int, tile: BackwardMmaTile, dtype: str, sums_dQ: bool) -> Any:
    """The kernel `bwd_mma_of_keys`; `sums_dQ`: blocks add their parts to dQ in memory, all at once."""
    D, BR, BC, SUMS_DQ = head_dim, tile.Br, tile.Bc, sums_dQ
    tiles, backward, clearing = (
        numba_tiles(D, tile.warps, dtype),
        numba_backward(D, tile, dtype),
        numba_not_finite(D, dtype),
    )
    ROW_BYTES, copy_tile, store_tile = tiles.ROW_BYTES, tiles.copy_tile, tiles.store_tile
    copied_not_finite, lane_in_A, lane_in_K = tiles.copied_not_finite, tiles.lane_in_A, tiles.lane_in_K
    clear_not_finite, move_not_finite = clearing.clear_not_finite, clearing.move_not_finite
    THREADS, STEPS, TM, TN, OWN_STEPS = backward.THREADS, backward.STEPS, backward.TM, backward.TN, backward.OWN_STEPS
    WARP_KEYS, ROWS_AT_ONCE, DQ_TILES = backward.WARP_KEYS, backward.ROWS_AT_ONCE, backward.DQ_TILES
    KEYS_BYTES, ROWS_BYTES, SHARED_STATS = backward.KEYS_BYTES, backward.ROWS_BYTES, backward.SHARED_STATS
    SCORES, SUMS, WEIGHTS = backward.SCORES, backward.SUMS, backward.WEIGHTS
    first_key_of, first_step_of, tiles_seeing = backward.first_key_of, backward.first_step_of, backward.tiles_seeing
    multiply_A_Bt, add_Wt_Y, round_weights = backward.multiply_A_Bt, backward.add_Wt_Y, backward.round_weights
    mask, store_dSt, add_dS_K, gather = backward.mask, backward.store_dSt, backward.add_dS_K, backward.gather
    ROW_TILES, STATS_BYTES = 2 * KEYS_BYTES, 2 * BR * FLOAT_BYTES
    DS_TILE = ROW_TILES + STAGES * 2 * ROWS_BYTES

    # Lines 8 and 9: all Q_i, dO_i, L_i, D_i with a row that sees some key of the tile, of all heads that share it, one
    # tile ahead of its use.
    @cuda.jit(device=True, forceinline=True)
    def copy_rows(K_tile, Q, dO, L, delta, group, step, first_tile, count):
        stage, q_len = uint32(step) % uint32(STAGES), int32(Q.shape[2])
        member, i = quotient(uint32(step), uint32(count)), remainder(uint32(step), uint32(count))
        first_row = int32(int32(first_tile + int32(i)) * BR)
        rows = int32(min(int32(BR), int32(q_len - first_row)))
        head = head_index() * uint64(uint32(group)) + uint64(member)
        first = head * uint64(uint32(q_len)) + uint64(uint32(first_row))
        Q_tile = uint32(K_tile + ROW_TILES + stage * uint32(2 * ROWS_BYTES))
        copy_tile(Q_tile, BR, global_address(Q) + first * uint64(D * STORED_BYTES), rows)
        copy_tile(uint32(Q_tile + ROWS_BYTES), BR, global_address(dO) + first * uint64(D * STORED_BYTES), rows)
        thread = thread_index()
        if thread < BR:
            L_tile = uint32(K_tile + SHARED_STATS + stage * uint32(STATS_BYTES) + uint32(thread) * uint32(FLOAT_BYTES))
            of_row = (first + uint64(uint32(thread))) * uint64(FLOAT_BYTES)
            copy_word(L_tile, global_address(L) + of_row, thread < rows)
            copy_word(uint32(L_tile + BR * FLOAT_BYTES), global_address(delta) + of_row, thread < rows)

    # Line 11: P = exp(tau S - lse_i).
    @cuda.jit(device=True, forceinline=True)
    def weights_of_8_rows(j, S, L_lane, tau2):
        L_low, L_high = load_floats(L_lane + 8 * j * FLOAT_BYTES)
        for m in range(TM):
            for h in range(2):
                S[m, j, 2 * h] = exp2_approx(libdevice.fmaf(S[m, j, 2 * h], tau2, -L_low))
                S[m, j, 2 * h + 1] = exp2_approx(libdevice.fmaf(S[m, j, 2 * h + 1], tau2, -L_high))

    # Line 14: dS = P o (dP - D_i).
    @cuda.jit(device=True, forceinline=True)
    def gradients_of_8_rows(j, dP, P, D_lane):
        D_low, D_high = load_floats(D_lane + 8 * j * FLOAT_BYTES)
        for m in range(TM):
            for h in range(2):
                dP[m, j, 2 * h] = P[m, j, 2 * h] * (dP[m, j, 2 * h] - D_low)
                dP[m, j, 2 * h + 1] = P[m, j, 2 * h + 1] * (dP[m, j, 2 * h + 1] - D_high)

    exponentiate, multiply_P = unrolled(TN, weights_of_8_rows), unrolled(TN, gradients_of_8_rows)

    @cuda.jit(device=True, forceinline=True)
    def clear_sums(j, dK_acc, dV_acc):
        for i in range(TM):
            for c in range(4):
                dK_acc[i, j, c] = ZERO
                dV_acc[i, j, c] = ZERO

    clear_all_sums = unrolled(2 * OWN_STEPS, clear_sums)

    # Lines 10 to 14 and 16 for ROWS_AT_ONCE rows of the tile, from `above` on, and the warp's keys; dS in 16 bits.
    @cuda.jit(device=True, forceinline=True)
    def visit_rows(
        dK_acc, dV_acc, dS, K_tile, Q_tile, L_tile, above, first_key, first_row, keys_not_finite, q_len, kv_len, tau2,
        before, after,
    ):  # fmt: skip
        thread = thread_index()
        warps_key, first_step = first_key_of(thread), first_step_of(thread)
        key, row = int32(first_key + warps_key), int32(first_row + above)
        last = int32(min(int32(row + ROWS_AT_ONCE), q_len) - 1)
        first_of_last, end_of_last = first_seen(last, q_len, kv_len, before), end_seen(last, q_len, kv_len, after)
        first_of_row, end_of_row = first_seen(row, q_len, kv_len, before), end_seen(row, q_len, kv_len, after)
        end_key = int32(key + WARP_KEYS)
        all_seen = key >= first_of_last and end_key <= end_of_row
        if row < q_len and key < end_of_last and end_key > first_of_row:
            S, dP = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
            P = cuda.local.array(WEIGHTS, uint32)
            rows_at = uint32(above) * uint32(ROW_BYTES)
            K_lane = uint32(K_tile + lane_in_A() + uint32(warps_key) * uint32(ROW_BYTES))
            stats_lane = uint32(L_tile + uint32(above) * uint32(FLOAT_BYTES) + (thread & 3) * 2 * FLOAT_BYTES)
            # Line 10: S = Q_i K_j^T. Line 11.
            multiply_A_Bt(S, K_lane, uint32(Q_tile + lane_in_K() + rows_at))
            exponentiate(S, stats_lane, tau2)
            # Line 13: dP = dO_i V_j^T. Line 14.
            multiply_A_Bt(dP, uint32(K_lane + KEYS_BYTES), uint32(Q_tile + ROWS_BYTES + lane_in_K() + rows_at))
            multiply_P(dP, S, uint32(stats_lane + BR * FLOAT_BYTES))
            if not all_seen or load_word(keys_not_finite) != 0:
                mask(S, dP, int32(row + kv_len - q_len - key), int32(kv_len - key), int32(q_len - row), before, after)
            round_weights(P, S)
            round_weights(dS, dP)

            # Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i, not yet times tau.
            own_lane = uint32(Q_tile + lane_in_A() + rows_at + uint32(first_step) * uint32(32))
            add_Wt_Y(dV_acc, P, uint32(own_lane + ROWS_BYTES), int32(STEPS - first_step))
            add_Wt_Y(dK_acc, dS, own_lane, int32(STEPS - first_step))
        else:
            # In dS there are others' keys besides.
            for s in range(TN // 2):
                for m in range(TM):
                    for c in range(4):
                        dS[s, m, c] = NOTHING

    # A block owns K_j and V_j of one head, and the query heads that share them. L is lse times log2 e, D = rowsum(dO o
    # O), tau2 is tau times log2 e. The grid is (tiles of keys, heads of K and V, batch).
    @cuda.jit(device=True, forceinline=True)
    def of_keys(Q, K, V, dO, L, delta, dQ, dK, dV, group, tau, tau2, before, after):
        K_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        V_tile = uint32(K_tile + KEYS_BYTES)
        keys_not_finite = shared_address(cuda.shared.array(1, uint32))
        q_len, kv_len = int32(Q.shape[2]), int32(K.shape[2])

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for chunk in range(thread_index(), int32(SHARED_STATS // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(K_tile + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()

        # Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers.
        dK_acc, dV_acc = cuda.local.array(SUMS, float32), cuda.local.array(SUMS, float32)
        dS = cuda.local.array(WEIGHTS, uint32)
        clear_all_sums(dK_acc, dV_acc)
        first_tile, count = tiles_seeing(block_index(), q_len, kv_len, before, after)
        if count > 0:
            first_key = int32(block_index() * BC)
            keys = int32(min(int32(BC), int32(kv_len - first_key)))
            first_kv = (head_index() * uint64(uint32(kv_len)) + uint64(uint32(first_key))) * uint64(D * STORED_BYTES)
            copy_tile(K_tile, BC, global_address(K) + first_kv, keys)
            copy_tile(V_tile, BC, global_address(V) + first_kv, keys)
            copy_rows(K_tile, Q, dO, L, delta, group, int32(0), first_tile, count)
            commit_copies()
            wait_for_all()
            found = cuda.syncthreads_or(copied_not_finite(K_tile, BC)) != 0
            if thread_index() == 0:
                store_word(keys_not_finite, uint32(found))
            if found and thread_index() < BC:
                move_not_finite(K_tile, V_tile, thread_index())
        step = int32(0)
        while step < int32(group * tiles_seeing(block_index(), q_len, kv_len, before, after)[1]):
            # Q_i and dO_i have come, and nobody reads dS any more, nor the tiles that the next copies overwrite. In a
            # tile with a row that does not see all keys, both must be finite: products of 0 are not.
            first_key = int32(block_index() * BC)
            first_tile, count = tiles_seeing(block_index(), q_len, kv_len, before, after)
            first_row = int32(int32(first_tile + int32(remainder(uint32(step), uint32(count)))) * BR)
            last_row = int32(min(int32(first_row + BR), q_len) - 1)
            stage = uint32(step) % uint32(STAGES)
            Q_tile = uint32(K_tile + ROW_TILES + stage * uint32(2 * ROWS_BYTES))
            L_tile = uint32(K_tile + SHARED_STATS + stage * uint32(STATS_BYTES))
            seen_from = first_seen(last_row, q_len, kv_len, before)
            seen_to = end_seen(first_row, q_len, kv_len, after)
            wait_for_all()
            if first_key < seen_from or int32(first_key + BC) > seen_to:
                dO_tile = uint32(Q_tile + ROWS_BYTES)
                if cuda.syncthreads_or(copied_not_finite(Q_tile, BR) | copied_not_finite(dO_tile, BR)) != 0:
                    r = thread_index()
                    if r < BR:
                        in_Q, in_dO = clear_not_finite(Q_tile, r), clear_not_finite(dO_tile, r)
                        if in_Q or in_dO:
                            store_word(L_tile + uint32(r) * uint32(FLOAT_BYTES), NOT_A_NUMBER)
                    cuda.syncthreads()
            else:
                cuda.syncthreads()
            if int32(step + 1) < int32(group * count):
                copy_rows(K_tile, Q, dO, L, delta, group, int32(step + 1), first_tile, count)
            commit_copies()

            end = unknown(int32(BR)) if BR > ROWS_AT_ONCE else int32(BR)
            for above in range(int32(0), end, int32(ROWS_AT_ONCE)):
                # Rows of the tile from `above` on, with the warp's keys.
                visit_rows(
                    dK_acc, dV_acc, dS, K_tile, Q_tile, L_tile, above, first_key, first_row, keys_not_finite, q_len,
                    kv_len, tau2, before, after,
                )  # fmt: skip
                if SUMS_DQ and first_step_of(thread_index()) == 0:
                    store_dSt(uint32(K_tile + DS_TILE), dS, first_key_of(thread_index()), above)
            if SUMS_DQ:
                # Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
                cuda.syncthreads()
                count = tiles_seeing(block_index(), q_len, kv_len, before, after)[1]
                head = head_index() * uint64(uint32(group)) + uint64(quotient(uint32(step), uint32(count)))
                fragments = head * uint64(uint32(q_len + 15) >> uint32(4)) * uint64(DQ_TILES)
                of_head = dQ + fragments * uint64(FRAGMENT * FLOAT_BYTES)
                add_dS_K(of_head, uint32(K_tile + DS_TILE), K_tile, first_row, q_len)
            step = int32(step + 1)

        # Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        cuda.syncthreads()
        gather(K_tile, dK_acc, tau)
        gather(V_tile, dV_acc, ONE)
        cuda.syncthreads()
        first_key = int32(block_index() * BC)
        keys = int32(min(int32(BC), int32(kv_len - first_key)))
        first_kv = (head_index() * uint64(uint32(kv_len)) + uint64(uint32(first_key))) * uint64(D * STORED_BYTES)
        store_tile(global_address(dK) + first_kv, K_tile, keys)
        store_tile(global_address(dV) + first_kv, V_tile, keys)

    if SUMS_DQ:

        @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
        def bwd_mma_of_keys(Q, K, V, dO, L, delta, dQ, dK, dV, group, tau, tau2, before, after):
            of_keys(Q, K, V, dO, L, delta, global_address(dQ), dK, dV, group, tau, tau2, before, after)

    else:

        @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
        def bwd_mma_of_keys(Q, K, V, dO, L, delta, dK, dV, group, tau, tau2, before, after):
            of_keys(Q, K, V, dO, L, delta, uint64(0), dK, dV, group, tau, tau2, before, after)

    return bwd_mma_of_keys
