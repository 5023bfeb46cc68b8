"""Lean Attention over sequences of any lengths whose keys lie in pages.

Sanovar et al. 2024, arXiv 2405.10480, algorithm 2, over the pages of Kwon et al. 2023, arXiv 2309.06180. How the keys
of all sequences are divided among blocks, and how parts are combined, is in _mma/numba_equal_runs.py; what a block does
with the keys of one head is in _mma/numba_split_attention.py. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from variants._features.numba_features import NumbaFeatures
from variants._mma.equal_runs import LEAN_TILE
from variants._mma.numba_equal_runs import (
    AT,
    BEGIN,
    KV_HEAD,
    KV_LEN,
    RUN_END,
    SEGMENT_FIELDS,
    TO,
    Parts,
    find_segment,
    is_last_segment,
    numba_equal_runs,
    output_tile,
    places_of,
    run_begin,
    tile_of,
)
from variants._mma.numba_mma import (
    ALL_LANES,
    MINUS_INFINITY,
    first_seen,
    global_address,
    lane_index,
    load_global,
    shared_address,
)
from variants._mma.numba_runs_of_rows import KeyFunctions
from variants._mma.numba_split_attention import (
    FLOAT_BYTES,
    STORED_BYTES,
    THREADS,
    ZERO,
    running_maximum,
    split_attention,
)
from variants._mma.splits import BC, BR
from variants._paged.numba_sequences import lanes_before, seen_by_queries
from variants._paged.numba_strided_pools import strided_pools

INT32_BYTES = 4
AHEAD = 32 * LEAN_TILE
"""Keys whose pages a warp's lanes hold."""
load_entry = load_global(INT32_BYTES)


class KeysOfPages(NamedTuple):
    """Keys from lean tile to lean tile, up to `end`.

    The warp's lanes hold the pages of its next 32 tiles: lane n that of the tile that begins with key from + n
    LEAN_TILE.
    """

    K_pages: Any
    """Address of the first page of K; and below, of V."""
    V_pages: Any
    K_strides: Any
    """Of (page, head, row) of K, in bytes, empty if its pages are dense; and below, of V."""
    V_strides: Any
    entries: Any
    """Address of the table's entries of the sequence's pages."""
    begin: Any
    first: Any
    """The first key that a row sees."""
    end: Any
    kv_head: Any
    kv_heads: Any
    held: Any
    """`from`, and the lane's page."""


@cuda.jit(device=True, forceinline=True)
def tile_after(keys, key):
    return int32(key + LEAN_TILE)


def keys_of_pages(row_bytes: int, page_size: int, has_window: bool, is_strided: bool) -> KeyFunctions:
    """Device functions for keys in pages of `page_size` rows, whose pages are dense or have strides."""
    PAGE = page_size

    @cuda.jit(device=True, forceinline=True)
    def first_key(keys):
        return keys.first if has_window else int32(0)

    @cuda.jit(device=True, forceinline=True)
    def skipped(keys, key):
        return int32(keys.first - key) if has_window else int32(0)

    @cuda.jit(device=True, forceinline=True)
    def first_tile(keys, warp):
        key = int32(keys.begin + warp * BC)
        return int32(key + LEAN_TILE) if has_window and int32(key + BC) <= keys.first else key

    @cuda.jit(device=True, forceinline=True)
    def page_of_key(keys, key):
        held = keys.held
        if int32(key - held[0]) >= AHEAD:
            held[0] = key
            own = int32(key + int32(lane_index()) * LEAN_TILE)
            held[1] = 0
            if own < keys.end:
                held[1] = int32(load_entry(keys.entries + uint64(uint32(own) // uint32(PAGE)) * uint64(INT32_BYTES)))
        return cuda.shfl_sync(ALL_LANES, held[1], int32(uint32(key - held[0]) // uint32(LEAN_TILE)))

    @cuda.jit(device=True, forceinline=True)
    def row_of_key(keys, key):
        in_pages = uint64(page_of_key(keys, key)) * uint64(keys.kv_heads) + uint64(keys.kv_head)
        return in_pages * uint64(PAGE) + uint64(uint32(key) % uint32(PAGE))

    @cuda.jit(device=True, forceinline=True)
    def K(keys, key):
        return keys.K_pages + row_of_key(keys, key) * uint64(row_bytes)

    @cuda.jit(device=True, forceinline=True)
    def V(keys, key):
        return keys.V_pages + row_of_key(keys, key) * uint64(row_bytes)

    @cuda.jit(device=True, forceinline=True)
    def strided_rows(keys, key, pages, strides):
        of_head = uint64(keys.kv_head) * strides[1]
        before = uint64(page_of_key(keys, key)) * strides[0] + of_head
        return pages + before + uint64(uint32(key) % uint32(PAGE)) * strides[2], strides[2]

    @cuda.jit(device=True, forceinline=True)
    def strided_K(keys, key):
        return strided_rows(keys, key, keys.K_pages, keys.K_strides)

    @cuda.jit(device=True, forceinline=True)
    def strided_V(keys, key):
        return strided_rows(keys, key, keys.V_pages, keys.V_strides)

    places = (strided_K, strided_V) if is_strided else (K, V)
    return KeyFunctions(first_key, skipped, first_tile, tile_after, *places)


class Sequence(NamedTuple):
    """A sequence, whose places begin with `begin`, and how many each of its key/value heads has."""

    number: Any
    kv_len: Any
    begin: Any
    per_head: Any


@cuda.jit(device=True, forceinline=True)
def places_per_head(length, group_rows, q_len, limits):
    sum, number = uint32(0), int32(0)
    while int32(number * BR) < group_rows:
        sum = uint32(sum + places_of(output_tile(number, group_rows, q_len, length, limits)))
        number = int32(number + 1)
    return sum


# The sequence that has place `at`, by one warp, 32 lengths at a time. `search`: the first of the lengths that it looks
# at, and the places of the sequences before those, none of which has `at`.
@cuda.jit(device=True, forceinline=True)
def find_sequence(search, at, lengths, batch, kv_heads, group_rows, q_len, limits, lane):
    while True:
        number = int32(search[0] + uint32(lane))
        length, per_head = int32(0), uint32(0)
        if number < batch:
            length = int32(lengths[number])
            per_head = places_per_head(length, group_rows, q_len, limits)
        of_sequence = uint32(per_head * uint32(kv_heads))
        end = uint32(search[1] + lanes_before(of_sequence, lane))
        beyond = uint32(cuda.ballot_sync(ALL_LANES, end > at))
        if beyond != 0:
            found = int32(cuda.ffs(beyond)) - int32(1)
            return Sequence(
                int32(int32(search[0]) + found),
                cuda.shfl_sync(ALL_LANES, length, found),
                uint32(cuda.shfl_sync(ALL_LANES, int32(end - of_sequence), found)),
                uint32(cuda.shfl_sync(ALL_LANES, int32(per_head), found)),
            )
        search[0], search[1] = uint32(search[0] + uint32(32)), uint32(cuda.shfl_sync(ALL_LANES, int32(end), 31))


@functools.cache
def paged_lean_kernel(
    head_dim: int, slots: int, dtype: str, blocks_per_sm: int, output_tiles: int, page_size: int,
    features: NumbaFeatures, has_window: bool, kv_dtype: str | None = None, aligned: int | None = None,
) -> Any:  # fmt: skip
    """The kernel for these compile-time parameters; `output_tiles`: room for their counters.

    `aligned`: the elements at whose multiples rows of K and V begin; None if pools are dense.
    """
    pools = strided_pools(head_dim, slots, dtype, kv_dtype, aligned)
    D, splits, scores_ = head_dim, pools.splits, features.scores
    first_address, times_scale, finish_O = pools.first_address, pools.times_scale, pools.finish_O
    TD, share_rows, of_head = splits.TD, splits.share_rows, scores_.of_head
    seen_functions, seen_of = seen_by_queries(has_window)
    of_pages = keys_of_pages(pools.row_bytes, page_size, has_window, aligned is not None)
    strides = pools.strides
    attend_to_split = split_attention(splits, of_pages, seen_functions, scores_.apply, running_maximum(TD))
    finish = numba_equal_runs(splits, dtype, output_tiles, features.sink.logit, features.sink.WEIGHT > 0)

    # Of row r of an output tile, counted through the heads that share K and V.
    @cuda.jit(device=True, forceinline=True)
    def head_of_row(segment, first_row, row, q_len, kv_heads, group):
        head = int32(min(int32(int32(first_row + row) // q_len), int32(group - 1)))
        return int32(int32(segment[KV_HEAD] % uint32(kv_heads)) * group + head)

    # Attention of a segment's part of the output tile.
    @cuda.jit(device=True, forceinline=True)
    def attend(shared, segment, tile, Q_rows, K, V, table, q_len, kv_heads, group, tau, limits, scores):
        O = cuda.local.array((1, TD, 4), float32)
        l = cuda.local.array(2, float32)
        m = cuda.local.array(2, float32)
        held = cuda.local.array(2, int32)
        m[0], m[1], held[0], held[1] = MINUS_INFINITY, MINUS_INFINITY, int32(-AHEAD), int32(0)
        kv_len, sequence = int32(segment[KV_LEN]), uint32(segment[KV_HEAD] // uint32(kv_heads))
        row_bytes = uint64(table.shape[1]) * uint64(INT32_BYTES)
        first_query = int32(0) if tile.heads_meet else tile.first_query
        first = first_seen(first_query, q_len, kv_len, limits[0]) if has_window else int32(0)
        first_lean, behind = uint32(first) // uint32(LEAN_TILE), uint32(segment[AT] - segment[BEGIN])
        begin = int32((first_lean + behind) * uint32(LEAN_TILE))
        end = int32((first_lean + uint32(segment[TO] - segment[BEGIN])) * uint32(LEAN_TILE))
        keys = KeysOfPages(
            first_address(K),
            first_address(V),
            strides(K),
            strides(V),
            global_address(table) + uint64(sequence) * row_bytes,
            begin,
            int32(max(begin, first)),
            int32(min(end, tile.end)),
            uint32(segment[KV_HEAD] % uint32(kv_heads)),
            uint32(kv_heads),
            held,
        )
        row = int32(lane_index() >> uint32(2))
        queries = int32(int32(tile.first_row + row) % q_len), int32(int32(tile.first_row + row + 8) % q_len)
        last_query = int32(min(tile.last_query, int32(q_len - 1)))
        seen = seen_of(queries, first_query, last_query, q_len, kv_len, limits)
        heads = (
            head_of_row(segment, tile.first_row, row, q_len, kv_heads, group),
            head_of_row(segment, tile.first_row, int32(row + 8), q_len, kv_heads, group),
        )
        of_rows = of_head(scores, heads[0], q_len, kv_len), of_head(scores, heads[1], q_len, kv_len)
        t = int32(cuda.threadIdx.x)
        tau_of_head = times_scale(tau, K, keys.kv_head)
        attend_to_split(shared, Q_rows, tile.rows, tau_of_head, keys, seen, of_rows, queries, O, l, m, ZERO, l, t)
        finish_O(O, V, keys.kv_head)
        share_rows(shared, O, l, m, t)

    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm))
    def paged_lean(
        Q, K, V, table, lengths, O, lse, O_parts, l_parts, m_parts, batch, q_len, table_len, kv_heads, group,
        places, tau, limits, scores, sink,
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(0, uint32, alignment=128))
        segment = cuda.shared.array(SEGMENT_FIELDS, uint32)
        parts = Parts(global_address(O_parts), global_address(l_parts), global_address(m_parts))
        t, group_rows = int32(cuda.threadIdx.x), int32(group * q_len)
        search = cuda.local.array(2, uint32)
        search[0], search[1] = uint32(0), uint32(0)
        if t == 0:
            segment[TO] = run_begin(places, cuda.blockIdx.x)
            segment[RUN_END] = run_begin(places, cuda.blockIdx.x + 1)
        while True:
            cuda.syncthreads()  # nothing of the last segment is read in shared memory any more
            if t < 32:
                at = segment[TO]
                found = find_sequence(search, at, lengths, batch, kv_heads, group_rows, q_len, limits, t)
                cuda.syncwarp()  # all lanes have read segment[TO]
                if t == 0:
                    head = uint32(uint32(at - found.begin) // found.per_head)
                    kv_head = uint32(uint32(found.number) * uint32(kv_heads) + head)
                    head_begin = uint32(found.begin + head * found.per_head)
                    find_segment(segment, at, kv_head, head_begin, group_rows, q_len, found.kv_len, limits)
            cuda.syncthreads()
            tile = tile_of(segment, group_rows, q_len, limits)
            first_row = uint64(segment[KV_HEAD]) * uint64(group_rows) + uint64(tile.first_row)
            Q_rows = global_address(Q) + first_row * uint64(D * STORED_BYTES)
            attend(shared, segment, tile, Q_rows, K, V, table, q_len, kv_heads, group, tau, limits, scores)
            O_rows = global_address(O) + first_row * uint64(D * STORED_BYTES)
            lse_rows = global_address(lse) + first_row * uint64(FLOAT_BYTES)
            finish(
                shared, segment, places, parts, O_rows, lse_rows, group_rows, tile.first_row, tile.rows, q_len,
                int32(int32(segment[KV_HEAD] % uint32(kv_heads)) * group), group, sink,
            )  # fmt: skip
            if is_last_segment(segment):
                break

    return paged_lean
