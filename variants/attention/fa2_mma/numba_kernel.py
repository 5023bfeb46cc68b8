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
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_features import NumbaFeatures
from variants._mma import MmaTile
from variants._mma.numba_band import BAND, key_of_row
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    LN_2,
    LOG2_E,
    MINUS_INFINITY,
    commit_copies,
    exp2_approx,
    lane_index,
    load_shared,
    numba_mma,
    quad_sum,
    shared_address,
    store_shared,
    swizzled,
    thread_index,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_spans import numba_spans
from variants._mma.numba_strided_tiles import layout_tiles
from variants._mma.numba_tiles import STORED_BYTES
from variants._tiles.numba_grids import entry_of_head, head_index_across, head_of_entry
from variants.attention.fa2_mma.numba_products import numba_products
from variants.attention.fa2_mma.numba_scoring import numba_scoring

ZERO = np.float32(0)
ONE = np.float32(1)
SIGNS = 0x80008000  # of two elements
NOTHINGS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
load_word, store_word, store_chunk = load_shared(4), store_shared(4), store_shared(16)


@functools.cache
def fa2_mma_kernel(
    head_dim: int,
    v_width: int,
    tile: MmaTile,
    dtype: str,
    spans: bool,
    terms: tuple[str, ...],
    features: NumbaFeatures,
    aligned: int | None,
) -> Any:
    """The kernel for these compile-time parameters.

    `spans`: its limits are arrays; `terms`: features of scores that it computes; `aligned` as of `layout_tiles`.
    """
    D, DV, BR, BC, WARPS, STAGES = head_dim, v_width, tile.Br, tile.Bc, tile.warps, tile.stages
    tiles, tiles_of_V = (layout_tiles(width, WARPS, dtype, aligned, features.varlen) for width in (D, DV))
    THREADS, ROW_BYTES, V_ROW_BYTES = tiles.THREADS, tiles.ROW_BYTES, tiles_of_V.ROW_BYTES
    copy_tile, lane_in_A, rows_of, stride_of = tiles.copy_tile, tiles.lane_in_A, tiles.rows_of, tiles.stride_of
    copy_V_tile, store_O_tile = tiles_of_V.copy_tile, tiles_of_V.store_tile
    copied_not_finite, lane_in_V, stride_of_V = tiles_of_V.copied_not_finite, tiles_of_V.lane_in_A, tiles_of_V.stride_of
    seen = numba_spans(BR, BR // WARPS) if spans else BAND
    products = numba_products(D, DV, tile, dtype, spans, features)
    TM, TN, TD, TK, KEPT = products.TM, products.TN, products.TD, products.TK, products.KEPT
    Q_CHUNKS = 2 * products.STEPS  # per row
    WARP_ROWS, MARKS, ROOM = products.WARP_ROWS, products.MARKS, max(KEPT, 1)  # no array is empty
    load_q, multiply_Q_Kt, mask = products.load_q, products.multiply_Q_Kt, products.mask
    raise_maximum, add_P_V_where_seen = products.raise_maximum, products.add_P_V_where_seen
    exponentiate_all, exponentiate_and_add_all = products.exponentiate_all, products.exponentiate_and_add_all
    seen_by_warp = products.seen_by_warp
    scoring_of_head, finish_scores = numba_scoring(TM, TN, key_of_row, terms)
    logit, SINKS, factor_of = features.sink.logit, features.sink.WEIGHT > 0, features.dropout.factor
    # Whether limits of the warp's rows, unless they are read, are computed anew for each tile, for want of registers.
    CROWDED = features.dropout.DROPS or DV > D or aligned is not None
    Q_BYTES = BR * max(ROW_BYTES, V_ROW_BYTES)  # of Q_i, and later O_i
    K_BYTES, V_BYTES = BC * ROW_BYTES, BC * V_ROW_BYTES
    KV_BYTES = K_BYTES + V_BYTES  # of a stage
    CHUNKS = (Q_BYTES + STAGES * KV_BYTES) // CHUNK_BYTES  # of all tiles

    first_seen, end_seen, keep_limits, place_of = seen.first_seen, seen.end_seen, seen.keep_limits, seen.place_of
    row_block, mma = seen.row_block, numba_mma(dtype)
    packed, unpacked = mma.packed, mma.unpacked
    sequence_at, has_rows, row_in_Q, key_in_K, number_of, entry_of = features.sequences
    wait_for_Q, wait_for_oldest, wait_for_all = (wait_for_copies(n) for n in (STAGES - 1, STAGES - 2, 0))

    # K_j and V_j of the tile that begins at `first_key` -> a stage, if the block's rows see any of it.
    @cuda.jit(device=True, forceinline=True)
    def copy_keys(K_tile, K_head, V_head, K_stride, V_stride, first_key, end_key, kv_len):
        if first_key < end_key:
            K_first, V_first = uint64(first_key) * K_stride, uint64(first_key) * V_stride
            keys = int32(kv_len - first_key)
            copy_tile(K_tile, BC, K_head + K_first, K_stride, keys)
            copy_V_tile(uint32(K_tile + K_BYTES), BC, V_head + V_first, V_stride, keys)
        commit_copies()

    # tau2 is positive: Q_i takes the sign of tau, or becomes 0.
    @cuda.jit(device=True, forceinline=True)
    def give_sign(Q_tile, sign):
        for t in range(thread_index(), int32(BR * Q_CHUNKS * 4), int32(cuda.blockDim.x)):
            e = uint32(t)
            at = Q_tile + swizzled(ROW_BYTES, e // uint32(Q_CHUNKS * 4), (e >> 2) % uint32(Q_CHUNKS)) + (e & 3) * 4
            both = load_word(at)
            low, high = unpacked(both)
            store_word(at, both ^ SIGNS if sign < 0 else packed(ZERO * low, ZERO * high))

    # Lines 8 to 10 for the warp's rows and one tile of keys. Only where `masked` is looked at which of the tile's keys
    # rows see, from `keys` to `after`, and at `poisoned`, whether V holds NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def visit_tile(
        O, m, l, Q_kept, Q_lane, K_tile, V_tile, tau2, scoring, own_key, masked,
        keys, place, before, after, poisoned, draw, warp_row, first_key, heads,
    ):  # fmt: skip
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
            V_lane = V_tile + lane_in_V()
            exponentiate_and_add_all(O, P, m, l, S, unit, marks, draw, warp_row, first_key, heads, V_lane)

    # Of `layout` there is nothing to ask: arrays know their strides.
    @cuda.jit(launch_bounds=(THREADS, tile.blocks_per_sm))
    def fa2_mma(
        Q, K, V, O, lse, q_len, kv_len, heads, group, tau2, sign, limits, row_order, tile_order, scores, sink, dropout,
        sequences, layout,
    ):  # fmt: skip
        Q_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        KV_tiles = uint32(Q_tile + Q_BYTES)  # K_j, V_j of one stage, then of the next
        first_of_warp = int32(uint32(thread_index()) // uint32(32) * uint32(WARP_ROWS))  # row of the block

        # Line 3: the block owns Q_i and O_i of one head.
        first_row = int32(row_block(row_order) * BR)
        own = sequence_at(sequences, entry_of_head(heads), first_row, q_len, kv_len)
        if not has_rows(own):
            return
        rows = int32(min(BR, own.q_len - first_row))
        head_number = number_of(own, head_index_across(), head_of_entry(heads))
        first = uint64(head_number) * uint64(q_len) + uint64(row_in_Q(own, first_row))
        first_key_of_head = uint64(head_number // uint32(group)) * uint64(kv_len) + uint64(key_in_K(own, 0))
        K_head = rows_of(K, first_key_of_head * uint64(D * STORED_BYTES), heads, group, key_in_K(own, 0))
        V_head = rows_of(V, first_key_of_head * uint64(DV * STORED_BYTES), heads, group, key_in_K(own, 0))
        q_len, kv_len = own.q_len, own.kv_len
        K_stride, V_stride = stride_of(K), stride_of_V(V)

        # Columns beyond D, or DV, belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0 or DV % 16 != 0:
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
        Q_rows = rows_of(Q, first * uint64(D * STORED_BYTES), heads, 1, row_in_Q(own, first_row))
        copy_tile(Q_tile, BR, Q_rows, stride_of(Q), rows)
        commit_copies()
        for j in range(STAGES - 1):
            K_tile = uint32(KV_tiles + j * KV_BYTES)
            copy_keys(K_tile, K_head, V_head, K_stride, V_stride, int32(first_key + j * BC), end_key, kv_len)
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

        warp_row = first_warp_row = int32(first_row + first_of_warp)
        warps_last, warps_first_key, warps_end_key = seen_by_warp(warp_row, q_len, kv_len, before, after)
        stage = uint32(0)
        while first_key < end_key:
            # Line 7: K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. In a
            # tile that holds keys which only some rows see, V_j must be finite, or products are not enough.
            K_tile = uint32(KV_tiles + stage * uint32(KV_BYTES))
            V_tile = uint32(K_tile + K_BYTES)
            wait_for_oldest()
            poisoned = False
            # Every row of the block, or of the warp, sees the keys from its last row's first to its first row's end.
            # Spans are read for each tile, which takes fewer registers; a band's are computed ahead of the loop.
            seen_from = first_seen(last_row, q_len, kv_len, before)
            seen_to = end_seen(first_row, q_len, kv_len, after)
            if first_key < seen_from or (int32(first_key + BC) > seen_to and seen_to < kv_len):
                poisoned = cuda.syncthreads_or(copied_not_finite(V_tile, BC)) != 0
            else:
                cuda.syncthreads()
            free_tile = uint32(KV_tiles + uint32(stage - 1 if stage > 0 else STAGES - 1) * uint32(KV_BYTES))
            ahead = int32(first_key + (STAGES - 1) * BC)
            copy_keys(free_tile, K_head, V_head, K_stride, V_stride, ahead, end_key, kv_len)

            if not spans:
                warp_row = unknown(first_warp_row) if CROWDED else first_warp_row
                warps_last, warps_first_key, warps_end_key = seen_by_warp(warp_row, q_len, kv_len, before, after)
            if first_key < warps_end_key and int32(first_key + BC) > warps_first_key:
                warp_sees_from = first_seen(warps_last, q_len, kv_len, before)
                warp_sees_to = end_seen(warp_row, q_len, kv_len, after)
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
                    at = Q_tile + swizzled(V_ROW_BYTES, row, j) + column * uint32(4)
                    store_word(at, packed(O_i[i, j, 2 * h] * inverse, O_i[i, j, 2 * h + 1] * inverse))
                if column == 0:
                    L = m_row * LN_2 + libdevice.logf(total)
                    store_word(KV_tiles + row * uint32(4), uint32(libdevice.float_as_int(L)))
        cuda.syncthreads()

        # Lines 14 and 15: write O_i and L_i.
        O_rows = rows_of(O, first * uint64(DV * STORED_BYTES), heads, 1, row_in_Q(own, first_row))
        store_O_tile(O_rows, stride_of_V(O), Q_tile, rows)
        if thread < rows:
            L = libdevice.int_as_float(int32(load_word(KV_tiles + thread * 4)))
            lse[entry_of(own, entry_of_head(heads)), head_of_entry(heads), row_in_Q(own, first_row) + thread] = L

    return fa2_mma
