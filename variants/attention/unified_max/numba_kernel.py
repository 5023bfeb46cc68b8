"""FlashDecoding++, for few queries and many keys.

Hong et al. 2023, arXiv 2311.01282, section 3, "Asynchronized softmax with unified maximum value". A constant phi takes
the place of the maximum, so that splits of the keys do not depend on each other and their sums are added as they are. A
row for which phi is too far from its scores is computed again with its maximum. What a block does with its split is in
_mma/numba_split_attention.py. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._features.numba_features import NumbaFeatures
from variants._mma.numba_mma import (
    MINUS_INFINITY,
    block_index,
    end_seen,
    first_seen,
    global_address,
    shared_address,
    thread_index,
)
from variants._mma.numba_module_variable import atomic_increment, module_variable
from variants._mma.numba_parts import load_cg, numba_parts, store_float_global
from variants._mma.numba_runs_of_rows import RUNS_OF_ROWS, KeysOfHead, RunsOfRows, keys_of_head
from variants._mma.numba_split_attention import (
    FLOAT_BYTES,
    STORED_BYTES,
    THREADS,
    ZERO,
    exp_below,
    numba_splits,
    running_maximum,
    split_attention,
)
from variants._mma.splits import BC, BR, WARPS

ONE, INFINITY = np.float32(1), np.float32(np.inf)
COUNTER_BYTES = 4
AT_ONCE = THREADS // BR
"""Splits of which l is read together."""


class UnifiedMax(NamedTuple):
    """Where exp(s - phi) is used for a row."""

    phi: Any
    smallest_sum: Any
    """All weights add up to this, or more."""
    largest_weight: Any


# The softmax of a split with phi: P = exp(S - phi), l = l + rowsum(P). O is not rescaled. `largest`: weight so far of
# rows g and g + 8, of the lane's own keys.
@cuda.jit(device=True, forceinline=True)
def exponentiate_with_constant(O, l, m, S, phi, largest):
    for n in range(2):
        for e in range(4):
            S[0, n, e] = libdevice.fast_expf(S[0, n, e] - phi)
            largest[e // 2] = max(largest[e // 2], S[0, n, e])
            l[e // 2] += S[0, n, e]


@cuda.jit(device=True, forceinline=True)
def first_tile(keys, warp):
    key = int32(keys.begin + warp * BC)
    while key < keys.end and int32(key + BC) <= keys.first:
        key = int32(key + WARPS * BC)
    return key


@cuda.jit(device=True, forceinline=True)
def tile_after(keys, key):
    return int32(key + WARPS * BC)


class RowTile(NamedTuple):
    """A block's 16 rows of the query heads that share one key/value head, which are counted through those heads.

    Row r is query r % q_len. They meet the splits that hold the keys which one of them sees: at least one, so that a
    block writes O.
    """

    first_row: Any
    rows: Any
    own_head: Any
    number: Any
    """Counted through the batch, as are `kv_head` and `first_global_row`."""
    kv_head: Any
    first_global_row: Any
    first: Any
    end: Any
    first_split: Any
    splits: Any
    heads_meet: Any
    """The last queries of one head and the first of the next one."""


@cuda.jit(device=True, forceinline=True)
def query_of_row(tile, row, q_len):
    return int32(int32(tile.first_row + row) % q_len)


@cuda.jit(device=True, forceinline=True)
def head_of_row(tile, row, q_len, group):
    return int32(tile.own_head * group + min(int32(int32(tile.first_row + row) // q_len), int32(group - 1)))


@functools.cache
def unified_max_kernel(
    head_dim: int, split: int, slots: int, dtype: str, blocks_per_sm: int, row_tiles: int, features: NumbaFeatures
) -> Any:
    """The kernel for these compile-time parameters; `row_tiles`: room for their counters."""
    D, SPLIT, splits = head_dim, split, numba_splits(head_dim, slots, dtype)
    TD, share_rows, shared_O, shared_l, shared_m = (
        splits.TD, splits.share_rows, splits.shared_O, splits.shared_l, splits.shared_m
    )  # fmt: skip
    of_head, logit_of_head, WEIGHT = features.scores.of_head, features.sink.logit, features.sink.WEIGHT
    keys_of_splits = keys_of_head(D, first_tile, tile_after)
    with_constant, with_maximum = (
        split_attention(splits, keys_of_splits, RUNS_OF_ROWS, features.scores.apply, exponentiate)
        for exponentiate in (exponentiate_with_constant, running_maximum(TD))
    )
    parts = numba_parts(D, dtype, WEIGHT > 0)
    WIDTH, finished_row, add_weighted, store_sum = (
        parts.WIDTH, parts.finished_row, parts.add_weighted, parts.store_sum
    )  # fmt: skip
    arrived = module_variable("arrived", row_tiles)
    PART_ELEMENTS = BR * D

    # Worked out where it is needed: it takes no registers while the products are computed.
    @cuda.jit(device=True, forceinline=True)
    def row_tile_anew(q_len, kv_len, group, limits):
        group_rows, block = int32(group * q_len), block_index()
        row_tiles_of_head = int32(uint32(group_rows + BR - 1) // uint32(BR))
        first_row, own_head = int32(block % row_tiles_of_head * BR), int32(block // row_tiles_of_head)
        rows = int32(min(int32(BR), int32(group_rows - first_row)))
        number = uint64(cuda.blockIdx.z) * uint64(cuda.gridDim.x) + uint64(block)
        heads = uint32(cuda.gridDim.x) // uint32(row_tiles_of_head)
        kv_head = uint64(cuda.blockIdx.z) * uint64(heads) + uint64(own_head)
        first_query = int32(first_row % q_len)
        last_query = int32(first_query + rows - 1)
        heads_meet = last_query >= q_len
        first = first_seen(int32(0) if heads_meet else first_query, q_len, kv_len, limits[0])
        end = end_seen(int32(min(last_query, int32(q_len - 1))), q_len, kv_len, limits[1])
        first_split = int32(min(int32(uint32(first) // uint32(SPLIT)), int32(cuda.gridDim.y - 1)))
        splits = int32(int32(uint32(end - 1) // uint32(SPLIT)) - first_split + 1) if end > first else int32(1)
        first_global_row = kv_head * uint64(group_rows) + uint64(first_row)
        return RowTile(
            first_row, rows, own_head, number, kv_head, first_global_row, first, end, first_split, splits, heads_meet
        )

    # Attention of the tile's rows over the keys from `begin` on, of those that they see, up to `end`.
    @cuda.jit(device=True, forceinline=True)
    def keys_from(tile, K, V, begin, end, kv_len):
        kv_head = tile.kv_head * uint64(kv_len) * uint64(D * STORED_BYTES)
        first, last = int32(max(begin, tile.first)), int32(min(end, tile.end))
        return KeysOfHead(global_address(K) + kv_head, global_address(V) + kv_head, begin, first, last)

    @cuda.jit(device=True, forceinline=True)
    def queries_of(tile, q_len, t):
        row = int32(uint32(t & 31) >> uint32(2))
        return query_of_row(tile, row, q_len), query_of_row(tile, int32(row + 8), q_len)

    @cuda.jit(device=True, forceinline=True)
    def scores_of(tile, scores, q_len, kv_len, group, t):
        row = int32(uint32(t & 31) >> uint32(2))
        return (
            of_head(scores, head_of_row(tile, row, q_len, group), q_len, kv_len),
            of_head(scores, head_of_row(tile, int32(row + 8), q_len, group), q_len, kv_len),
        )

    @cuda.jit(device=True, forceinline=True)
    def seen_by(tile, queries, q_len, kv_len, limits):
        first_query = int32(tile.first_row % q_len)
        return RunsOfRows(
            first_seen(queries[0], q_len, kv_len, limits[0]),
            first_seen(queries[1], q_len, kv_len, limits[0]),
            end_seen(queries[0], q_len, kv_len, limits[1]),
            end_seen(queries[1], q_len, kv_len, limits[1]),
            first_seen(int32(min(int32(first_query + tile.rows - 1), int32(q_len - 1))), q_len, kv_len, limits[0]),
            end_seen(int32(0) if tile.heads_meet else first_query, q_len, kv_len, limits[1]),
        )

    # Attention of the block's split with phi. A sum that is not to be used is infinite.
    @cuda.jit(device=True, forceinline=True)
    def attend_with_constant(shared, tile, Q, K, V, q_len, kv_len, group, tau, unified, limits, scores):
        O = cuda.local.array((1, TD, 4), float32)
        l, m = cuda.local.array(2, float32), cuda.local.array(2, float32)
        largest = cuda.local.array(2, float32)
        m[0], m[1], largest[0], largest[1] = unified.phi, unified.phi, ZERO, ZERO
        begin, t = int32(cuda.blockIdx.y * SPLIT), thread_index()
        keys, queries = keys_from(tile, K, V, begin, int32(begin + SPLIT), kv_len), queries_of(tile, q_len, t)
        of_rows, seen = scores_of(tile, scores, q_len, kv_len, group, t), seen_by(tile, queries, q_len, kv_len, limits)
        Q_rows = global_address(Q) + tile.first_global_row * uint64(D * STORED_BYTES)
        with_constant(shared, Q_rows, tile.rows, tau, keys, seen, of_rows, queries, O, l, m, unified.phi, largest, t)
        for i in range(2):
            if largest[i] > unified.largest_weight:
                l[i] = INFINITY
        share_rows(shared, O, l, m, thread_index())  # all warps have the same m, so that nothing is rescaled

    # Attention of all the tile's keys, with the maximum.
    @cuda.jit(device=True, forceinline=True)
    def attend_with_maximum(shared, tile, Q, K, V, q_len, kv_len, group, tau, limits, scores):
        O = cuda.local.array((1, TD, 4), float32)
        l, m = cuda.local.array(2, float32), cuda.local.array(2, float32)
        m[0], m[1] = MINUS_INFINITY, MINUS_INFINITY
        t = thread_index()
        keys = keys_from(tile, K, V, int32(tile.first_split * SPLIT), tile.end, kv_len)
        queries = queries_of(tile, q_len, t)
        of_rows, seen = scores_of(tile, scores, q_len, kv_len, group, t), seen_by(tile, queries, q_len, kv_len, limits)
        Q_rows = global_address(Q) + tile.first_global_row * uint64(D * STORED_BYTES)
        with_maximum(shared, Q_rows, tile.rows, tau, keys, seen, of_rows, queries, O, l, m, ZERO, l, t)
        share_rows(shared, O, l, m, thread_index())

    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def unified_max(
        Q, K, V, O, lse, O_split, l_split, q_len, kv_len, group, tau, unified_arguments, limits, scores, sink
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(0, uint32, alignment=128))
        l_threads = cuda.shared.array(THREADS, float32)
        inverse = cuda.shared.array(BR, float32)
        weight = cuda.shared.array(BR, float32)
        logit = cuda.shared.array(BR, float32)
        lse_rows = cuda.shared.array(BR, float32)
        is_last = cuda.shared.array(1, int32)
        again = cuda.shared.array(BR, int32)
        unified = UnifiedMax(unified_arguments[0], unified_arguments[1], unified_arguments[2])

        own = row_tile_anew(q_len, kv_len, group, limits)
        split = int32(cuda.blockIdx.y - own.first_split)
        if split < 0 or split >= own.splits:
            return
        attend_with_constant(shared, own, Q, K, V, q_len, kv_len, group, tau, unified, limits, scores)

        tile, t = row_tile_anew(q_len, kv_len, group, limits), thread_index()
        rows, splits = tile.rows, tile.splits
        first_part = tile.number * uint64(cuda.gridDim.y)
        part = first_part + uint64(int32(cuda.blockIdx.y - tile.first_split))
        O_part = global_address(O_split) + part * uint64(PART_ELEMENTS * FLOAT_BYTES)
        for start in range(0, int32(rows * D), THREADS):
            e = int32(start + t)
            if e < rows * D:
                store_float_global(O_part + uint64(e) * uint64(FLOAT_BYTES), shared_O(shared, e))
        l_parts = global_address(l_split)
        if t < rows:
            store_float_global(l_parts + (part * uint64(BR) + uint64(t)) * uint64(FLOAT_BYTES), shared_l(shared, t))

        # The last block to come adds the sums of all splits, in their order.
        cuda.threadfence()
        cuda.syncthreads()
        if t == 0:
            counter = arrived() + tile.number * uint64(COUNTER_BYTES)
            is_last[0] = int32(atomic_increment(counter, uint32(splits - 1)) == uint32(splits - 1))
            cuda.threadfence()
        cuda.syncthreads()
        if is_last[0] == 0:
            return

        l, row = ZERO, int32(t % BR)
        # Counted from the first of all keys, so that a row's bits do not depend on what the others see.
        before = int32(tile.first_split % AT_ONCE)
        for start in range(0, int32(splits + before), AT_ONCE):
            s = int32(start + int32(t // BR) - before)
            if row < rows and s >= 0 and s < splits:
                l += load_cg(l_parts + ((first_part + uint64(s)) * uint64(BR) + uint64(row)) * uint64(FLOAT_BYTES))
        l_threads[t] = l
        cuda.syncthreads()
        is_unsafe = False
        if t < rows:
            l = ZERO
            for i in range(AT_ONCE):
                l += l_threads[i * BR + t]
            logit[t] = logit_of_head(sink, head_of_row(tile, t, q_len, group))
            of_sink = WEIGHT * libdevice.fast_expf(logit[t] - unified.phi)
            l += of_sink
            # A row that sees no key has O = 0 and, without a sink, lse = -inf. Not safe: l is too small, infinite or
            # NaN.
            query = query_of_row(tile, t, q_len)
            sees_keys = first_seen(query, q_len, kv_len, limits[0]) < end_seen(query, q_len, kv_len, limits[1])
            is_safe = l >= unified.smallest_sum and l < INFINITY and of_sink <= unified.largest_weight
            is_unsafe = sees_keys and not is_safe
            again[t] = int32(is_unsafe)
            inverse[t] = ONE / l if sees_keys else ZERO
            lse_rows[t] = unified.phi + libdevice.logf(l) if sees_keys else logit[t]
        if cuda.syncthreads_or(int32(is_unsafe)) != 0:
            # Rows that are not safe once more, with their maximum: this block reads all keys of the tile.
            whole = row_tile_anew(q_len, kv_len, group, limits)
            attend_with_maximum(shared, whole, Q, K, V, q_len, kv_len, group, tau, limits, scores)
            row = thread_index()
            if row < whole.rows and again[row] != 0:
                finished = finished_row(shared_l(shared, row), shared_m(shared, row), logit[row])
                weight[row] = exp_below(shared_m(shared, row), finished.m)
                inverse[row] = finished.inverse
                lse_rows[row] = finished.lse
            cuda.syncthreads()

        done, t = row_tile_anew(q_len, kv_len, group, limits), thread_index()
        if t < done.rows:
            lse_at = global_address(lse) + (done.first_global_row + uint64(t)) * uint64(FLOAT_BYTES)
            store_float_global(lse_at, lse_rows[t])
        O_parts = global_address(O_split) + done.number * uint64(cuda.gridDim.y) * uint64(PART_ELEMENTS * FLOAT_BYTES)
        O_rows = global_address(O) + done.first_global_row * uint64(D * STORED_BYTES)
        sum = cuda.local.array(WIDTH, float32)
        for start in range(0, int32(done.rows * D), THREADS * WIDTH):
            e = int32(start + t * WIDTH)
            if e < done.rows * D:
                row = int32(uint32(e) // uint32(D))
                for i in range(WIDTH):
                    sum[i] = ZERO
                for s in range(done.splits):
                    at = uint64(s) * uint64(PART_ELEMENTS) + uint64(e)
                    add_weighted(sum, ONE, O_parts + at * uint64(FLOAT_BYTES))
                if again[row] != 0:
                    for i in range(WIDTH):
                        sum[i] = shared_O(shared, int32(e + i)) * weight[row]
                store_sum(O_rows + uint64(e) * uint64(STORED_BYTES), sum, inverse[row])

    return unified_max
