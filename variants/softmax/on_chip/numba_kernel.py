"""Softmax that reads each row once: between the sum and the quotients, a row stays in the registers of a warp, a block
or the blocks of a cluster. m, d and equation 4 are those of Milakov and Gimelshein 2018, arXiv 1805.02867.

The CUDA twin is kernel.cu. Loads and stores of pieces, and clusters, are in numba_pieces.py and numba_clusters.py.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32, int64

from variants._features.numba_stored import conversions
from variants._rows.numba_rows import MINUS_INFINITY, ZERO, exp_below
from variants.softmax.on_chip import WARP, Sizes
from variants.softmax.on_chip.numba_clusters import cluster_arrive, cluster_wait, store_pair
from variants.softmax.on_chip.numba_pieces import pieces_of

ALL_LANES = 0xFFFFFFFF


@cuda.jit(device=True, forceinline=True)
def warp_max(x):
    distance = 16
    while distance > 0:
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, distance))
        distance //= 2
    return x


@cuda.jit(device=True, forceinline=True)
def warp_sum(x):
    distance = 16
    while distance > 0:
        x += cuda.shfl_xor_sync(ALL_LANES, x, distance)
        distance //= 2
    return x


@functools.cache
def on_chip_kernel(sizes: Sizes, dtype: str) -> Any:
    """The kernel for X and Y stored as `dtype`, compiled for these sizes."""
    VECTOR, PIECES, THREADS, CLUSTER, IS_SHARED, HAS_PARTS = sizes
    ELEMENTS = PIECES * VECTOR
    PAIRS = CLUSTER * THREADS // WARP
    stored, widen, narrow = conversions(dtype)
    load_piece, store_piece = pieces_of(VECTOR, dtype)

    # The row's piece that is this thread's k-th of a part. A warp moves 32 adjacent pieces at a time.
    @cuda.jit(device=True, forceinline=True)
    def piece_of(part, k):
        block = int32(int32(int32(part * PIECES) + int32(k)) * CLUSTER) + int32(cuda.blockIdx.x % CLUSTER)
        return int32(int32(block * cuda.blockDim.x) + cuda.threadIdx.x)

    # x_j, and -inf beyond the row. All loads are under way before the first is waited for.
    @cuda.jit(device=True, forceinline=True)
    def load_part(x, X, row_start, part, pieces):
        loaded = cuda.local.array(ELEMENTS, stored)
        for k in range(PIECES):
            if piece_of(part, k) < pieces:
                load_piece(loaded, k, X, row_start + piece_of(part, k))
        for e in range(ELEMENTS):
            x[e] = widen(loaded[e]) if piece_of(part, e // VECTOR) < pieces else MINUS_INFINITY

    @cuda.jit(device=True, forceinline=True)
    def store_part(y, Y, row_start, part, pieces):
        narrowed = cuda.local.array(ELEMENTS, stored)
        for k in range(PIECES):
            for e in range(k * VECTOR, (k + 1) * VECTOR):
                narrowed[e] = narrow(y[e])
            if piece_of(part, k) < pieces:
                store_piece(narrowed, k, Y, row_start + piece_of(part, k))

    # Equation 4: m and d of the row from those of its warps, each of which gives its own to all blocks of the cluster.
    @cuda.jit(device=True, forceinline=True)
    def combine(m, d):
        pairs = cuda.shared.array((PAIRS, 2), float32)
        lane, warps = int32(cuda.threadIdx.x % WARP), int32(cuda.blockDim.x // WARP)
        own = int32(cuda.blockIdx.x % CLUSTER) * warps + int32(cuda.threadIdx.x // WARP)
        if CLUSTER > 1:
            cluster_wait()  # all blocks have begun
            if lane < CLUSTER:
                store_pair(pairs, own, lane, m, d)
            cluster_arrive()
            cluster_wait()
        else:
            if lane == 0:
                pairs[own, 0] = m
                pairs[own, 1] = d
            cuda.syncthreads()
        m = MINUS_INFINITY
        for warp in range(lane, CLUSTER * warps, WARP):
            m = max(m, pairs[warp, 0])
        m = warp_max(m)
        d = ZERO
        for warp in range(lane, CLUSTER * warps, WARP):
            d += pairs[warp, 1] * exp_below(pairs[warp, 0], m)
        return m, warp_sum(d)

    # 64 registers leave room for 1,024 threads on a multiprocessor.
    @cuda.jit(launch_bounds=(THREADS, 1024 // THREADS))
    def on_chip_softmax(X, Y, rows, columns):
        # A warp, a block or a cluster owns one row.
        row = int64(cuda.blockIdx.x // CLUSTER) * cuda.blockDim.y + cuda.threadIdx.y
        if row >= rows:
            return
        pieces = int32(columns) // int32(VECTOR)
        row_start = row * pieces
        parts = int32((pieces - 1) // (PIECES * CLUSTER * cuda.blockDim.x)) + 1 if HAS_PARTS else 1
        if CLUSTER > 1:
            cluster_arrive()

        # m and d of this warp's columns. The row's first part comes last and stays in registers, as exp(x_j - m).
        x = cuda.local.array(ELEMENTS, float32)
        m = MINUS_INFINITY
        d = ZERO
        for part in range(parts - 1, -1, -1):
            load_part(x, X, row_start, part, pieces)
            m_old = m
            for e in range(ELEMENTS):
                m = max(m, x[e])
            m = warp_max(m)
            d *= exp_below(m_old, m)
            for e in range(ELEMENTS):
                x[e] = exp_below(x[e], m)
                d += x[e]
        d = warp_sum(d)

        # y_i = exp(x_i - m) / d.
        m_warp = m
        if IS_SHARED:
            m, d = combine(m, d)
        factor = exp_below(m_warp, m) / d
        for part in range(parts):
            if part > 0:
                load_part(x, X, row_start, part, pieces)
            for e in range(ELEMENTS):
                x[e] = (exp_below(x[e], m_warp) if part > 0 else x[e]) * factor
            store_part(x, Y, row_start, part, pieces)

    return on_chip_softmax
