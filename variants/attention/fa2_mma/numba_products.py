"""The products of fa2-mma and the online softmax between them.

Line numbers are those of numba_kernel.py, whose notes on registers hold here, too. The CUDA twin is products.cuh.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import numpy as np
from numba import boolean, cuda, float32, int32, uint32
from numba.cuda import libdevice

from variants._features.numba_dropout_fragments import kept_in_rows
from variants._features.numba_features import NumbaFeatures
from variants._mma import MmaTile
from variants._mma.numba_band import BAND
from variants._mma.numba_mma import (
    ALL_LANES,
    MINUS_INFINITY,
    chunks_further,
    exp2_approx,
    lane_index,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    quad_max,
    swizzled,
    unknown,
)
from variants._mma.numba_spans import numba_spans
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._tiles.numba_grids import entry_of_head, head_of_entry

ZERO = np.float32(0)
load_word = load_shared(4)

# m follows the maximum of S once that is more than a factor of 2^SLACK of weight ahead: O_i is seldom rescaled then,
# and whatever m is, it cancels in O_i / l_i. Sums are at most 2^SLACK times as large as with the maximum itself.
SLACK = np.float32(2)
# What S, O_i and the kept part of Q_i may take of a thread's 255 registers.
KEPT_REGISTERS = 160
# The same where weights drop out, of which some are drawn at once.
BESIDE_DROPOUT = 152


@functools.cache
def numba_products(
    head_dim: int, v_width: int, tile: MmaTile, dtype: str, spans: bool, features: NumbaFeatures
) -> SimpleNamespace:
    """Device functions for a warp's rows, and what a thread has of tiles.

    Rows of V and O have `v_width` elements. `spans`: limits are arrays.
    """
    D, DV, BC = head_dim, v_width, tile.Bc
    tiles, tiles_of_V = numba_tiles(D, tile.warps, dtype), numba_tiles(DV, tile.warps, dtype)
    ROW_BYTES, lane_in_K = tiles.ROW_BYTES, tiles.lane_in_K
    V_ROW_BYTES, lane_in_V = tiles_of_V.ROW_BYTES, tiles_of_V.lane_in_A
    WARP_ROWS = tile.Br // tile.warps  # a warp owns so many rows of Q_i, S, P and O_i from end to end
    TM = WARP_ROWS // 16  # tiles of 16 rows
    TN = BC // 8  # tiles of 8 keys
    TK = BC // 16  # steps of 16 keys in which P V is summed
    STEPS = -(-D // 16)  # of 16 elements in which Q K^T is summed; zeros fill the last
    TD = 2 * -(-DV // 16)  # tiles of 8 elements of O
    DROPOUT = features.dropout.DROPS
    kept, dropout_of_head = kept_in_rows(DROPOUT, TM, TN), features.dropout.of_head
    draw_kept, kept_both = kept.draw, kept.both
    seen = numba_spans(tile.Br, WARP_ROWS) if spans else BAND
    first_of_row, end_of_row = seen.first_of_row, seen.end_of_row
    first_seen, end_seen = seen.first_seen, seen.end_seen
    mma = numba_mma(dtype)
    multiply_add, packed, unpacked = mma.multiply_add, mma.packed, mma.unpacked
    not_finite, finite_or_zero = mma.not_finite, mma.finite_or_zero

    # As many steps of Q_i stay in registers as have room beside S and O_i; the others are read anew for every tile of
    # keys.
    KEPT = min(max(((BESIDE_DROPOUT if DROPOUT else KEPT_REGISTERS) - TM * 4 * (TN + TD)) // (TM * 4), 0), STEPS)

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

    # The last of a warp's rows, and the first and the end of the keys that some of them see.
    @cuda.jit(device=True, forceinline=True)
    def seen_by_warp(first, q_len, kv_len, before, after):
        last = int32(min(first + WARP_ROWS, q_len) - 1)
        return last, first_seen(first, q_len, kv_len, before), end_seen(last, q_len, kv_len, after)

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
        head = int32(head_of_entry(heads))
        drawn = dropout_of_head(draw, unknown(head) if DROPOUT else head, entry_of_head(heads))
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
        add_P_V(O, P[s], V_lane + s * 16 * V_ROW_BYTES, True)

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
                both = load_word(V_tile + swizzled(V_ROW_BYTES, uint32(key), j) + (lane & 3) * 4)
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
            add_P_V(O, P[0], V_tile + lane_in_V() + uint32(first_key) * uint32(V_ROW_BYTES), False)
            add_not_finite(O, P[0], V_tile, first_key, keys, place, before, after)
            # The next 16 keys move up: registers have no index at run time.
            for s in range(1, TK):
                for i in range(TM):
                    for c in range(4):
                        P[s - 1, i, c] = P[s, i, c]

    return SimpleNamespace(
        TM=TM,
        TN=TN,
        TD=TD,
        TK=TK,
        STEPS=STEPS,
        KEPT=KEPT,
        WARP_ROWS=WARP_ROWS,
        MARKS=kept.MARKS,
        load_q=load_q,
        multiply_Q_Kt=multiply_Q_Kt,
        seen_by_warp=seen_by_warp,
        mask=mask,
        raise_maximum=raise_maximum,
        exponentiate_all=exponentiate_all,
        exponentiate_and_add_all=exponentiate_and_add_all,
        add_P_V_where_seen=add_P_V_where_seen,
    )
