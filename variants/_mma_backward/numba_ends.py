"""What comes before and after gradients on tensor cores: sums over rows, and dQ in 16 bits.

The CUDA twins are prepare.cu and round.cu: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
from numba import cuda, int32, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_sequences import numba_sequences
from variants._mma.numba_mma import (
    ALL_LANES,
    CHUNK_BYTES,
    LOG2_E,
    commit_copies,
    global_address,
    head_index,
    lane_index,
    load_global,
    load_shared,
    numba_mma,
    shared_address,
    store_global,
    store_shared,
    swizzled,
    thread_index,
    wait_for_copies,
)
from variants._mma.numba_strided_tiles import layout_tiles
from variants._mma.numba_tiles import STORED_BYTES
from variants._mma_backward import DQ_COLUMNS, END_ROWS, END_WARPS
from variants._mma_backward.numba_dq import FLOAT_BYTES, FRAGMENT, ZERO, as_float, load_fragment, to_lane
from variants._mma_backward.numba_order import begin_turns, turn_of
from variants._mma_backward.numba_rows_of_sequence import numba_rows_of_sequence
from variants._mma_backward.numba_stats import numba_stats

BR, WARPS = END_ROWS, END_WARPS  # rows per block
LANES = 8  # that share a row: each phase of a warp's loads has all chunks of one line
CHUNK = CHUNK_BYTES // STORED_BYTES
INFINITY = np.uint32(0x7F800000)
NOTHINGS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
load_word, store_word, load_chunk, store_chunk = load_shared(4), store_shared(4), load_shared(16), store_shared(16)
load_number, store_number, store_numbers = load_global(4), store_global(4), store_global(16)
wait_for_all = wait_for_copies(0)


@functools.cache
def end_kernels(
    head_dim: int,
    dtype: str,
    aligned: int | None,
    varlen: bool,
    adds_dQ: bool,
    stats_of_tiles: bool = False,
    in_order: bool = False,
) -> SimpleNamespace:
    """The kernels `bwd_mma_prepare` and `bwd_mma_round`; `adds_dQ`: blocks add their parts to dQ in memory.

    `aligned`, `varlen`: as of `layout_tiles`. `stats_of_tiles`: see `stats`. `in_order`: see `order`.
    """
    D = head_dim
    tiles, mma = layout_tiles(D, WARPS, dtype, aligned, varlen), numba_mma(dtype)
    THREADS, ROW_BYTES, copy_tile, store_tile = tiles.THREADS, tiles.ROW_BYTES, tiles.copy_tile, tiles.store_tile
    packed, unpacked, rows_at, stride_of = mma.packed, mma.unpacked, tiles.rows_at, tiles.stride_of
    TILE_BYTES = BR * ROW_BYTES
    DQ_TILES = -(-D // DQ_COLUMNS)
    stat_rows = numba_stats(stats_of_tiles)
    sequence_at, has_rows, row_in_Q, _, number_of, _ = numba_sequences(varlen)
    fragments_before = numba_rows_of_sequence(varlen).fragments

    @cuda.jit(device=True, forceinline=True)
    def head_number(own):
        return uint64(number_of(own, head_index(), cuda.blockIdx.y))

    # The first fragment of dQ of the block's rows: where it lies. `q_len`: rows of the head, in all sequences.
    @cuda.jit(device=True, forceinline=True)
    def first_fragment(dQ, own, q_len, first_row):
        before = fragments_before(head_number(own), q_len, row_in_Q(own, int32(0)))
        fragments = (before + uint64(uint32(first_row) >> uint32(4))) * uint64(DQ_TILES)
        return global_address(dQ) + fragments * uint64(FRAGMENT * FLOAT_BYTES)

    # The sum of what the lanes have that share a row.
    @cuda.jit(device=True, forceinline=True)
    def sum_of_row(sum):
        other = LANES // 2
        while other > 0:
            sum += cuda.shfl_xor_sync(ALL_LANES, sum, other)
            other //= 2
        return sum

    # Line 4: D = rowsum(dO o O), for each row of the tiles.
    @cuda.jit(device=True, forceinline=True)
    def sum_rows(sums, O_tile, dO_tile):
        for start in range(0, BR, THREADS // LANES):
            row = uint32(start + (thread_index() >> 3))
            sum = ZERO
            for first_chunk in range(0, -(-D // CHUNK), LANES):
                chunk = uint32(first_chunk + (thread_index() & (LANES - 1)))
                if chunk * CHUNK < D:
                    at = swizzled(ROW_BYTES, row, chunk)
                    os, gs = load_chunk(O_tile + at), load_chunk(dO_tile + at)
                    for o, g in zip(os, gs):
                        o_low, o_high = unpacked(o)
                        g_low, g_high = unpacked(g)
                        sum = libdevice.fmaf(o_low, g_low, sum)
                        sum = libdevice.fmaf(o_high, g_high, sum)
            sum = sum_of_row(sum)
            if thread_index() & (LANES - 1) == 0:
                store_word(sums + row * uint32(4), uint32(libdevice.float_as_int(sum)))

    # Line 3: dQ = 0.
    @cuda.jit(device=True, forceinline=True)
    def clear_dQ(dQ, own, q_len, first_row, rows):
        if adds_dQ:
            to = first_fragment(dQ[0], own, q_len, first_row)
            quads = int32((int32(rows + 15) >> 4) * (DQ_TILES * FRAGMENT // 4))
            e = thread_index()
            while e < quads:
                store_numbers(to + uint64(uint32(e)) * uint64(16), NOTHINGS)
                e = int32(e + THREADS)

    # It is the turn of the first tile of keys.
    @cuda.jit(device=True, forceinline=True)
    def begin_all_turns(order, q_len, first_row):
        if in_order and thread_index() == 0:
            begin_turns(turn_of(order, head_index(), first_row, q_len))

    # What fills the head's last tile of L and D, behind its last row: P = 0.
    @cuda.jit(device=True, forceinline=True)
    def fill_stats(L, delta, q_len, first_row, rows, first_stat):
        if stats_of_tiles and int32(first_row + BR) >= q_len:
            r = int32(rows + thread_index())
            while r < int32(stat_rows(q_len) - first_row):
                at = (first_stat + uint64(uint32(r))) * uint64(FLOAT_BYTES)
                store_number(global_address(L) + at, INFINITY)
                store_number(global_address(delta) + at, NOTHINGS[0])
                r = int32(r + THREADS)

    # The block's first row of O, dO or dQ. Of `layout` and `gradients` there is nothing to ask: arrays know their
    # strides.
    @cuda.jit(device=True, forceinline=True)
    def first_of(array, first, first_row):
        return rows_at(array, first * uint64(D * STORED_BYTES), cuda.blockIdx.z, cuda.blockIdx.y, first_row)

    # Dao 2023, arXiv 2307.08691, algorithm 2, lines 3 and 4. And L = log2(e) lse.
    @cuda.jit(launch_bounds=THREADS)
    def bwd_mma_prepare(O, dO, lse, L, delta, q_len, dQ, order, sequences, layout, gradients):
        O_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        dO_tile = uint32(O_tile + TILE_BYTES)
        first_row = int32(cuda.blockIdx.x * BR)
        own = sequence_at(sequences, cuda.blockIdx.z, first_row, q_len, int32(0))
        if not has_rows(own):
            return
        rows, row = int32(min(int32(BR), int32(own.q_len - first_row))), int32(row_in_Q(own, first_row))
        first = head_number(own) * uint64(q_len) + uint64(row)
        if D % CHUNK != 0:
            for e in range(thread_index(), int32(2 * TILE_BYTES // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(O_tile + uint32(e) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()
        copy_tile(O_tile, BR, first_of(O, first, row), stride_of(O), rows)
        copy_tile(dO_tile, BR, first_of(dO, first, row), stride_of(dO), rows)
        commit_copies()
        clear_dQ(dQ, own, q_len, first_row, rows)
        begin_all_turns(order, q_len, first_row)
        thread, first_stat = thread_index(), head_number(own) * uint64(stat_rows(q_len)) + uint64(row)
        of_row = (first + uint64(thread)) * uint64(FLOAT_BYTES)
        stat_of_row = (first_stat + uint64(thread)) * uint64(FLOAT_BYTES)
        if thread < rows:
            lse_of_row = as_float(load_number(global_address(lse) + of_row))
            store_number(global_address(L) + stat_of_row, uint32(libdevice.float_as_int(LOG2_E * lse_of_row)))
        fill_stats(L, delta, own.q_len, first_row, rows, first_stat)
        wait_for_all()
        cuda.syncthreads()

        sums = uint32(O_tile + 2 * TILE_BYTES)
        sum_rows(sums, O_tile, dO_tile)
        cuda.syncthreads()
        if thread < rows:
            store_number(global_address(delta) + stat_of_row, load_word(sums + uint32(thread) * uint32(4)))

    # Line 20: return dQ, which is times tau, in the problem's own dtype and order.
    @cuda.jit(launch_bounds=THREADS)
    def bwd_mma_round(dQ, q_len, tau, running, sequences, gradients):
        dQ_tile = shared_address(cuda.shared.array(0, uint32, alignment=128))
        first_row = int32(cuda.blockIdx.x * BR)
        own = sequence_at(sequences, cuda.blockIdx.z, first_row, q_len, int32(0))
        if not has_rows(own):
            return
        rows, lane = int32(min(int32(BR), int32(own.q_len - first_row))), lane_index()
        lanes = first_fragment(running[0], own, q_len, first_row) + to_lane(lane)
        f, fragments = int32(uint32(thread_index()) >> uint32(5)), int32((int32(rows + 15) >> 4) * DQ_TILES)
        while f < fragments:
            c = lanes + uint64(uint32(f)) * uint64(FRAGMENT * FLOAT_BYTES)
            first_of_fragment = uint32(uint32(f) // uint32(DQ_TILES) * uint32(16) + (lane >> uint32(2)))
            column = uint32(f) % uint32(DQ_TILES)
            c0, c1, c2, c3 = load_fragment(c)
            at = dQ_tile + (lane & 3) * 4
            store_word(at + swizzled(ROW_BYTES, first_of_fragment, column), packed(tau * c0, tau * c1))
            store_word(at + swizzled(ROW_BYTES, uint32(first_of_fragment + 8), column), packed(tau * c2, tau * c3))
            f = int32(f + WARPS)
        cuda.syncthreads()
        row = int32(row_in_Q(own, first_row))
        first = head_number(own) * uint64(q_len) + uint64(row)
        store_tile(first_of(dQ, first, row), stride_of(dQ), dQ_tile, rows)

    return SimpleNamespace(bwd_mma_prepare=bwd_mma_prepare, bwd_mma_round=bwd_mma_round)
