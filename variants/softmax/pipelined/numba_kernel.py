"""Softmax of rows that are copied to shared memory in advance: while one tile is computed in registers, bulk copies
bring those after it. m, d and equation 4 are those of Milakov and Gimelshein 2018, arXiv 1805.02867.

The CUDA twin is kernel.cu. A thread's pieces of a row are in numba_pieces.py.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32, int32, int64, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_stored import conversions
from variants._hopper.numba_hopper import init_barrier, publish_barriers, wait
from variants._mma.numba_mma import ALL_LANES, global_address, lane_index, shared_address, thread_index
from variants._mma.numba_module_variable import module_variable
from variants._rows.numba_rows import MINUS_INFINITY, ZERO, exp_below
from variants.softmax.on_chip.numba_kernel import warp_max, warp_sum
from variants.softmax.pipelined import LINE_BYTES, PIECE_BYTES, WARP, Sizes
from variants.softmax.pipelined.numba_exchange import exchange_of, warp_index, weights_of
from variants.softmax.pipelined.numba_pieces import row_of_pieces
from variants.softmax.pipelined.numba_tiles import tiles_of


@functools.cache
def pipelined_kernel(sizes: Sizes, dtype: str) -> Any:
    """The kernel for X and Y stored as `dtype`, compiled for these sizes."""
    PIECES, THREADS, CLUSTER, STAGES, IS_SHARED, IS_PERSISTENT = sizes
    VECTOR = PIECE_BYTES // np.dtype(conversions(dtype)[0]).itemsize
    ELEMENTS = VECTOR * PIECES
    WARPS = THREADS // WARP
    PAIRS, BOTH_PAIRS = CLUSTER * WARPS, 2 * CLUSTER * WARPS
    ROW_THREADS = THREADS if IS_SHARED else WARP  # of this block, that have elements of the same row
    TILE_ROWS = THREADS // ROW_THREADS
    weight = weights_of(dtype)
    load_pieces, store_pieces = row_of_pieces(PIECES, ROW_THREADS, dtype)
    cluster_sync, give_to_blocks, combine = exchange_of(THREADS, CLUSTER)
    load_tile, take_tile = tiles_of(TILE_ROWS, STAGES)
    taken_address = module_variable("taken")

    # Blocks of a multiprocessor at least, as far as registers decide.
    @cuda.jit(launch_bounds=(THREADS, (512 if ELEMENTS > 32 else 1024) // THREADS))
    def pipelined_softmax(X, Y, rows, columns):
        pairs = cuda.shared.array((BOTH_PAIRS, 2), float32)  # half is written while slower warps still read the other
        next_tiles = cuda.shared.array((2, 2), float32)  # the bits of an int32, and nothing
        full = shared_address(cuda.shared.array(STAGES, uint64))
        stages = shared_address(cuda.shared.array(0, uint32, alignment=LINE_BYTES))
        taken = taken_address()

        # Of each row, this block has the pieces from `first` on.
        row_pieces, rank = int32(columns // VECTOR), int32(cuda.blockIdx.x % CLUSTER)
        share = int32(int32((row_pieces - 1) // (CLUSTER * WARP)) + 1) * WARP if CLUSTER > 1 else row_pieces
        first = rank * share
        pieces, row_bytes = min(share, row_pieces - first), int32(row_pieces * PIECE_BYTES)
        clusters, tiles = int32(cuda.gridDim.x // CLUSTER), int32((rows - 1) // TILE_ROWS) + 1
        stage_bytes = int32(int32(TILE_ROWS * share * PIECE_BYTES + LINE_BYTES - 1) // LINE_BYTES) * LINE_BYTES
        X_share = uint64(global_address(X) + uint64(first * PIECE_BYTES))
        Y_share = uint64(global_address(Y) + uint64(first * PIECE_BYTES))

        ahead = cuda.local.array(STAGES, int32)
        for stage in range(STAGES):
            ahead[stage] = int32(cuda.blockIdx.x // CLUSTER) + stage * clusters
        taken_tile = tiles
        if thread_index() == 0:
            for stage in range(STAGES):
                init_barrier(uint32(full + 8 * stage), 1)
            publish_barriers()
            for stage in range(STAGES):
                if ahead[stage] < tiles:
                    row = int32(ahead[stage] * TILE_ROWS)
                    to, barrier = uint32(stages + stage * stage_bytes), uint32(full + 8 * stage)
                    load_tile(to, barrier, X_share, row, rows, pieces, row_bytes)
            if IS_PERSISTENT and rank == 0:
                taken_tile = take_tile(taken, tiles, clusters)
        cluster_sync()

        x = cuda.local.array(ELEMENTS, float32)
        stage, parity, turn = int32(0), uint32(0), int32(0)
        while ahead[0] < tiles:
            # x_j of this thread's pieces, and -inf beyond the row.
            first_piece = thread_index() if IS_SHARED else lane_index()
            row_in_tile = int32(0) if IS_SHARED else warp_index()
            row = int32(ahead[0] * TILE_ROWS) + row_in_tile
            left = int32((pieces if row < rows else int32(0)) - first_piece)
            tile_in_stage, barrier = uint32(stages + stage * stage_bytes), uint32(full + 8 * stage)
            own_x = uint32(tile_in_stage + int32(row_in_tile * share + first_piece) * PIECE_BYTES)
            wait(barrier, parity)
            load_pieces(x, own_x, left)

            # m and d of this warp's columns. x_j becomes exp(x_j - m).
            m = MINUS_INFINITY
            for e in range(ELEMENTS):
                m = max(m, x[e])
            m = warp_max(m)
            d = ZERO
            for e in range(ELEMENTS):
                x[e] = weight(x[e], m)
                d += x[e]
            d = warp_sum(d)

            # The warps exchange them. The barrier also means that all threads have read this stage.
            m_warp = m
            if IS_SHARED:
                give_to_blocks(pairs, int32(turn * PAIRS) + rank * WARPS + warp_index(), m, d)
            if IS_PERSISTENT and rank == 0 and warp_index() == 0:
                given = cuda.shfl_sync(ALL_LANES, taken_tile, 0)
                give_to_blocks(next_tiles, turn, libdevice.int_as_float(given), ZERO)
            if IS_SHARED or IS_PERSISTENT:
                cluster_sync()
            next_tile = tiles
            if IS_PERSISTENT:
                next_tile = libdevice.float_as_int(next_tiles[turn, 0])
            if thread_index() == 0 and next_tile < tiles:
                load_tile(tile_in_stage, barrier, X_share, int32(next_tile * TILE_ROWS), rows, pieces, row_bytes)
                if rank == 0:
                    taken_tile = take_tile(taken, tiles, clusters)
            if IS_SHARED:
                m, d = combine(pairs, turn)

            # y_i = exp(x_i - m) / d.
            factor = exp_below(m_warp, m) / d
            own_y = uint64(Y_share + uint64(int64(row) * row_bytes + first_piece * PIECE_BYTES))
            store_pieces(x, factor, own_y, left)
            for s in range(STAGES - 1):
                ahead[s] = ahead[s + 1]
            ahead[STAGES - 1] = next_tile
            turn = int32(1 - turn)
            stage = int32(stage + 1) if stage + 1 < STAGES else int32(0)
            if stage == 0:
                parity = uint32(1 - parity)

    return pipelined_softmax
