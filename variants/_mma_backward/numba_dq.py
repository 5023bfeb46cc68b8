"""dQ where blocks add to it in memory, in float32, in fragments of C: 16 rows and 8 columns are 128 floats, of which a
warp adds all at once.

The CUDA twins are dq.cuh, and add_dS_K in products.cuh. Where a request has up to 16 bytes of a lane (sm_90), its four
floats lie side by side; else c0 of all lanes, then c1, c2 and c3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice, types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import F32, I32, U64, assembly, capability
from variants._mma.numba_mma import (
    C_FRAGMENT,
    chunks_further,
    load_global,
    load_matrices_transposed,
    numba_mma,
    swizzled,
    thread_index,
)
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma_backward import BackwardMmaTile
from variants._mma_backward.numba_shares import numba_shares
from variants._mma_backward.tile import WARP_ROWS as DQ_ROWS

ZERO = np.float32(0)
FRAGMENT = 128
FLOAT_BYTES = 4
LINE_BYTES = 128  # of the floats of a lane, where they do not lie side by side
load_number, load_numbers = load_global(4), load_global(16)


# How many floats of a lane lie side by side: 4 or 1.
@intrinsic
def floats_together(typing_context):
    def emit(context, builder, signature, arguments):
        return context.get_constant(I32, 4 if capability() >= 90 else 1)

    return I32(), emit


# Atomically, and what was there is not asked for (PTX ISA: red; .v4 of sm_90).
@intrinsic
def add_together(typing_context, to, c):
    return assembly("red.global.add.v4.f32 [$0], {$1, $2, $3, $4};", types.void(U64, C_FRAGMENT), ordered=True)


@intrinsic
def add_one(typing_context, to, addend):
    return assembly("red.global.add.f32 [$0], $1;", types.void(U64, F32), ordered=True)


# From a fragment to the lane's first float.
@cuda.jit(device=True, forceinline=True)
def to_lane(lane):
    return uint64(uint32(uint32(lane) * uint32(floats_together()) * uint32(FLOAT_BYTES)))


# dQ += C, of one fragment; `to` is the lane's first float.
@cuda.jit(device=True, forceinline=True)
def add_fragment(to, c):
    if floats_together() == 4:
        add_together(to, c)
    else:
        add_one(to, c[0])
        add_one(to + uint64(LINE_BYTES), c[1])
        add_one(to + uint64(2 * LINE_BYTES), c[2])
        add_one(to + uint64(3 * LINE_BYTES), c[3])


@cuda.jit(device=True, forceinline=True)
def as_float(word):
    return libdevice.int_as_float(int32(word))


# C of a fragment; `at` is the lane's first float.
@cuda.jit(device=True, forceinline=True)
def load_fragment(at):
    if floats_together() == 4:
        c0, c1, c2, c3 = load_numbers(at)
    else:
        c0, c1 = load_number(at), load_number(at + uint64(LINE_BYTES))
        c2, c3 = load_number(at + uint64(2 * LINE_BYTES)), load_number(at + uint64(3 * LINE_BYTES))
    return as_float(c0), as_float(c1), as_float(c2), as_float(c3)


def adds_to_dQ(head_dim: int, tile: BackwardMmaTile, dtype: str) -> Any:
    """`add_dS_K` for these compile-time parameters."""
    D, BC, multiply_add = head_dim, tile.Bc, numba_mma(dtype).multiply_add
    tiles, shares = numba_tiles(D, tile.warps, dtype), numba_shares(D, tile, True)
    ROW_BYTES, lane_in_A, W_ROW_BYTES, STEPS = tiles.ROW_BYTES, tiles.lane_in_A, shares.W_ROW_BYTES, shares.STEPS
    ROW_GROUPS, DQ_GROUPS, DQ_STEPS, DQ_TILES = shares.ROW_GROUPS, shares.DQ_GROUPS, shares.DQ_STEPS, shares.DQ_TILES
    ALL_THERE = STEPS % DQ_GROUPS == 0 and DQ_TILES % 2 == 0

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

    return add_dS_K
