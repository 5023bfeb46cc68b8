"""Lean Attention: Sanovar et al. 2024, arXiv 2405.10480, algorithm 2, for few queries and many keys.

How the keys are divided among blocks, and how parts are put together, is in _mma/numba_equal_runs.py; what a block does
with the keys of one head is in _mma/numba_split_attention.py. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32, uint32, uint64

from variants._features.numba_features import NumbaFeatures
from variants._mma.equal_runs import LEAN_TILE
from variants._mma.numba_equal_runs import (
    AT,
    BEGIN,
    KV_HEAD,
    RUN_END,
    SEGMENT_FIELDS,
    TO,
    Parts,
    find_segment,
    first_lean_tile,
    is_last_segment,
    numba_equal_runs,
    run_begin,
    tile_of,
)
from variants._mma.numba_mma import MINUS_INFINITY, end_seen, first_seen, global_address, lane_index, shared_address
from variants._mma.numba_runs_of_rows import RUNS_OF_ROWS, KeysOfHead, RunsOfRows, keys_of_head
from variants._mma.numba_split_attention import (
    FLOAT_BYTES,
    STORED_BYTES,
    THREADS,
    ZERO,
    numba_splits,
    running_maximum,
    split_attention,
)
from variants._mma.splits import BC


@cuda.jit(device=True, forceinline=True)
def first_tile(keys, warp):
    key = int32(keys.begin + warp * BC)
    return int32(key + LEAN_TILE) if int32(key + BC) <= keys.first else key


@cuda.jit(device=True, forceinline=True)
def tile_after(keys, key):
    return int32(key + LEAN_TILE)


@functools.cache
def lean_kernel(
    head_dim: int, slots: int, dtype: str, blocks_per_sm: int, output_tiles: int, features: NumbaFeatures
) -> Any:
    """The kernel for these compile-time parameters; `output_tiles`: room for their counters."""
    D, splits = head_dim, numba_splits(head_dim, slots, dtype)
    TD, share_rows, of_head = splits.TD, splits.share_rows, features.scores.of_head
    keys_of_run = keys_of_head(D, first_tile, tile_after)
    attend_to_split = split_attention(splits, keys_of_run, RUNS_OF_ROWS, features.scores.apply, running_maximum(TD))
    finish = numba_equal_runs(splits, dtype, output_tiles, features.sink.logit, features.sink.WEIGHT > 0)

    # Of row r of an output tile, counted through the heads that share K and V.
    @cuda.jit(device=True, forceinline=True)
    def head_of_row(segment, first_row, row, q_len, kv_heads, group):
        head = int32(min(int32(int32(first_row + row) // q_len), int32(group - 1)))
        return int32(int32(segment[KV_HEAD] % uint32(kv_heads)) * group + head)

    # Attention of a segment's part of the output tile.
    @cuda.jit(device=True, forceinline=True)
    def attend(shared, segment, tile, Q, K, V, q_len, kv_len, kv_heads, group, tau, limits, scores):
        O = cuda.local.array((1, TD, 4), float32)
        l = cuda.local.array(2, float32)
        m = cuda.local.array(2, float32)
        m[0] = m[1] = MINUS_INFINITY
        first_lean = uint32(uint32(first_lean_tile(tile)) - segment[BEGIN])
        begin = int32((first_lean + segment[AT]) * uint32(LEAN_TILE))
        end = int32((first_lean + segment[TO]) * uint32(LEAN_TILE))
        kv_head = uint64(segment[KV_HEAD]) * uint64(kv_len) * uint64(D * STORED_BYTES)
        keys = KeysOfHead(
            global_address(K) + kv_head,
            global_address(V) + kv_head,
            begin,
            int32(max(begin, tile.first)),
            int32(min(end, tile.end)),
        )
        row = int32(lane_index() >> uint32(2))
        queries = int32(int32(tile.first_row + row) % q_len), int32(int32(tile.first_row + row + 8) % q_len)
        of_rows = (
            of_head(scores, head_of_row(segment, tile.first_row, row, q_len, kv_heads, group), q_len, kv_len),
            of_head(
                scores, head_of_row(segment, tile.first_row, int32(row + 8), q_len, kv_heads, group), q_len, kv_len
            ),
        )
        before, after = limits
        seen = RunsOfRows(
            first_seen(queries[0], q_len, kv_len, before),
            first_seen(queries[1], q_len, kv_len, before),
            end_seen(queries[0], q_len, kv_len, after),
            end_seen(queries[1], q_len, kv_len, after),
            first_seen(int32(min(tile.last_query, int32(q_len - 1))), q_len, kv_len, before),
            end_seen(int32(0) if tile.heads_meet else tile.first_query, q_len, kv_len, after),
        )
        first_row = uint64(segment[KV_HEAD]) * uint64(group * q_len) + uint64(tile.first_row)
        Q_rows = global_address(Q) + first_row * uint64(D * STORED_BYTES)
        t = int32(cuda.threadIdx.x)
        attend_to_split(shared, Q_rows, tile.rows, tau, keys, seen, of_rows, queries, O, l, m, ZERO, l, t)
        share_rows(shared, O, l, m, t)

    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def lean(
        Q, K, V, O, lse, O_parts, l_parts, m_parts, q_len, kv_len, kv_heads, group, places, places_per_head,
        tau, limits, scores, sink,
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(0, uint32, alignment=128))
        segment = cuda.shared.array(SEGMENT_FIELDS, uint32)
        parts = Parts(global_address(O_parts), global_address(l_parts), global_address(m_parts))
        t, group_rows = int32(cuda.threadIdx.x), int32(group * q_len)
        if t == 0:
            segment[TO] = run_begin(places, cuda.blockIdx.x)
            segment[RUN_END] = run_begin(places, cuda.blockIdx.x + 1)
        while True:
            cuda.syncthreads()  # nothing of the last segment is read in shared memory any more
            if t == 0:
                kv_head = uint32(segment[TO] // places_per_head)
                begin = uint32(kv_head * places_per_head)
                find_segment(segment, segment[TO], kv_head, begin, group_rows, q_len, kv_len, limits)
            cuda.syncthreads()
            tile = tile_of(segment, group_rows, q_len, limits)
            attend(shared, segment, tile, Q, K, V, q_len, kv_len, kv_heads, group, tau, limits, scores)
            first_row = uint64(segment[KV_HEAD]) * uint64(group_rows) + uint64(tile.first_row)
            O_rows = global_address(O) + first_row * uint64(D * STORED_BYTES)
            lse_rows = global_address(lse) + first_row * uint64(FLOAT_BYTES)
            first_head = int32(int32(segment[KV_HEAD] % uint32(kv_heads)) * group)
            finish(
                shared, segment, places, parts, O_rows, lse_rows, group_rows, tile.first_row, tile.rows, q_len,
                first_head, group, sink,
            )  # fmt: skip
            if is_last_segment(segment):
                break

    return lean
