"""Products of a block that owns keys, and what becomes of them on their way from one to the next.

The CUDA twin is products.cuh: same names, same order. What depends on the thread's index is computed anew, see
`thread_index`: registers are for sums.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._features.numba_tile_order import NumbaRule
from variants._mma.numba_assembly import U32, assembly, capability
from variants._mma.numba_mma import (
    A_FRAGMENT,
    ALL_LANES,
    chunks_further,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    store_shared,
    swizzled,
    thread_index,
)
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward import BackwardMmaTile
from variants._mma_backward.numba_seen import numba_seen
from variants._mma_backward.numba_shares import numba_shares
from variants._mma_backward.numba_turns import numba_turns
from variants._tiles.visits import words

ZERO = np.float32(0)
NOTHING = np.uint32(0)
load_pair, load_word, store_word = load_shared(8), load_shared(4), store_shared(4)


# PTX ISA: stmatrix, sm_90.
@intrinsic
def store_four_matrices(typing_context, at, x):
    ptx = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};"
    return assembly(ptx, types.void(U32, A_FRAGMENT), together=True)


@intrinsic
def has_stmatrix(typing_context):
    def emit(context, builder, signature, arguments):
        return context.get_constant(types.boolean, capability() >= 90)

    return types.boolean(), emit


# A fragment of A -> the rows that load_matrices takes it from.
@cuda.jit(device=True, forceinline=True)
def store_matrices(at, x):
    if has_stmatrix():
        store_four_matrices(at, x)
    else:
        # Lane t has the address of row t % 8 of matrix t / 8, and of each matrix row t / 4, two columns.
        lane = uint32(thread_index() & 31)
        for m in range(4):
            row = uint32(cuda.shfl_sync(ALL_LANES, int32(at), int32(8 * m + (lane >> 2))))
            store_word(row + (lane & 3) * 4, x[m])


# Two neighbours in shared memory.
@cuda.jit(device=True, forceinline=True)
def load_floats(at):
    low, high = load_pair(at)
    return libdevice.int_as_float(int32(low)), libdevice.int_as_float(int32(high))


@functools.cache
def numba_products(
    head_dim: int,
    tile: BackwardMmaTile,
    dtype: str,
    adds_dQ: bool,
    spans: bool,
    caps: bool = False,
    rule: NumbaRule | None = None,
) -> SimpleNamespace:
    """Device functions. `spans`: arrays hold which rows see a key; `rule`: that of a mask that hides pairs besides."""
    D, BR, WORDS, HIDES = head_dim, tile.Br, words(tile), rule is not None
    tiles, mma, shares = numba_tiles(D, tile.warps, dtype), numba_mma(dtype), numba_shares(D, tile, adds_dQ, caps)
    ROW_BYTES, multiply_add, packed = tiles.ROW_BYTES, mma.multiply_add, mma.packed
    STEPS, TM, TN, share_of, W_ROW_BYTES = shares.STEPS, shares.TM, shares.TN, shares.share_of, shares.W_ROW_BYTES
    SUM_TILES, SUM_STEPS, SUMS = shares.SUM_TILES, shares.SUM_STEPS, shares.SUMS
    rows_seeing, hides_some = numba_seen(spans).rows_seeing, numba_turns(tile, shares.LAG, rule).hides_some

    @cuda.jit(device=True, forceinline=True)
    def clear_sums_of_8_columns(j, sums):
        for of in range(SUMS[0]):
            for i in range(SUM_TILES):
                for c in range(4):
                    sums[of, i, j, c] = ZERO

    clear_sums = unrolled(2 * SUM_STEPS, clear_sums_of_8_columns)

    @cuda.jit(device=True, forceinline=True)
    def clear_weights_of_16_rows(s, W):
        for i in range(TM):
            for c in range(4):
                W[s, i, c] = NOTHING

    clear_weights = unrolled(TN // 2, clear_weights_of_16_rows)

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

    # X = A B^T over D elements, for the warp's keys and ROWS_AT_ONCE rows: S^T = K_j Q_i^T, dP^T = V_j dO_i^T.
    @cuda.jit(device=True, forceinline=True)
    def multiply_A_Bt(X, A_lane, B_lane):
        for i in range(TM):
            for j in range(TN):
                for c in range(4):
                    X[i, j, c] = ZERO
        multiply_A_Bt_steps(X, A_lane, B_lane)

    @cuda.jit(device=True, forceinline=True)
    def add_Wt_Y_step(k, X, W, Y_lane, steps):
        if STEPS % SUM_STEPS == 0 or k < steps:
            y0, y1, y2, y3 = load_matrices_transposed(chunks_further(Y_lane, 2 * k))
            for i in range(SUM_TILES):
                multiply_add(X, i, 2 * k, W[i], y0, y1)
                multiply_add(X, i, 2 * k + 1, W[i], y2, y3)

    add_Wt_Y_steps = unrolled(SUM_STEPS, add_Wt_Y_step)

    # X += W^T Y over 16 rows, from Y_lane on: dV_j += P^T dO_i, dK_j += dS^T Q_i. `steps` of 16 columns are there.
    @cuda.jit(device=True, forceinline=True)
    def add_Wt_Y(X, W, Y_lane, steps):
        add_Wt_Y_steps(X, W, Y_lane, steps)

    @cuda.jit(device=True, forceinline=True)
    def add_kept_of_16_rows(s, X, W, Y_lane):
        add_Wt_Y(X, W[s], uint32(Y_lane + s * 16 * ROW_BYTES), int32(STEPS))

    # The same over ROWS_AT_ONCE rows, with weights of the warp's own.
    add_kept_Wt_Y = unrolled(TN // 2, add_kept_of_16_rows)

    @cuda.jit(device=True, forceinline=True)
    def add_handed_of_16_rows(s, X, W_lane, Y_lane, steps):
        W = cuda.local.array((SUM_TILES, 4), uint32)
        for i in range(SUM_TILES):
            at = chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES
            W[i, 0], W[i, 1], W[i, 2], W[i, 3] = load_matrices(at)
        add_Wt_Y(X, W, uint32(Y_lane + s * 16 * ROW_BYTES), steps)

    # The same over BR rows, with weights that come through shared memory.
    add_handed_Wt_Y = unrolled(BR // 16, add_handed_of_16_rows)

    # Rounded to 16 bits: what products left in C is the A of the next ones.
    @cuda.jit(device=True, forceinline=True)
    def round_weights_of_8_rows(j, W, X):
        for i in range(TM):
            for h in range(2):
                W[j >> 1, i, (j & 1) * 2 + h] = packed(X[i, j, 2 * h], X[i, j, 2 * h + 1])

    round_weights = unrolled(TN, round_weights_of_8_rows)

    @cuda.jit(device=True, forceinline=True)
    def mask_of_8_rows(j, P, dS, i, h, first, end):
        for e in range(2):
            ds = dS[i, j, 2 * h + e]
            seen = 8 * j + e >= first and 8 * j + e < end
            P[i, j, 2 * h + e] = libdevice.fmaf(ZERO, ds, P[i, j, 2 * h + e]) if seen else ZERO
            dS[i, j, 2 * h + e] = ds if seen else ZERO

    mask_of_keys = unrolled(TN, mask_of_8_rows)

    # P = 0 and dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays
    # there. Where it does, NaN in dS is brought to P, and with it to dV. The first key in P is `key`, the first row
    # `row`.
    @cuda.jit(device=True, forceinline=True)
    def mask(P, dS, seeing, key, row):
        lane = int32(thread_index() & 31)
        column = int32((lane & 3) * 2)  # the lane's first row
        for i in range(TM):
            for h in range(2):
                further = int32(16 * i + 8 * h + (lane >> 2))
                first, end = rows_seeing(seeing, further, key, row)
                mask_of_keys(P, dS, i, h, int32(first - column), int32(end - column))

    @cuda.jit(device=True, forceinline=True)
    def hide_from_8_rows(j, P, dS, word_at, first_bit):
        for e in range(2):
            for i in range(TM):
                word = load_word(uint32(word_at + ((8 * j + e) * WORDS + (i >> 1)) * 4))
                seen = uint32(word) >> uint32(first_bit + (i & 1) * 16)
                for h in range(2):
                    if (seen >> uint32(8 * h)) & uint32(1) == uint32(0):
                        P[i, j, 2 * h + e], dS[i, j, 2 * h + e] = ZERO, ZERO

    hide_from_rows = unrolled(TN, hide_from_8_rows)

    # The same where a mask hides pairs besides limits. The first key in P is the tile's `key`, the first row its `row`.
    @cuda.jit(device=True, forceinline=True)
    def hide(P, dS, hidden, key, row):
        if HIDES and hides_some(hidden):
            lane = uint32(thread_index() & 31)
            lane_row = uint32(uint32(row) + (lane & uint32(3)) * uint32(2))
            word_at = uint32(hidden.bits + (lane_row * uint32(WORDS) + (uint32(key) >> uint32(5))) * uint32(4))
            hide_from_rows(P, dS, word_at, uint32((uint32(key) & uint32(31)) + (lane >> uint32(2))))

    @cuda.jit(device=True, forceinline=True)
    def store_weights_of_16_rows(s, W_lane, W):
        for i in range(TM):
            x = W[s, i, 0], W[s, i, 1], W[s, i, 2], W[s, i, 3]
            store_matrices(uint32(chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES), x)

    # P^T or dS^T of the warp's keys and ROWS_AT_ONCE rows -> its tile, as fragments of A are loaded.
    store_weights = unrolled(TN // 2, store_weights_of_16_rows)

    @cuda.jit(device=True, forceinline=True)
    def gather_8_columns(j, tile, X, factor, first_key, first_step, lane):
        if STEPS % SUM_STEPS == 0 or j < 2 * (STEPS - first_step):
            for i in range(SUM_TILES):
                for h in range(2):
                    key = uint32(first_key + 16 * i + 8 * h + (lane >> 2))
                    at = tile + swizzled(ROW_BYTES, key, 2 * first_step + j)
                    store_word(at + (lane & 3) * 4, packed(factor * X[i, j, 2 * h], factor * X[i, j, 2 * h + 1]))

    gather_all_columns = unrolled(2 * SUM_STEPS, gather_8_columns)

    # Line 18: `factor` X, in 16 bits, where K_j or V_j was.
    @cuda.jit(device=True, forceinline=True)
    def gather(tile, X, factor):
        thread = thread_index()
        own_key, own_step, _ = share_of(thread)
        gather_all_columns(tile, X, factor, own_key, own_step, int32(thread & 31))

    return SimpleNamespace(
        clear_sums=clear_sums,
        clear_weights=clear_weights,
        multiply_A_Bt=multiply_A_Bt,
        add_kept_Wt_Y=add_kept_Wt_Y,
        add_handed_Wt_Y=add_handed_Wt_Y,
        round_weights=round_weights,
        mask=mask,
        hide=hide,
        store_weights=store_weights,
        gather=gather,
    )
