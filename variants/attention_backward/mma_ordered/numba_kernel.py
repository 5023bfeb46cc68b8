"""dQ on tensor cores, where a block owns rows: line 15 of Dao 2023, arXiv 2307.08691, algorithm 2.

Keys pass by, as in the forward pass. What keeps registers free is what fa2_mma does. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from harness import Problem
from variants._features import has_spans
from variants._features.numba_dropout import numba_dropout
from variants._features.numba_dropout_fragments import kept_in_rows
from variants._mma import MmaTile
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    chunks_further,
    commit_copies,
    copy_async,
    exp2_approx,
    global_address,
    lane_index,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    shared_address,
    store_shared,
    swizzled,
    thread_index,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward.numba_limits import numba_limits, own_key
from variants._mma_backward.numba_not_finite import numba_not_finite
from variants._mma_backward.numba_products import NOTHING, ZERO
from variants._mma_backward.numba_shares import FLOAT_BYTES
from variants._tiles.numba_grids import head_index_across

KEYS_AT_ONCE = 32  # of which S and dP are in registers
TN = KEYS_AT_ONCE // 8
NOTHINGS = (NOTHING, NOTHING, NOTHING, NOTHING)
load_word, store_word, store_chunk, copy_word = load_shared(4), store_shared(4), store_shared(16), copy_async(4)


@cuda.jit(device=True, forceinline=True)
def keys_seen_in_band(seen, row, key):
    own = int32(own_key(seen, row) - key)
    return int32(own - seen.before), int32(min(int32(own + seen.after + 1), int32(seen.kv_len - key)))


def keys_seen_of(spans: bool) -> Any:
    """`keys_seen` of `Spans` or `Band`: the first key that a row sees of those from `key` on, and their end."""
    if not spans:
        return keys_seen_in_band
    limits = numba_limits(True, 0)
    first, end = limits.first, limits.end

    @cuda.jit(device=True, forceinline=True)
    def keys_seen(seen, row, key):
        return int32(first(seen, row) - key), int32(end(seen, row) - key)

    return keys_seen


def rows_kernel(problem: Problem, tile: MmaTile) -> Any:
    """The kernel `bwd_mma_of_rows`."""
    return _rows_kernel(problem.head_dim, tile, problem.dtype, has_spans(problem), problem.dropout > 0)


@functools.cache
def _rows_kernel(head_dim: int, tile: MmaTile, dtype: str, spans: bool, drops: bool) -> Any:
    D, BR, BC, WARPS, STAGES = head_dim, tile.Br, tile.Bc, tile.warps, tile.stages
    tiles, mma, clearing = numba_tiles(D, WARPS, dtype), numba_mma(dtype), numba_not_finite(D, dtype)
    THREADS, ROW_BYTES, copy_tile, store_tile = tiles.THREADS, tiles.ROW_BYTES, tiles.copy_tile, tiles.store_tile
    copied_not_finite, lane_in_A, lane_in_K = tiles.copied_not_finite, tiles.lane_in_A, tiles.lane_in_K
    multiply_add, packed, move_not_finite = mma.multiply_add, mma.packed, clearing.move_not_finite
    WARP_ROWS = BR // WARPS  # a warp owns so many rows of S, dP, dS and dQ_i from end to end
    TM = WARP_ROWS // 16
    limits_ = numba_limits(spans, BR)
    limits_of_block, first_seen, end_seen, keys_seen = limits_.of_block, limits_.first, limits_.end, keys_seen_of(spans)
    STEPS = -(-D // 16)
    ROWS_BYTES = BR * ROW_BYTES  # of Q_i, and of dO_i
    KV_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    SHARED_STATS = 2 * ROWS_BYTES + STAGES * 2 * KV_BYTES  # where L_i and D_i begin
    kept, dropout_ = kept_in_rows(drops, TM, TN), numba_dropout(drops)
    MARKS, draw, minus, of_head, factor = kept.MARKS, kept.draw, kept.minus, dropout_.of_head, dropout_.factor
    wait_for_rows, wait_for_oldest = wait_for_copies(STAGES - 1), wait_for_copies(STAGES - 2)

    # In the layout of C: rows g and g + 8 of each tile of 16 are h = 0 and 1, with two neighbouring columns each.
    SCORES, SUMS = (TM, TN, 4), (TM, 2 * STEPS, 4)

    @cuda.jit(device=True, forceinline=True)
    def multiply_A_Bt_step(k, X, A_lane, B_lane):
        a = cuda.local.array((TM, 4), uint32)
        for i in range(TM):
            a[i, 0], a[i, 1], a[i, 2], a[i, 3] = load_matrices(chunks_further(A_lane, 2 * k) + i * 16 * ROW_BYTES)
        for j in range(0, TN, 2):
            b0, b1, b2, b3 = load_matrices(chunks_further(B_lane, 2 * k) + j * 8 * ROW_BYTES)
            for i in range(TM):
                multiply_add(X, i, j, a[i], b0, b1)
                multiply_add(X, i, j + 1, a[i], b2, b3)

    multiply_A_Bt_steps = unrolled(STEPS, multiply_A_Bt_step)

    # X = A B^T over D elements, for the warp's rows and KEYS_AT_ONCE keys: S = Q_i K_j^T, dP = dO_i V_j^T.
    @cuda.jit(device=True, forceinline=True)
    def multiply_A_Bt(X, A_lane, B_lane):
        for i in range(TM):
            for j in range(TN):
                for c in range(4):
                    X[i, j, c] = ZERO
        multiply_A_Bt_steps(X, A_lane, B_lane)

    # dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. The
    # warp's first row is `row`, the first key in dS `key`.
    @cuda.jit(device=True, forceinline=True)
    def mask(dS, seen, row, key):
        column = int32((int32(lane_index()) & 3) * 2)  # the lane's first key
        for i in range(TM):
            for h in range(2):
                first, end = keys_seen(seen, int32(row + (16 * i + 8 * h) + int32(lane_index() >> uint32(2))), key)
                first, end = int32(first - column), int32(end - column)
                for j in range(TN):
                    for e in range(2):
                        if 8 * j + e < first or 8 * j + e >= end:
                            dS[i, j, 2 * h + e] = ZERO

    @cuda.jit(device=True, forceinline=True)
    def add_step(k, dQ, ds, K_lane):
        k0, k1, k2, k3 = load_matrices_transposed(chunks_further(K_lane, 2 * k))
        for i in range(TM):
            multiply_add(dQ, i, 2 * k, ds[i], k0, k1)
            multiply_add(dQ, i, 2 * k + 1, ds[i], k2, k3)

    add_steps = unrolled(STEPS, add_step)

    @cuda.jit(device=True, forceinline=True)
    def add_16_keys(s, dQ, dS, K_lane):
        ds = cuda.local.array((TM, 4), uint32)
        for i in range(TM):
            for j in range(2):
                for h in range(2):
                    ds[i, 2 * j + h] = packed(dS[i, 2 * s + j, 2 * h], dS[i, 2 * s + j, 2 * h + 1])
        add_steps(dQ, ds, uint32(K_lane + s * 16 * ROW_BYTES))

    # dQ_i += dS K_j over KEYS_AT_ONCE keys.
    add_dS_K = unrolled(TN // 2, add_16_keys)

    # Lines 11 and 14: P = exp(tau S - L_i), dS = P o (dP - D_i), in the place of dP, which is 0 where the weight drops
    # out.
    @cuda.jit(device=True, forceinline=True)
    def gradients_of_8_keys(j, dS, S, L, delta, tau2, growth, marks):
        for i in range(TM):
            for h in range(2):
                for c in range(2):
                    P = exp2_approx(libdevice.fmaf(S[i, j, 2 * h + c], tau2, -L[i, h]))
                    dP = dS[i, j, 2 * h + c]
                    dS[i, j, 2 * h + c] = P * minus(dP, delta[i, h], growth, marks, i, h, j, c)

    multiply_P = unrolled(TN, gradients_of_8_keys)

    @cuda.jit(device=True, forceinline=True)
    def clear(j, dQ):
        for i in range(TM):
            for c in range(4):
                dQ[i, j, c] = ZERO

    @cuda.jit(device=True, forceinline=True)
    def gather_8_columns(j, dQ, first_of_lane, Q_tile, tau):
        for i in range(TM):
            for h in range(2):
                at = Q_tile + swizzled(ROW_BYTES, uint32(first_of_lane + 16 * i + 8 * h), j) + (lane_index() & 3) * 4
                store_word(at, packed(tau * dQ[i, j, 2 * h], tau * dQ[i, j, 2 * h + 1]))

    clear_all, gather = unrolled(2 * STEPS, clear), unrolled(2 * STEPS, gather_8_columns)

    # The warp's first row in the block.
    @cuda.jit(device=True, forceinline=True)
    def first_of_warp():
        return int32(uint32(thread_index()) // uint32(32) * uint32(WARP_ROWS))

    # K_j and V_j of the tile that begins at `first_key` -> a stage, if the block's rows see any of it.
    @cuda.jit(device=True, forceinline=True)
    def copy_keys(K_tile, K_head, V_head, first_key, end_key, kv_len):
        if first_key < end_key:
            first, keys = uint64(first_key) * uint64(D * STORED_BYTES), int32(kv_len - first_key)
            copy_tile(K_tile, BC, K_head + first, keys)
            copy_tile(uint32(K_tile + KV_BYTES), BC, V_head + first, keys)
        commit_copies()

    @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
    def bwd_mma_of_rows(Q, K, V, dO, L, delta, dQ, q_len, kv_len, group, tau, tau2, limits, dropout):
        Q_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        KV_tiles, L_tile = uint32(Q_tile + 2 * ROWS_BYTES), uint32(Q_tile + SHARED_STATS)

        # The block owns Q_i, dO_i and dQ_i of one head. The last rows, which see most keys where causal, of all heads
        # start first.
        first_row = int32((cuda.gridDim.y - 1 - cuda.blockIdx.y) * BR)
        rows = int32(min(int32(BR), int32(q_len - first_row)))
        first = uint64(head_index_across()) * uint64(q_len) + uint64(first_row)
        kv_heads, kv_head = uint32(cuda.gridDim.x) // uint32(group), uint32(cuda.blockIdx.x) // uint32(group)
        of_kv_head = (uint64(cuda.blockIdx.z) * uint64(kv_heads) + uint64(kv_head)) * uint64(kv_len)
        kv_first = of_kv_head * uint64(D * STORED_BYTES)
        K_head, V_head = global_address(K) + kv_first, global_address(V) + kv_first

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for chunk in range(thread_index(), int32(SHARED_STATS // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(Q_tile + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()

        last_row = int32(first_row + rows - 1)
        seen = limits_of_block(limits, cuda.blockIdx.z, first_row, rows, q_len, kv_len)
        first_key = int32(uint32(first_seen(seen, first_row)) // uint32(BC) * uint32(BC))
        end_key = end_seen(seen, last_row)
        copy_tile(Q_tile, BR, global_address(Q) + first * uint64(D * STORED_BYTES), rows)
        copy_tile(uint32(Q_tile + ROWS_BYTES), BR, global_address(dO) + first * uint64(D * STORED_BYTES), rows)
        for start in range(0, BR, THREADS):
            r = int32(start + thread_index())
            if r < BR:
                to, of_row = L_tile + uint32(r) * uint32(FLOAT_BYTES), (first + uint64(r)) * uint64(FLOAT_BYTES)
                copy_word(to, global_address(L) + of_row, r < rows)
                copy_word(uint32(to + BR * FLOAT_BYTES), global_address(delta) + of_row, r < rows)
        commit_copies()
        for j in range(STAGES - 1):
            K_tile = uint32(KV_tiles + j * 2 * KV_BYTES)
            copy_keys(K_tile, K_head, V_head, int32(first_key + j * BC), end_key, kv_len)
        wait_for_rows()
        cuda.syncthreads()

        L_i, D_i = cuda.local.array((TM, 2), float32), cuda.local.array((TM, 2), float32)
        dQ_acc = cuda.local.array(SUMS, float32)
        clear_all(dQ_acc)
        for i in range(TM):
            for h in range(2):
                row = uint32(first_of_warp() + 16 * i + 8 * h) + (lane_index() >> uint32(2))
                at = uint32(L_tile + row * uint32(FLOAT_BYTES))
                L_i[i, h] = libdevice.int_as_float(int32(load_word(at)))
                D_i[i, h] = libdevice.int_as_float(int32(load_word(uint32(at + BR * FLOAT_BYTES))))

        stage = uint32(0)
        while first_key < end_key:
            # K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. In a tile with
            # keys that only some rows see, K_j must be finite, for products of 0 are not: V_j has a NaN in its place,
            # which dP = dO_i V_j^T brings to those who see the key.
            K_tile = uint32(KV_tiles + stage * uint32(2 * KV_BYTES))
            V_tile = uint32(K_tile + KV_BYTES)
            # Every row of the block sees the keys from its last row's first to its first row's end.
            top = unknown(first_row)
            bottom = int32(min(int32(top + BR), q_len) - 1)
            seen_from, seen_to = first_seen(seen, bottom), end_seen(seen, top)
            wait_for_oldest()
            if first_key < seen_from or int32(first_key + BC) > seen_to:
                if cuda.syncthreads_or(copied_not_finite(K_tile, BC)) != 0:
                    if thread_index() < BC:
                        move_not_finite(K_tile, V_tile, thread_index())
                    cuda.syncthreads()
            else:
                cuda.syncthreads()
            free_tile = uint32(KV_tiles + uint32(stage - 1 if stage > 0 else STAGES - 1) * uint32(2 * KV_BYTES))
            copy_keys(free_tile, K_head, V_head, int32(first_key + (STAGES - 1) * BC), end_key, kv_len)

            end = unknown(int32(BC)) if BC > KEYS_AT_ONCE else int32(BC)
            for beyond in range(int32(0), end, int32(KEYS_AT_ONCE)):
                key, warp_row = int32(first_key + beyond), int32(first_row + first_of_warp())
                warps_last = int32(min(int32(warp_row + WARP_ROWS), q_len) - 1)
                warps_first_key = first_seen(seen, warp_row)
                warps_end_key = end_seen(seen, warps_last)
                if key < warps_end_key and int32(key + KEYS_AT_ONCE) > warps_first_key:
                    warp_sees_from = first_seen(seen, warps_last)
                    warp_sees_to = end_seen(seen, warp_row)
                    S, dS = cuda.local.array(SCORES, float32), cuda.local.array(SCORES, float32)
                    Q_lane = uint32(Q_tile + uint32(first_of_warp()) * uint32(ROW_BYTES) + lane_in_A())
                    K_lane = uint32(K_tile + uint32(beyond) * uint32(ROW_BYTES))
                    # Line 10: S = Q_i K_j^T. Line 13: dP = dO_i V_j^T. Lines 11 and 14.
                    multiply_A_Bt(S, Q_lane, uint32(K_lane + lane_in_K()))
                    multiply_A_Bt(dS, uint32(Q_lane + ROWS_BYTES), uint32(K_lane + KV_BYTES + lane_in_K()))
                    marks = cuda.local.array(MARKS, uint32)
                    draw(marks, 0, of_head(dropout, cuda.blockIdx.x, cuda.blockIdx.z), warp_row, key)
                    multiply_P(dS, S, L_i, D_i, tau2, factor(dropout), marks)
                    if key < warp_sees_from or int32(key + KEYS_AT_ONCE) > warp_sees_to:
                        mask(dS, seen, warp_row, key)
                    # Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
                    add_dS_K(dQ_acc, dS, uint32(K_lane + lane_in_A()))
            first_key, stage = int32(first_key + BC), uint32(stage + 1 if stage < STAGES - 1 else 0)

        # Write dQ_i, which is times tau, gathered where Q_i was: each warp has read its own rows of that alone.
        first_of_lane = int32(first_of_warp() + int32(lane_index() >> 2))
        gather(dQ_acc, first_of_lane, Q_tile, tau)
        cuda.syncthreads()
        store_tile(global_address(dQ) + first * uint64(D * STORED_BYTES), Q_tile, rows)

    return bwd_mma_of_rows
