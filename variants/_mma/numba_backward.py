"""Gradients of attention on tensor cores where a block owns keys: S^T = K Q^T has a key per row, so that P^T and dS^T
are in the layout of A, in registers, when dV_j += P^T dO_i and dK_j += dS^T Q_i want them.

The CUDA twin is backward.cuh: same names, same order. What is worked out from the indices of the thread and of the
block is worked out anew, see `thread_index`: registers are for sums.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma.backward import DQ_COLUMNS, PRODUCT_REGISTERS, STAGES, WARP_ROWS, BackwardMmaTile
from variants._mma.numba_assembly import F32, U32, U64, assembly
from variants._mma.numba_mma import (
    chunks_further,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    store_shared,
    swizzled,
    thread_index,
    unknown,
)
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled

FRAGMENT = 128  # floats of 16 rows and 8 columns of dQ: c0 of all lanes, then c1, c2 and c3
FLOAT_BYTES = 4
ZERO = np.float32(0)
NOTHING = np.uint32(0)
load_pair, store_word = load_shared(8), store_shared(4)


# Atomically, and what was there is not asked for (PTX ISA: red).
@intrinsic
def add_in_memory(typing_context, to, addend):
    return assembly("red.global.add.f32 [$0], $1;", types.void(U64, F32), ordered=True)


# Numba's own division asks whether it is one by 0, and would leave the kernel (PTX ISA: div, rem).
@intrinsic
def quotient(typing_context, dividend, divisor):
    return assembly("div.u32 $0, $1, $2;", U32(U32, U32))


@intrinsic
def remainder(typing_context, dividend, divisor):
    return assembly("rem.u32 $0, $1, $2;", U32(U32, U32))


# Two neighbours in shared memory.
@cuda.jit(device=True, forceinline=True)
def load_floats(at):
    low, high = load_pair(at)
    return libdevice.int_as_float(int32(low)), libdevice.int_as_float(int32(high))


@functools.cache
def numba_backward(head_dim: int, tile: BackwardMmaTile, dtype: str) -> SimpleNamespace:
    """Device functions and constants for these compile-time parameters."""
    D, BR, BC, WARPS = head_dim, tile.Br, tile.Bc, tile.warps
    tiles, mma = numba_tiles(D, WARPS, dtype), numba_mma(dtype)
    ROW_BYTES, lane_in_A, lane_in_K = tiles.ROW_BYTES, tiles.lane_in_A, tiles.lane_in_K
    multiply_add, packed = mma.multiply_add, mma.packed

    STEPS = -(-D // 16)  # of 16 elements in which products over a row are summed; zeros fill the last
    KEY_GROUPS = tile.key_groups
    COLUMN_GROUPS = WARPS // KEY_GROUPS  # warps that have the same keys, and columns of dK_j and dV_j each
    TM = BC // 16 // KEY_GROUPS  # tiles of 16 keys of a warp
    WARP_KEYS = 16 * TM
    ROWS_AT_ONCE = min(BR, PRODUCT_REGISTERS // TM)  # S^T and dP^T of so many are 64 registers of a thread
    TN = ROWS_AT_ONCE // 8
    # Columns of dK_j and dV_j that a warp has, in steps of 16: whole lines where several share them, as swizzles want
    # it.
    OWN_STEPS = STEPS if COLUMN_GROUPS == 1 else -(-STEPS // (4 * COLUMN_GROUPS)) * 4

    KEYS_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    ROWS_BYTES = BR * ROW_BYTES  # of Q_i, and of dO_i
    DS_ROW_BYTES = -(-2 * BR // 128) * 128  # of dS^T, which has a row per key
    SHARED_STATS = 2 * KEYS_BYTES + STAGES * 2 * ROWS_BYTES + BC * DS_ROW_BYTES  # where L and D begin

    # dQ_i is 32 rows of so many columns per warp.
    ROW_GROUPS = BR // WARP_ROWS
    DQ_GROUPS = WARPS // ROW_GROUPS
    DQ_STEPS = -(-STEPS // DQ_GROUPS)
    DQ_TILES = -(-D // DQ_COLUMNS)

    # In the layout of C: keys g and g + 8 of each tile of 16, rows 2 q and 2 q + 1 of each tile of 8. A local array has
    # one of these shapes.
    SCORES = (TM, TN, 4)
    SUMS = (TM, 2 * OWN_STEPS, 4)
    WEIGHTS = (TN // 2, TM, 4)  # A: keys, over 16 rows at a time

    # A warp's first key in the tile, and its first step of columns of dK_j and dV_j.
    @cuda.jit(device=True, forceinline=True)
    def first_key_of(thread):
        return int32(uint32(uint32(thread) // uint32(32)) % uint32(KEY_GROUPS) * uint32(WARP_KEYS))

    @cuda.jit(device=True, forceinline=True)
    def first_step_of(thread):
        return int32(uint32(thread) // uint32(32 * KEY_GROUPS) * uint32(OWN_STEPS)) if COLUMN_GROUPS > 1 else int32(0)

    # (first, count): tiles of rows with one that sees a key of tile `block` of keys.
    @cuda.jit(device=True, forceinline=True)
    def tiles_seeing(block, q_len, kv_len, before, after):
        first_key, on = int32(block * BC), unknown(int32(q_len - kv_len))
        keys = int32(min(int32(BC), int32(kv_len - first_key)))
        first_row = int32(max(int32(first_key + on - after), int32(0)))
        end_row = int32(min(int32(first_key + keys + on + before), q_len))
        first = int32(uint32(first_row) // uint32(BR))
        end = int32(uint32(end_row + BR - 1) // uint32(BR))
        return first, int32(end - first) if first_row < end_row else int32(0)

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
        if STEPS % OWN_STEPS == 0 or k < steps:
            y0, y1, y2, y3 = load_matrices_transposed(chunks_further(Y_lane, 2 * k))
            for i in range(TM):
                multiply_add(X, i, 2 * k, W[i], y0, y1)
                multiply_add(X, i, 2 * k + 1, W[i], y2, y3)

    add_Wt_Y_steps = unrolled(OWN_STEPS, add_Wt_Y_step)

    @cuda.jit(device=True, forceinline=True)
    def add_Wt_Y_of_16_rows(s, X, W, Y_lane, steps):
        add_Wt_Y_steps(X, W[s], uint32(Y_lane + s * 16 * ROW_BYTES), steps)

    # X += W^T Y over ROWS_AT_ONCE rows: dV_j += P^T dO_i, dK_j += dS^T Q_i. `steps` of 16 columns are there.
    add_Wt_Y = unrolled(TN // 2, add_Wt_Y_of_16_rows)

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
    # there. Where it does, NaN in dS is brought to P, and with it to dV. Of the warp's keys the first row in P lies on
    # `own_key`; `keys` and `rows` are how many there are from the first key and row in P on.
    @cuda.jit(device=True, forceinline=True)
    def mask(P, dS, own_key, keys, rows, before, after):
        lane = int32(thread_index() & 31)
        column = int32((lane & 3) * 2)  # the lane's first row
        for i in range(TM):
            for h in range(2):
                key = int32(16 * i + 8 * h + (lane >> 2))
                first = int32(key - own_key - after - column)
                end = int32(min(int32(key - own_key + before + 1), rows)) if key < keys else int32(0)
                mask_of_keys(P, dS, i, h, first, int32(end - column))

    @cuda.jit(device=True, forceinline=True)
    def store_dSt_of_8_rows(j, dS_tile, dS, first_key, first_row, lane):
        for i in range(TM):
            for h in range(2):
                key = uint32(first_key + 16 * i + 8 * h + (lane >> 2))
                at = dS_tile + swizzled(DS_ROW_BYTES, key, (first_row >> 3) + j)
                store_word(at + (lane & 3) * 4, dS[j >> 1, i, (j & 1) * 2 + h])

    store_all_dSt = unrolled(TN, store_dSt_of_8_rows)

    # dS^T of the warp's keys -> its tile, from row `first_row` of the tile on.
    @cuda.jit(device=True, forceinline=True)
    def store_dSt(dS_tile, dS, first_key, first_row):
        store_all_dSt(dS_tile, dS, first_key, first_row, int32(thread_index() & 31))

    @cuda.jit(device=True, forceinline=True)
    def multiply_dS_K_step(s, part, dS_lane, K_lane, column_group):
        ds = cuda.local.array((2, 4), uint32)
        for i in range(2):
            at = dS_lane[i] + s * 16 * DS_ROW_BYTES
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
            dS_lane[i] = uint32(dS_tile + swizzled(DS_ROW_BYTES, uint32((lane >> 4) * 8 + (lane & 7)), chunk))
        for k in range(DQ_STEPS):
            K_lane[k] = chunks_further(uint32(K_tile + lane_in_A()), uint32(2 * (k * DQ_GROUPS + column_group)))
            for i in range(2):
                for e in range(2):
                    for c in range(4):
                        part[i, k, e, c] = ZERO
        multiply_dS_K(part, dS_lane, K_lane, column_group)
        for i in range(2):
            row = int32(first_row + int32(row_group) * WARP_ROWS + 16 * i)
            if row < q_len:
                fragments = int32(int32(uint32(row) >> uint32(4)) * DQ_TILES)
                for k in range(DQ_STEPS):
                    for e in range(2):
                        tile_of_8 = int32(2 * (k * DQ_GROUPS + column_group) + e)
                        if tile_of_8 < DQ_TILES:
                            fragment = uint64(uint32(fragments + tile_of_8)) * uint64(FRAGMENT)
                            to = dQ + (fragment + uint64(lane)) * uint64(FLOAT_BYTES)
                            for c in range(4):
                                add_in_memory(to + uint64(32 * c * FLOAT_BYTES), part[i, k, e, c])

    @cuda.jit(device=True, forceinline=True)
    def gather_8_columns(j, tile, X, factor, first_key, first_step, lane):
        if STEPS % OWN_STEPS == 0 or j < 2 * (STEPS - first_step):
            for i in range(TM):
                for h in range(2):
                    key = uint32(first_key + 16 * i + 8 * h + (lane >> 2))
                    at = tile + swizzled(ROW_BYTES, key, 2 * first_step + j)
                    store_word(at + (lane & 3) * 4, packed(factor * X[i, j, 2 * h], factor * X[i, j, 2 * h + 1]))

    gather_all_columns = unrolled(2 * OWN_STEPS, gather_8_columns)

    # Line 18: `factor` X, in 16 bits, where K_j or V_j was.
    @cuda.jit(device=True, forceinline=True)
    def gather(tile, X, factor):
        thread = thread_index()
        gather_all_columns(tile, X, factor, first_key_of(thread), first_step_of(thread), int32(thread & 31))

    return SimpleNamespace(
        THREADS=tiles.THREADS,
        STEPS=STEPS,
        TM=TM,
        TN=TN,
        WARP_KEYS=WARP_KEYS,
        ROWS_AT_ONCE=ROWS_AT_ONCE,
        OWN_STEPS=OWN_STEPS,
        KEYS_BYTES=KEYS_BYTES,
        ROWS_BYTES=ROWS_BYTES,
        SHARED_STATS=SHARED_STATS,
        DQ_TILES=DQ_TILES,
        SCORES=SCORES,
        SUMS=SUMS,
        WEIGHTS=WEIGHTS,
        first_key_of=first_key_of,
        first_step_of=first_step_of,
        tiles_seeing=tiles_seeing,
        multiply_A_Bt=multiply_A_Bt,
        add_Wt_Y=add_Wt_Y,
        round_weights=round_weights,
        mask=mask,
        store_dSt=store_dSt,
        add_dS_K=add_dS_K,
        gather=gather,
        lane_in_A=lane_in_A,
        lane_in_K=lane_in_K,
    )
