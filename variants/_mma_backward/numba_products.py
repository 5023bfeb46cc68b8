"""Gradients of attention on tensor cores where a block owns keys: S^T = K Q^T has a key per row, so that P^T and dS^T
are in the layout of A when dV_j += P^T dO_i and dK_j += dS^T Q_i want them.

The CUDA twin is backward.cuh: same names, same order. What is worked out from the thread's index is worked out anew,
see `thread_index`: registers are for sums.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma import LINE_ELEMENTS
from variants._mma.backward import DQ_COLUMNS, PRODUCT_REGISTERS, BackwardMmaTile
from variants._mma.backward import WARP_ROWS as DQ_ROWS
from variants._mma.numba_assembly import U32, assembly, capability
from variants._mma.numba_dq_fragments import FLOAT_BYTES, FRAGMENT, add_fragment, to_lane
from variants._mma.numba_mma import (
    A_FRAGMENT,
    ALL_LANES,
    chunks_further,
    keep_loop,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    store_shared,
    swizzled,
    thread_index,
)
from variants._mma.numba_rows_seeing import rows_seeing_keys
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled

ZERO = np.float32(0)
NOTHING = np.uint32(0)
load_pair, store_word = load_shared(8), store_shared(4)


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
def numba_backward(head_dim: int, tile: BackwardMmaTile, dtype: str, sums_dQ: bool, spans: bool) -> SimpleNamespace:
    """Device functions and constants for these compile-time parameters.

    Four warps keep P^T and dS^T in registers and sum dV_j and dK_j of their own keys. Of eight, four sum dV_j and four
    dK_j, with larger tiles each: P^T and dS^T come to them through shared memory. `sums_dQ` and `spans`: see
    `keys_kernel`.
    """
    D, BR, BC, WARPS = head_dim, tile.Br, tile.Bc, tile.warps
    tiles, mma = numba_tiles(D, WARPS, dtype), numba_mma(dtype)
    THREADS, ROW_BYTES, UNIT, UNITS = tiles.THREADS, tiles.ROW_BYTES, tiles.UNIT, tiles.UNITS
    UNIT_BYTES = 2 * UNIT
    lane_in_A, lane_in_K, place, copy_unit = tiles.lane_in_A, tiles.lane_in_K, tiles.place, tiles.copy_unit
    multiply_add, packed = mma.multiply_add, mma.packed
    seeing = rows_seeing_keys(spans, BC)
    first_seen, end_seen = seeing.first_seen, seeing.end_seen
    first_seeing, end_seeing = seeing.first_seeing, seeing.end_seeing

    STEPS = -(-D // 16)  # of 16 elements in which products over a row are summed; zeros fill the last
    HANDS_WEIGHTS = tile.hands_weights  # P^T and dS^T go from warp to warp
    # What needs other warps' dS^T, or P^T, is summed one step later, so that one barrier for each step is enough.
    LAG = int(HANDS_WEIGHTS or sums_dQ)

    # S^T and dP^T: a warp's keys and rows.
    KEY_GROUPS = max(BC // 32, 16 * WARPS // BR) if HANDS_WEIGHTS else WARPS
    WARP_KEYS, WARP_ROWS = BC // KEY_GROUPS, BR // (WARPS // KEY_GROUPS)
    TM = WARP_KEYS // 16  # tiles of 16 keys
    # S^T and dP^T of so many are 64 registers; or 32, where rows are no whole lines, whose ends take some.
    FITTING_ROWS = (PRODUCT_REGISTERS // 2 if HANDS_WEIGHTS and D % LINE_ELEMENTS != 0 else PRODUCT_REGISTERS) // TM
    ROWS_AT_ONCE = min(WARP_ROWS, FITTING_ROWS)
    TN = ROWS_AT_ONCE // 8

    # dV_j and dK_j: a warp's keys and columns, in steps of 16. Where several share columns, each has whole lines.
    COLUMN_GROUPS = tile.column_groups(D)
    SUM_KEYS = BC // (WARPS // 2 // COLUMN_GROUPS) if HANDS_WEIGHTS else WARP_KEYS
    SUM_TILES = SUM_KEYS // 16
    SUM_STEPS = STEPS if COLUMN_GROUPS == 1 else 4
    SUMS = 1 if HANDS_WEIGHTS else 2  # of a warp

    KEYS_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    ROWS_BYTES = BR * ROW_BYTES  # of Q_i, and of dO_i
    STAGES = tile.stages
    W_ROW_BYTES = -(-2 * BR // 128) * 128  # of dS^T and P^T, which have a row per key
    W_BYTES = BC * W_ROW_BYTES
    W_STAGE_BYTES = LAG * (2 if HANDS_WEIGHTS else 1) * W_BYTES  # dS^T, then P^T
    SHARED_ROWS = 2 * KEYS_BYTES  # where Q_i and dO_i of each stage begin
    SHARED_W = SHARED_ROWS + STAGES * 2 * ROWS_BYTES  # dS^T and P^T, of this step and the one before
    SHARED_STATS = SHARED_W + 2 * W_STAGE_BYTES  # L_i and D_i of each stage

    # dQ_i is 32 rows of so many columns per warp.
    ROW_GROUPS = BR // DQ_ROWS
    DQ_GROUPS = WARPS // ROW_GROUPS
    DQ_STEPS = -(-STEPS // DQ_GROUPS)
    DQ_TILES = -(-D // DQ_COLUMNS)
    ALL_THERE = STEPS % DQ_GROUPS == 0 and DQ_TILES % 2 == 0

    # In the layout of C: keys g and g + 8 of each tile of 16, rows 2 q and 2 q + 1 of each tile of 8. A local array has
    # one of these shapes.
    SCORES = (TM, TN, 4)
    OF_SUMS = (SUMS, SUM_TILES, 2 * SUM_STEPS, 4)
    WEIGHTS = (TN // 2, TM, 4)  # A: keys, over 16 rows at a time

    # Of dV_j and dK_j: the warp's first key, its first step of columns, and 1 if it has dV_j, where it has one of them.
    @cuda.jit(device=True, forceinline=True)
    def share_of(thread):
        warp = uint32(thread) >> uint32(5)
        if not HANDS_WEIGHTS:
            return int32(warp * uint32(SUM_KEYS)), int32(0), int32(0)
        own = warp % uint32(WARPS // 2)
        key = int32(own // uint32(COLUMN_GROUPS) * uint32(SUM_KEYS))
        return key, int32(own % uint32(COLUMN_GROUPS) * uint32(SUM_STEPS)), int32(warp // uint32(WARPS // 2))

    # (first, count): tiles of rows with one that sees one of these keys.
    @cuda.jit(device=True, forceinline=True)
    def tiles_seeing(first_key, keys, q_len, kv_len, ahead, behind):
        first_row = first_seen(first_key, kv_len, q_len, ahead)
        end_row = end_seen(int32(first_key + keys - 1), kv_len, q_len, behind)
        first = int32(uint32(first_row) // uint32(BR))
        end = int32(uint32(end_row + BR - 1) // uint32(BR))
        return first, int32(end - first) if first_row < end_row else int32(0)

    # Steps are whole lines of swizzled rows: constants.
    WHOLE_LINES = UNIT > 1 and BR * UNITS % THREADS == 0 and THREADS % (8 * UNITS) == 0

    @cuda.jit(device=True, forceinline=True)
    def copy_step(step, tile, source):
        copy_unit(
            uint32(tile + step * (THREADS // UNITS) * ROW_BYTES), source + uint64(step * THREADS * UNIT_BYTES), True
        )

    copy_steps = unrolled(BR * UNITS // THREADS if WHOLE_LINES else 1, copy_step)

    # copy_tile, of BR rows, by the thread read anew.
    @cuda.jit(device=True, forceinline=True)
    def copy_tile_again(tile, source, rows):
        thread = thread_index()
        if WHOLE_LINES and rows >= BR:
            copy_steps(uint32(tile + place(thread)), source + uint64(uint32(thread)) * uint64(UNIT_BYTES))
        else:
            e = int32(thread)
            while e < BR * UNITS:
                keep_loop()
                valid = e < int32(rows * UNITS)
                at = uint64(uint32(e)) * uint64(UNIT_BYTES)
                copy_unit(uint32(tile + place(e)), source + at if valid else source, valid)
                e = int32(e + THREADS)

    # --- Products ----------------------------------------------------------------------------------------------------

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
    def mask(P, dS, key, row, q_len, kv_len, ahead, behind):
        lane = int32(thread_index() & 31)
        column = int32((lane & 3) * 2)  # the lane's first row
        for i in range(TM):
            for h in range(2):
                further = int32(16 * i + 8 * h + (lane >> 2))
                first = first_seeing(further, key, row, q_len, kv_len, ahead)
                end = end_seeing(further, key, row, q_len, kv_len, behind)
                mask_of_keys(P, dS, i, h, int32(first - column), int32(end - column))

    @cuda.jit(device=True, forceinline=True)
    def store_weights_of_16_rows(s, W_lane, W):
        for i in range(TM):
            x = W[s, i, 0], W[s, i, 1], W[s, i, 2], W[s, i, 3]
            store_matrices(uint32(chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES), x)

    # P^T or dS^T of the warp's keys and ROWS_AT_ONCE rows -> its tile, as fragments of A are loaded.
    store_weights = unrolled(TN // 2, store_weights_of_16_rows)

    @cuda.jit(device=True, forceinline=True)
    def multiply_dS_K_step(s, part, dS_lane, K_lane, column_group):
        ds = cuda.local.array((2, 4), uint32)
        for i in range(2):
            at = dS_lane[i] + s * 16 * W_ROW_BYTES
            ds[i, 0], ds[i, 1], ds[i, 2], ds[i, 3] = load_matrices_transposed(at)
        for k in range(DQ_STEPS):
            if STEPS % DQ_GROUPS == 0 or k * DQ_GROUPS + column_group < STEPS:
                k0, k1, k2, k3 = load_matrices_transposed(K_lane[k] + s * 16 * ROW_BYTES)
                for i in range(2):
                    multiply_add(part[i], k, 0, ds[i], k0, k1)
                    multiply_add(part[i], k, 1, ds[i], k2, k3)

    multiply_dS_K = unrolled(BC // 16, multiply_dS_K_step)

    # Line 15: dQ_i += dS K_j, in memory, while other blocks add theirs; not yet times tau. `dQ` is the head's.
    @cuda.jit(device=True, forceinline=True)
    def add_dS_K(dQ, dS_tile, K_tile, first_row, q_len):
        thread = uint32(thread_index())
        lane, warp = thread & uint32(31), thread >> uint32(5)
        row_group, column_group = uint32(warp % uint32(ROW_GROUPS)), int32(warp // uint32(ROW_GROUPS))
        part = cuda.local.array((2, DQ_STEPS, 2, 4), float32)
        dS_lane, K_lane = cuda.local.array(2, uint32), cuda.local.array(DQ_STEPS, uint32)
        for i in range(2):
            # A, transposed as it is loaded: keys 0 to 7 of both runs of eight rows, then keys 8 to 15.
            chunk = uint32(4 * row_group + 2 * i + ((lane >> 3) & 1))
            dS_lane[i] = uint32(dS_tile + swizzled(W_ROW_BYTES, uint32((lane >> 4) * 8 + (lane & 7)), chunk))
        for k in range(DQ_STEPS):
            K_lane[k] = chunks_further(uint32(K_tile + lane_in_A()), uint32(2 * (k * DQ_GROUPS + column_group)))
            for i in range(2):
                for e in range(2):
                    for c in range(4):
                        part[i, k, e, c] = ZERO
        multiply_dS_K(part, dS_lane, K_lane, column_group)
        row = int32(first_row + int32(row_group) * DQ_ROWS)
        fragments = uint64(uint32(int32(uint32(row) >> uint32(4)) * DQ_TILES + 2 * column_group))
        to = dQ + fragments * uint64(FRAGMENT * FLOAT_BYTES) + to_lane(lane)
        for i in range(2):
            if int32(row + 16 * i) < q_len:
                for k in range(DQ_STEPS):
                    for e in range(2):
                        if ALL_THERE or int32(2 * (k * DQ_GROUPS + column_group) + e) < DQ_TILES:
                            c = part[i, k, e, 0], part[i, k, e, 1], part[i, k, e, 2], part[i, k, e, 3]
                            fragment = i * DQ_TILES + 2 * k * DQ_GROUPS + e
                            add_fragment(to + uint64(fragment * FRAGMENT * FLOAT_BYTES), c)

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
        THREADS=THREADS,
        STEPS=STEPS,
        HANDS_WEIGHTS=HANDS_WEIGHTS,
        LAG=LAG,
        KEY_GROUPS=KEY_GROUPS,
        WARP_KEYS=WARP_KEYS,
        WARP_ROWS=WARP_ROWS,
        ROWS_AT_ONCE=ROWS_AT_ONCE,
        TM=TM,
        TN=TN,
        SUM_TILES=SUM_TILES,
        SUM_STEPS=SUM_STEPS,
        SUMS=SUMS,
        KEYS_BYTES=KEYS_BYTES,
        ROWS_BYTES=ROWS_BYTES,
        STAGES=STAGES,
        W_ROW_BYTES=W_ROW_BYTES,
        W_BYTES=W_BYTES,
        W_STAGE_BYTES=W_STAGE_BYTES,
        SHARED_ROWS=SHARED_ROWS,
        SHARED_W=SHARED_W,
        SHARED_STATS=SHARED_STATS,
        DQ_TILES=DQ_TILES,
        SCORES=SCORES,
        OF_SUMS=OF_SUMS,
        WEIGHTS=WEIGHTS,
        share_of=share_of,
        tiles_seeing=tiles_seeing,
        keep_limits_of_keys=seeing.keep_limits_of_keys,
        all_see=seeing.all_see,
        some_see=seeing.some_see,
        copy_tile_again=copy_tile_again,
        multiply_A_Bt=multiply_A_Bt,
        add_kept_Wt_Y=add_kept_Wt_Y,
        add_handed_Wt_Y=add_handed_Wt_Y,
        round_weights=round_weights,
        mask=mask,
        store_weights=store_weights,
        add_dS_K=add_dS_K,
        gather=gather,
        lane_in_A=lane_in_A,
        lane_in_K=lane_in_K,
    )
