"""FlashAttention-2, forward pass, on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the
paper's.

The CUDA twin is kernel.cu. Instructions that Numba has no name for are intrinsics, see _mma/numba_assembly.py.

Registers are scarce here, and three habits save them:

- A local array stays in registers while every index of it is a constant, so loops over one have a constant length, and
  those that are too long for libNVVM to unroll by itself are `unrolled`. Loops that are to stay loops step by
  blockDim.x or end at a number that the compiler does not know.
- Numba computes in 64 bits; int32 and uint32 keep what lives long in one register instead of two. (What is neither,
  uint64 + int64, is float64 to Numba: right, but slow.)
- What follows from the thread's index is computed where it is needed, see `thread_index`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import boolean, cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_dropout_fragments import kept_in_rows
from variants._features.numba_features import NumbaFeatures
from variants._mma import MmaTile
from variants._mma.numba_band import BAND, key_of_row
from variants._mma.numba_mma import (
    ALL_LANES,
    CHUNK_BYTES,
    LN_2,
    LOG2_E,
    MINUS_INFINITY,
    chunks_further,
    commit_copies,
    exp2_approx,
    global_address,
    lane_index,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    quad_max,
    quad_sum,
    shared_address,
    store_shared,
    swizzled,
    thread_index,
    wait_for_copies,
)
from variants._mma.numba_spans import numba_spans
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._tiles.numba_grids import entry_of_head, head_index_across, head_of_entry
from variants.attention.fa2_mma.numba_scoring import numba_scoring

ZERO = np.float32(0)
ONE = np.float32(1)
SIGNS = 0x80008000  # of two elements
NOTHINGS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
load_word, store_word, store_chunk = load_shared(4), store_shared(4), store_shared(16)

# m follows the maximum of S once that is more than a factor of 2^SLACK of weight ahead: O_i is seldom rescaled then,
# and whatever m is, it cancels in O_i / l_i. Sums are at most 2^SLACK times as large as with the maximum itself.
SLACK = np.float32(2)
# What S, O_i and the kept part of Q_i may take of a thread's 255 registers.
KEPT_REGISTERS = 160
# The same where weights drop out, of which some are drawn at once.
BESIDE_DROPOUT = 152


@functools.cache
def fa2_mma_kernel(
    head_dim: int, tile: MmaTile, dtype: str, spans: bool, terms: tuple[str, ...], features: NumbaFeatures
) -> Any:
    """The kernel for these compile-time parameters.

    `spans`: its limits are arrays; `terms`: features of scores that it computes.
    """
    D, BR, BC, WARPS, STAGES = head_dim, tile.Br, tile.Bc, tile.warps, tile.stages
    tiles = numba_tiles(D, WARPS, dtype)
    THREADS, ROW_BYTES = tiles.THREADS, tiles.ROW_BYTES
    copy_tile, copied_not_finite, store_tile = tiles.copy_tile, tiles.copied_not_finite, tiles.store_tile
    lane_in_A, lane_in_K = tiles.lane_in_A, tiles.lane_in_K
    WARP_ROWS = BR // WARPS  # a warp owns so many rows of Q_i, S, P and O_i from end to end
    TM = WARP_ROWS // 16  # tiles of 16 rows
    TN = BC // 8  # tiles of 8 keys
    scoring_of_head, finish_scores = numba_scoring(TM, TN, key_of_row, terms)
    logit, SINKS, factor_of = features.sink.logit, features.sink.WEIGHT > 0, features.dropout.factor
    DROPOUT = features.dropout.DROPS
    kept, dropout_of_head = kept_in_rows(DROPOUT, TM, TN), features.dropout.of_head
    MARKS, draw_kept, kept_both = kept.MARKS, kept.draw, kept.both
    TK = BC // 16  # steps of 16 keys in which P V is summed
    STEPS = -(-D // 16)  # of 16 elements in which Q K^T is summed; zeros fill the last
    TD = 2 * STEPS  # tiles of 8 elements of O
    KV_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    CHUNKS = (BR * ROW_BYTES + STAGES * 2 * KV_BYTES) // CHUNK_BYTES  # of all tiles

    # As many steps of Q_i stay in registers as have room beside S and O_i; the others are read anew for every tile of
    # keys.
    KEPT = min(max(((BESIDE_DROPOUT if DROPOUT else KEPT_REGISTERS) - TM * 4 * (TN + TD)) // (TM * 4), 0), STEPS)
    ROOM = max(KEPT, 1)  # no array is empty

    seen = numba_spans(BR, WARP_ROWS) if spans else BAND
    first_seen, end_seen, keep_limits, place_of = seen.first_seen, seen.end_seen, seen.keep_limits, seen.place_of
    first_of_row, end_of_row, row_block = seen.first_of_row, seen.end_of_row, seen.row_block
    mma = numba_mma(dtype)
    multiply_add, packed, unpacked = mma.multiply_add, mma.packed, mma.unpacked
    not_finite, finite_or_zero = mma.not_finite, mma.finite_or_zero
    wait_for_Q, wait_for_oldest, wait_for_all = (wait_for_copies(n) for n in (STAGES - 1, STAGES - 2, 0))

    # K_j and V_j of the tile that begins at `first_key` -> a stage, if the block's rows see any of it.
    @cuda.jit(device=True, forceinline=True)
    def copy_keys(K_tile, K_head, V_head, first_key, end_key, kv_len):
        if first_key < end_key:
            first, keys = uint64(first_key) * uint64(D * STORED_BYTES), int32(kv_len - first_key)
            copy_tile(K_tile, BC, K_head + first, keys)
            copy_tile(uint32(K_tile + KV_BYTES), BC, V_head + first, keys)
        commit_copies()

    # tau2 is positive: Q_i takes the sign of tau, or becomes 0.
    @cuda.jit(device=True, forceinline=True)
    def give_sign(Q_tile, sign):
        for t in range(thread_index(), int32(BR * TD * 4), int32(cuda.blockDim.x)):
            e = uint32(t)
            at = Q_tile + swizzled(ROW_BYTES, e // uint32(TD * 4), (e >> 2) % uint32(TD)) + (e & 3) * 4
            both = load_word(at)
            low, high = unpacked(both)
            store_word(at, both ^ SIGNS if sign < 0 else packed(ZERO * low, ZERO * high))

    # --- Products ----------------------------------------------------------------------------------------------------

    @cuda.jit(device=True, forceinline=True)
    def add_q_k(S, q, K_lane, k):
        for j in range(0, TN, 2):
            k0, k1, k2, k3 = load_matrices(chunks_further(K_lane, 2 * k) + j * 8 * ROW_BYTES)
            for i in range(TM):
                multiply_add(S, i, j, q[i], k0, k1)
                multiply_add(S, i, j + 1, q[i], k2, k3)

    @cuda.jit(device=True, forceinline=True)
    def load_q(q, Q_lane, k):
        for i in range(TM):
            q[i, 0], q[i, 1], q[i, 2], q[i, 3] = load_matrices(chunks_further(Q_lane, 2 * k) + i * 16 * ROW_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def add_kept_q_k(k, S, Q_kept, K_lane):
        add_q_k(S, Q_kept[k], K_lane, k)

    add_all_kept_q_k = unrolled(KEPT, add_kept_q_k)

    # Line 8: S = Q_i K_j^T for the warp's rows.
    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_kept, Q_lane, K_tile):
        K_lane = uint32(K_tile + lane_in_K())
        for i in range(TM):
            for j in range(TN):
                for c in range(4):
                    S[i, j, c] = ZERO
        add_all_kept_q_k(S, Q_kept, K_lane)
        q = cuda.local.array((TM, 4), uint32)
        for k in range(KEPT, STEPS):
            load_q(q, Q_lane, k)
            add_q_k(S, q, K_lane, k)

    # -inf where the row does not see the key: chosen, not added, so that NaN behind the mask stays there.
    @cuda.jit(device=True, forceinline=True)
    def mask(S, keys, place, before, after):
        column = int32((lane_index() & 3) * 2)  # the lane's first: both ends are counted from there
        for i in range(TM):
            for h in range(2):
                first = int32(first_of_row(place, before, i, h) - column)
                end = int32(end_of_row(place, after, keys, i, h) - column)
                for j in range(TN):
                    for c in range(2):
                        if 8 * j + c < first or 8 * j + c >= end:
                            S[i, j, 2 * h + c] = MINUS_INFINITY

    # Line 9, first half: m = max(m, rowmax(tau S)). Line 10, first half: O_i = diag(exp(m_old - m)) O_i, l_i likewise.
    @cuda.jit(device=True, forceinline=True)
    def raise_maximum(O, m, l, S, tau2):
        largest = cuda.local.array((TM, 2), float32)
        rises = False
        for i in range(TM):
            for h in range(2):
                x = max(S[i, 0, 2 * h], S[i, 0, 2 * h + 1])
                for j in range(1, TN):
                    x = max(x, max(S[i, j, 2 * h], S[i, j, 2 * h + 1]))
                largest[i, h] = tau2 * quad_max(x)
                rises |= largest[i, h] > m[i, h] + SLACK
        if cuda.any_sync(ALL_LANES, rises):
            for i in range(TM):
                for h in range(2):
                    m_new = max(m[i, h], largest[i, h])
                    correction = exp2_approx(m[i, h] - (ZERO if m_new == MINUS_INFINITY else m_new))
                    m[i, h] = m_new
                    l[i, h] *= correction
                    for j in range(TD):
                        O[i, j, 2 * h] *= correction
                        O[i, j, 2 * h + 1] *= correction

    # Line 9, second half, for keys 16 s to 16 s + 15: P[s] = exp(tau S - m), rounded to 16 bits, and l += rowsum(P),
    # not rounded. Where nothing was seen yet m = -inf, and (-inf) - (-inf) would be NaN. Dropout leaves l as it is.
    @cuda.jit(device=True, forceinline=True)
    def exponentiate(s, P, m, l, S, tau2, marks, draw, warp_row, first_key, heads):
        drawn = dropout_of_head(draw, head_of_entry(heads), entry_of_head(heads))
        draw_kept(marks, s, drawn, warp_row, first_key)
        for i in range(TM):
            for h in range(2):
                minus_m = ZERO if m[i, h] == MINUS_INFINITY else -m[i, h]
                for j in range(2):
                    low = exp2_approx(libdevice.fmaf(S[i, 2 * s + j, 2 * h], tau2, minus_m))
                    high = exp2_approx(libdevice.fmaf(S[i, 2 * s + j, 2 * h + 1], tau2, minus_m))
                    l[i, h] += low
                    l[i, h] += high
                    P[s, i, 2 * j + h] = kept_both(packed(low, high), marks, i, h, s, j)

    # Line 10, second half: O += P V over 16 keys, of which V_lane is in the first. Where not `finite`, what is NaN or
    # infinity in V counts as 0.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P, V_lane, finite):
        for j in range(0, TD, 2):
            v0, v1, v2, v3 = load_matrices_transposed(chunks_further(V_lane, j))
            if not finite:
                v0, v1, v2, v3 = finite_or_zero(v0), finite_or_zero(v1), finite_or_zero(v2), finite_or_zero(v3)
            for i in range(TM):
                multiply_add(O, i, j, P[i], v0, v1)
                multiply_add(O, i, j + 1, P[i], v2, v3)

    # 16 keys at a time: exponentials of the next are under way with the products of these.
    @cuda.jit(device=True, forceinline=True)
    def exponentiate_and_add(s, O, P, m, l, S, tau2, marks, draw, warp_row, first_key, heads, V_lane):
        exponentiate(s, P, m, l, S, tau2, marks, draw, warp_row, first_key, heads)
        add_P_V(O, P[s], V_lane + s * 16 * ROW_BYTES, True)

    exponentiate_all, exponentiate_and_add_all = unrolled(TK, exponentiate), unrolled(TK, exponentiate_and_add)

    # O += p v over the same keys for each v that is NaN or infinity, in rows that see its key.
    @cuda.jit(device=True, forceinline=True)
    def add_not_finite(O, P, V_tile, first_key, keys, place, before, after):
        lane = lane_index()
        p = cuda.local.array((TM, 2), float32)
        sees = cuda.local.array((TM, 2), boolean)
        for key in range(first_key, int32(min(first_key + 16, keys))):
            for i in range(TM):
                for h in range(2):
                    both = int32(P[i, 2 + h] if key & 8 else P[i, h])
                    source = int32((lane & uint32(28)) | uint32((key & 7) >> 1))
                    low, high = unpacked(uint32(cuda.shfl_sync(ALL_LANES, both, source)))
                    p[i, h] = high if key & 1 else low
                    sees[i, h] = first_of_row(place, before, i, h) <= key < end_of_row(place, after, keys, i, h)
            for j in range(TD):
                both = load_word(V_tile + swizzled(ROW_BYTES, uint32(key), j) + (lane & 3) * 4)
                if not_finite(both):
                    v0, v1 = unpacked(both)
                    for i in range(TM):
                        for h in range(2):
                            if sees[i, h] and not math.isfinite(v0):
                                O[i, j, 2 * h] += p[i, h] * v0
                            if sees[i, h] and not math.isfinite(v1):
                                O[i, j, 2 * h + 1] += p[i, h] * v1

    # O += P V where V holds NaN or infinity at keys that some rows do not see: a row must not even multiply such a
    # value by its zero weight. Rows that see none of them get the bits that they would get without.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_where_seen(O, P, V_tile, keys, place, before, after):
        for first_key in range(int32(0), int32(min(BC, keys)), int32(16)):
            add_P_V(O, P[0], V_tile + lane_in_A() + uint32(first_key) * uint32(ROW_BYTES), False)
            add_not_finite(O, P[0], V_tile, first_key, keys, place, before, after)
            # The next 16 keys move up: registers have no index at run time.
            for s in range(1, TK):
                for i in range(TM):
                    for c in range(4):
                        P[s - 1, i, c] = P[s, i, c]

    # Lines 8 to 10 for the warp's rows and one tile of keys. Only where `masked` is looked at which of the tile's keys
    # rows see, from `keys` to `after`, and at `poisoned`, whether V holds NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def visit_tile(
        O,
        m,
        l,
        Q_kept,
        Q_lane,
        K_tile,
        V_tile,
        tau2,
        scoring,
        own_key,
        masked,
        keys,
        place,
        before,
        after,
        poisoned,
        draw,
        warp_row,
        first_key,
        heads,
    ):
        marks = cuda.local.array(MARKS, uint32)
        S = cuda.local.array((TM, TN, 4), float32)
        P = cuda.local.array((TK, TM, 4), uint32)
        multiply_Q_Kt(S, Q_kept, Q_lane, K_tile)
        unit = finish_scores(S, tau2, scoring, warp_row, first_key, own_key)
        if masked:
            mask(S, keys, place, before, after)
        raise_maximum(O, m, l, S, unit)
        if masked and poisoned:
            exponentiate_all(P, m, l, S, unit, marks, draw, warp_row, first_key, heads)
            add_P_V_where_seen(O, P, V_tile, keys, place, before, after)
        else:
            V_lane = V_tile + lane_in_A()
            exponentiate_and_add_all(O, P, m, l, S, unit, marks, draw, warp_row, first_key, heads, V_lane)

    @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
    def fa2_mma(
        Q, K, V, O, lse, q_len, kv_len, heads, group, tau2, sign, limits, row_order, tile_order, scores, sink, dropout
    ):
        Q_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        KV_tiles = uint32(Q_tile + BR * ROW_BYTES)  # K_j, V_j of one stage, then of the next
        first_of_warp = int32(uint32(thread_index()) // uint32(32) * uint32(WARP_ROWS))  # row of the block

        # Line 3: the block owns Q_i and O_i of one head.
        first_row = int32(row_block(row_order) * BR)
        rows = int32(min(BR, q_len - first_row))
        first = (uint64(head_index_across()) * uint64(q_len) + uint64(first_row)) * uint64(D * STORED_BYTES)
        kv_first = uint64(head_index_across() // uint32(group)) * uint64(kv_len) * uint64(D * STORED_BYTES)
        K_head, V_head = global_address(K) + kv_first, global_address(V) + kv_first

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for chunk in range(thread_index(), int32(CHUNKS), int32(cuda.blockDim.x)):
                store_chunk(Q_tile + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()

        # Lines 6 and 7: all K_j, V_j of which a row of Q_i sees a key, STAGES - 1 of them ahead of their use. What a
        # row sees moves on with the row, so the first row's first key is the block's, and the last row's end is.
        last_row = int32(first_row + rows - 1)
        before, after = keep_limits(limits[0], limits[1], first_row, rows, q_len, kv_len)
        first_key = int32(uint32(first_seen(first_row, q_len, kv_len, before)) // uint32(BC) * uint32(BC))
        end_key = end_seen(last_row, q_len, kv_len, after)

        # Read ahead of a barrier: LLVM would put it into the loop, which a block that sees no key does not enter.
        scoring = scoring_of_head(scores, head_of_entry(heads), q_len, kv_len)

        # Line 4: load Q_i.
        copy_tile(Q_tile, BR, global_address(Q) + first, rows)
        commit_copies()
        for j in range(STAGES - 1):
            K_tile = uint32(KV_tiles + j * 2 * KV_BYTES)
            copy_keys(K_tile, K_head, V_head, int32(first_key + j * BC), end_key, kv_len)
        wait_for_Q()
        cuda.syncthreads()
        if sign != 1:
            give_sign(Q_tile, sign)
            cuda.syncthreads()
        Q_kept = cuda.local.array((ROOM, TM, 4), uint32)
        Q_lane = uint32(Q_tile + uint32(first_of_warp) * uint32(ROW_BYTES) + lane_in_A())
        for k in range(KEPT):
            load_q(Q_kept[k], Q_lane, k)

        # Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers.
        O_i = cuda.local.array((TM, TD, 4), float32)
        m = cuda.local.array((TM, 2), float32)
        l = cuda.local.array((TM, 2), float32)
        for i in range(TM):
            for h in range(2):
                m[i, h] = MINUS_INFINITY
                l[i, h] = ZERO
            for j in range(TD):
                for c in range(4):
                    O_i[i, j, c] = ZERO

        # Every row of the block, or of the warp, sees the keys from its last row's first to its first row's end.
        seen_from = first_seen(last_row, q_len, kv_len, before)
        seen_to = end_seen(first_row, q_len, kv_len, after)
        warp_row = int32(first_row + first_of_warp)
        warps_last = int32(min(warp_row + WARP_ROWS, q_len) - 1)
        warp_sees_from = first_seen(warps_last, q_len, kv_len, before)
        warp_sees_to = end_seen(warp_row, q_len, kv_len, after)
        warps_first_key = first_seen(warp_row, q_len, kv_len, before)
        warps_end_key = end_seen(warps_last, q_len, kv_len, after)
        stage = uint32(0)
        while first_key < end_key:
            # Line 7: K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. In a
            # tile that holds keys which only some rows see, V_j must be finite, or products are not enough.
            K_tile = uint32(KV_tiles + stage * uint32(2 * KV_BYTES))
            V_tile = uint32(K_tile + KV_BYTES)
            wait_for_oldest()
            poisoned = False
            if first_key < seen_from or (int32(first_key + BC) > seen_to and seen_to < kv_len):
                poisoned = cuda.syncthreads_or(copied_not_finite(V_tile, BC)) != 0
            else:
                cuda.syncthreads()
            free_tile = uint32(KV_tiles + uint32(stage - 1 if stage > 0 else STAGES - 1) * uint32(2 * KV_BYTES))
            copy_keys(free_tile, K_head, V_head, int32(first_key + (STAGES - 1) * BC), end_key, kv_len)

            if first_key < warps_end_key and int32(first_key + BC) > warps_first_key:
                masked = first_key < warp_sees_from or int32(first_key + BC) > warp_sees_to
                keys = int32(kv_len - first_key)
                place = place_of(warp_row, q_len, kv_len, first_key)
                visit_tile(
                    O_i, m, l, Q_kept, Q_lane, K_tile, V_tile, tau2, scoring, int32(warp_row - q_len + keys),
                    masked, keys, place, before, after, poisoned, dropout, warp_row, first_key, heads,
                )  # fmt: skip
            first_key, stage = int32(first_key + BC), uint32(stage + 1 if stage < STAGES - 1 else 0)

        # Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that saw nothing has l = 0: its O stays 0.
        # Line 13: L_i = m_i + log(l_i), which is -inf then, gathered where K_j was.
        # A sink is a key more, without a value: l_i = exp(m_i - m) l_i + exp(sink - m), m the larger of both.
        wait_for_all()
        cuda.syncthreads()
        sink2 = LOG2_E * logit(sink, head_of_entry(heads))
        thread, lane = thread_index(), lane_index()
        first_of_lane = uint32(uint32(thread) // uint32(32) * uint32(WARP_ROWS) + (lane >> uint32(2)))
        column = lane & uint32(3)
        for i in range(TM):
            for h in range(2):
                row = uint32(first_of_lane + uint32(16 * i + 8 * h))
                m_row, total, correction = m[i, h], quad_sum(l[i, h]), ONE
                if SINKS:
                    m_row = max(m_row, sink2)
                    minus_m = ZERO if m_row == MINUS_INFINITY else -m_row
                    correction = exp2_approx(m[i, h] + minus_m)
                    total = correction * total + exp2_approx(sink2 + minus_m)
                inverse = ZERO if total == ZERO else factor_of(dropout) * correction / total
                for j in range(TD):
                    at = Q_tile + swizzled(ROW_BYTES, row, j) + column * uint32(4)
                    store_word(at, packed(O_i[i, j, 2 * h] * inverse, O_i[i, j, 2 * h + 1] * inverse))
                if column == 0:
                    L = m_row * LN_2 + libdevice.logf(total)
                    store_word(KV_tiles + row * uint32(4), uint32(libdevice.float_as_int(L)))
        cuda.syncthreads()

        # Lines 14 and 15: write O_i and L_i.
        store_tile(global_address(O) + first, Q_tile, rows)
        if thread < rows:
            L = libdevice.int_as_float(int32(load_word(KV_tiles + thread * 4)))
            lse[entry_of_head(heads), head_of_entry(heads), first_row + thread] = L

    return fa2_mma
