"""Equal runs of keys (stream-K): Sanovar et al. 2024, arXiv 2405.10480, algorithm 2. The CUDA twin is equal_runs.cuh.

The keys of all heads and sequences lie in one row of lean tiles, and each block takes an equal run of it, wherever
heads end. Before the lean tiles of each output tile there are START_TILES empty places. All threads go round loops
equally often: no compiler then lets a warp's lanes get out of step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma.equal_runs import LEAN_TILE, START_TILES
from variants._mma.numba_combine import warp_max, warp_sum
from variants._mma.numba_mma import MINUS_INFINITY, end_seen, first_seen
from variants._mma.numba_module_variable import atomic_increment, module_variable
from variants._mma.numba_parts import load_cg, numba_parts, store_float_global
from variants._mma.numba_split_attention import (
    FLOAT_BYTES,
    STORED_BYTES,
    THREADS,
    ZERO,
    exp_below,
    load_float,
    store_float,
)
from variants._mma.splits import BR, WARPS

COUNTER_BYTES = 4


class OutputTile(NamedTuple):
    """16 rows of the query heads that share one key/value head, counted through those heads.

    Row r is query r % q_len. The tile has the lean tiles that hold the keys from the first to the last that one of its
    rows sees, or one if they see none.
    """

    first_row: Any
    rows: Any
    first_query: Any
    last_query: Any
    heads_meet: Any
    """The last queries of one head and the first of the next one."""
    first: Any
    end: Any
    """Keys from `first` to before `end`."""


@cuda.jit(device=True, forceinline=True)
def output_tile(number, group_rows, q_len, kv_len, limits):
    first_row = int32(number * BR)
    rows = int32(min(int32(BR), int32(group_rows - first_row)))
    first_query = int32(first_row % q_len)
    last_query = int32(first_query + rows - 1)
    heads_meet = last_query >= q_len
    first = first_seen(int32(0) if heads_meet else first_query, q_len, kv_len, limits[0])
    end = end_seen(int32(min(last_query, int32(q_len - 1))), q_len, kv_len, limits[1])
    return OutputTile(first_row, rows, first_query, last_query, heads_meet, first, end)


@cuda.jit(device=True, forceinline=True)
def first_lean_tile(tile):
    return int32(uint32(tile.first) // uint32(LEAN_TILE))


@cuda.jit(device=True, forceinline=True)
def lean_tiles_of(tile):
    if tile.end > tile.first:
        return uint32(uint32(tile.end - 1) // uint32(LEAN_TILE) - uint32(first_lean_tile(tile)) + uint32(1))
    return uint32(1)


@cuda.jit(device=True, forceinline=True)
def places_of(tile):
    return uint32(uint32(START_TILES) + lean_tiles_of(tile))


# The division of `total` places, counted through all heads and sequences, into equal runs, one per block: the first
# place of a block, and the block that has a place. A run has more than START_TILES places, and so a lean tile.
@cuda.jit(device=True, forceinline=True)
def run_begin(total, block):
    return uint32(uint64(total) * uint64(block) // uint64(cuda.gridDim.x))


@cuda.jit(device=True, forceinline=True)
def block_of(total, place):
    return uint32(((uint64(place) + uint64(1)) * uint64(cuda.gridDim.x) - uint64(1)) // uint64(total))


# What a block has of one output tile, which one of its threads finds out: the lean tiles in places AT to TO - 1, of
# those in BEGIN to END - 1.
# RUN_END: of the block's run. KV_HEAD: counted through all sequences. NUMBER: of the output tile, of those of its head.
AT, TO, BEGIN, END, RUN_END, KV_HEAD, NUMBER, KV_LEN = range(8)
SEGMENT_FIELDS = 8


# The segment that begins with the first lean tile from place `at` on, of a key/value head whose places begin with
# `head_begin`.
@cuda.jit(device=True, forceinline=True)
def find_segment(segment, at, kv_head, head_begin, group_rows, q_len, kv_len, limits):
    number, begin = int32(0), uint32(head_begin)
    places = places_of(output_tile(number, group_rows, q_len, kv_len, limits))
    while uint32(at - begin) >= places:
        begin, number = uint32(begin + places), int32(number + 1)
        places = places_of(output_tile(number, group_rows, q_len, kv_len, limits))
    end = uint32(begin + places)
    begin = uint32(begin + uint32(START_TILES))
    segment[AT], segment[TO] = uint32(max(at, begin)), uint32(min(end, segment[RUN_END]))
    segment[BEGIN], segment[END] = begin, end
    segment[KV_HEAD], segment[NUMBER], segment[KV_LEN] = uint32(kv_head), uint32(number), uint32(kv_len)


@cuda.jit(device=True, forceinline=True)
def tile_of(segment, group_rows, q_len, limits):
    return output_tile(int32(segment[NUMBER]), group_rows, q_len, int32(segment[KV_LEN]), limits)


@cuda.jit(device=True, forceinline=True)
def is_whole(segment):
    return segment[AT] == segment[BEGIN] and segment[TO] == segment[END]


# Whether there is no lean tile of another output tile in the block's run.
@cuda.jit(device=True, forceinline=True)
def is_last_segment(segment):
    return uint32(segment[TO] + uint32(START_TILES)) >= segment[RUN_END]


class Parts(NamedTuple):
    """Addresses of O, l and m of parts of output tiles.

    A block has at most two that are not whole, one that it begins with and one that it ends with.
    """

    O: Any
    l: Any
    m: Any


@cuda.jit(device=True, forceinline=True)
def part_at_begin(block):
    return uint32(uint32(2) * uint32(block))


@cuda.jit(device=True, forceinline=True)
def part_at_end(block):
    return uint32(uint32(2) * uint32(block) + uint32(1))


@cuda.jit(device=True, forceinline=True)
def of_row(rows, part, row):
    return rows + (uint64(part) * uint64(BR) + uint64(row)) * uint64(FLOAT_BYTES)


def numba_equal_runs(splits: Any, dtype: str, output_tiles: int, logit_of_head: Any, sinks: bool) -> Any:
    """The device function `finish` of kernels with room for the counters of so many output tiles.

    `splits`: of `numba_splits`; `logit_of_head`: of a sink, as in `numba_sink`.
    """
    D, shared_O, shared_l, shared_m = splits.D, splits.shared_O, splits.shared_l, splits.shared_m
    parts_of_rows = numba_parts(D, dtype, sinks)
    WIDTH, finished_row, store_rounded = parts_of_rows.WIDTH, parts_of_rows.finished_row, parts_of_rows.store_rounded
    add_weighted, store_sum = parts_of_rows.add_weighted, parts_of_rows.store_sum
    arrived = module_variable("arrived", output_tiles)

    @cuda.jit(device=True, forceinline=True)
    def O_of(parts, part):
        return parts.O + uint64(part) * uint64(BR * D * FLOAT_BYTES)

    # All parts of an output tile -> its O and lse. m, then the weight, of each part and row lies in shared memory,
    # where the slots were, and l behind it.
    @cuda.jit(device=True, forceinline=True)
    def put_parts_together(shared, O, lse, parts, first_part, next_part, count, rows, logit, inverse):
        lse_rows = cuda.shared.array(BR, float32)
        t = int32(cuda.threadIdx.x)
        warp, lane = int32(t >> 5), int32(t & 31)
        l_parts = uint32(shared + uint32(count) * uint32(BR * FLOAT_BYTES))
        for start in range(0, int32(count * BR), THREADS):
            i = int32(start + t)
            p, row = uint32(i) // uint32(BR), uint32(i) % uint32(BR)
            if p < count and row < rows:
                part = first_part if p == 0 else uint32(next_part + uint32(2) * (p - uint32(1)))
                store_float(uint32(shared + uint32(i) * uint32(FLOAT_BYTES)), load_cg(of_row(parts.m, part, row)))
                store_float(uint32(l_parts + uint32(i) * uint32(FLOAT_BYTES)), load_cg(of_row(parts.l, part, row)))
        cuda.syncthreads()
        row = warp
        while row < rows:
            m, l = MINUS_INFINITY, ZERO
            for p in range(lane, count, 32):
                m = max(m, load_float(uint32(shared + uint32(p * BR + row) * uint32(FLOAT_BYTES))))
            m = warp_max(m)
            for p in range(lane, count, 32):
                at = uint32(p * BR + row) * uint32(FLOAT_BYTES)
                weight = exp_below(load_float(uint32(shared + at)), m)
                l = libdevice.fmaf(weight, load_float(uint32(l_parts + at)), l)
            finished = finished_row(warp_sum(l), m, logit[row])
            for p in range(lane, count, 32):
                at = uint32(shared + uint32(p * BR + row) * uint32(FLOAT_BYTES))
                store_float(at, exp_below(load_float(at), finished.m))
            if lane == 0:
                inverse[row] = finished.inverse
                lse_rows[row] = finished.lse
            row = int32(row + WARPS)
        cuda.syncthreads()
        if t < rows:
            store_float_global(lse + uint64(t) * uint64(FLOAT_BYTES), lse_rows[t])
        sum = cuda.local.array(WIDTH, float32)
        for start in range(0, int32(rows * D), THREADS * WIDTH):
            e = int32(start + t * WIDTH)
            if e < rows * D:
                row = uint32(e) // uint32(D)
                for i in range(WIDTH):
                    sum[i] = ZERO
                for p in range(count):
                    part = first_part if p == 0 else uint32(next_part + uint32(2 * (p - 1)))
                    weight = load_float(uint32(shared + (uint32(p * BR) + row) * uint32(FLOAT_BYTES)))
                    add_weighted(sum, weight, O_of(parts, part) + uint64(e) * uint64(FLOAT_BYTES))
                store_sum(O + uint64(e) * uint64(STORED_BYTES), sum, inverse[row])

    # A segment's O, l and m leave shared memory, where `share_rows` has put them: as O and lse if it is a whole output
    # tile, and else as a part. O and lse: of the output tile's first row. `first_head`: the query head of row 0 of the
    # tile's key/value head, of those of its sequence; there are `group` of them.
    @cuda.jit(device=True, forceinline=True)
    def finish(shared, segment, total, parts, O, lse, group_rows, first_row, rows, q_len, first_head, group, sink):
        is_last = cuda.shared.array(1, int32)
        logit = cuda.shared.array(BR, float32)
        weight = cuda.shared.array(BR, float32)
        inverse = cuda.shared.array(BR, float32)
        t = int32(cuda.threadIdx.x)
        if t < rows:
            head = int32(first_head + min(int32(int32(first_row + t) // q_len), int32(group - 1)))
            logit[t] = logit_of_head(sink, head)
        if is_whole(segment):
            if t < rows:
                row = finished_row(shared_l(shared, t), shared_m(shared, t), logit[t])
                weight[t] = exp_below(shared_m(shared, t), row.m)
                inverse[t] = row.inverse
                store_float_global(lse + uint64(t) * uint64(FLOAT_BYTES), row.lse)
            cuda.syncthreads()
            for start in range(0, int32(rows * D), THREADS):
                e = int32(start + t)
                if e < rows * D:
                    r = uint32(e) // uint32(D)
                    store_rounded(O + uint64(e) * uint64(STORED_BYTES), shared_O(shared, e) * weight[r] * inverse[r])
            return

        block = uint32(cuda.blockIdx.x)
        part = part_at_end(block) if segment[AT] == segment[BEGIN] else part_at_begin(block)
        for start in range(0, int32(rows * D), THREADS):
            e = int32(start + t)
            if e < rows * D:
                store_float_global(O_of(parts, part) + uint64(e) * uint64(FLOAT_BYTES), shared_O(shared, e))
        if t < rows:
            store_float_global(of_row(parts.l, part, t), shared_l(shared, t))
            store_float_global(of_row(parts.m, part, t), shared_m(shared, t))
        # The last block to come puts the parts together in their order, so that bits do not depend on which one it is:
        # the first part is the end of a block's run, the others are the beginnings of the next blocks' runs.
        first_block = block_of(total, segment[BEGIN])
        count = int32(block_of(total, uint32(segment[END] - uint32(1))) - first_block + uint32(1))
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            tiles_per_head = uint32(uint32(group_rows + BR - 1) // uint32(BR))
            counter = arrived() + uint64(segment[KV_HEAD] * tiles_per_head + segment[NUMBER]) * uint64(COUNTER_BYTES)
            is_last[0] = int32(atomic_increment(counter, uint32(count - 1)) == uint32(count - 1))
            cuda.threadfence()
        cuda.syncthreads()
        if is_last[0] != 0:
            first_part, next_part = part_at_end(first_block), part_at_begin(uint32(first_block + uint32(1)))
            put_parts_together(shared, O, lse, parts, first_part, next_part, count, rows, logit, inverse)

    return finish
