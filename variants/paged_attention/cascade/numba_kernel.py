"""Attention of sequences that share their first keys, which lie in pages: cascade inference, Hydragen.

Ye et al. 2024 (FlashInfer); Juravsky et al. 2024, arXiv 2402.05099. What a warp does with a tile of keys, and a block
with a split of one sequence's, is in _mma/numba_split_attention.py, how parts are put together in
_mma/numba_combine.py. The CUDA twin is kernel.cu.

A sequence has room for most_splits parts of each row: those of the prefix first, then those of its own keys.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32, uint64

from variants._features.numba_scores import numba_scores
from variants._mma.numba_combine import numba_combine
from variants._mma.numba_mma import (
    ALL_LANES,
    CHUNK_BYTES,
    MINUS_INFINITY,
    commit_copies,
    end_seen,
    global_address,
    quad_sum,
    shared_address,
    swizzled,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_parts import ONE, store_float_global
from variants._mma.numba_runs_of_rows import KeyFunctions
from variants._mma.numba_split_attention import (
    FLOAT_BYTES,
    NOTHINGS,
    STORED_BYTES,
    THREADS,
    ZERO,
    load_float,
    numba_splits,
    running_maximum,
    split_attention,
    split_steps,
    store_chunk,
)
from variants._mma.numba_tiles import numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma.splits import BC, BR, MOST_COMBINE_WARPS, THREADS_PER_WARP, WARPS
from variants._paged.numba_sequences import ENDS_OF_ROWS, EndsOfRows

ROWS = WARPS * BR
"""Rows of a block of the prefix."""
STEP = WARPS * BC
"""Keys that the warps of a block copy at once."""


class KeysOfPages(NamedTuple):
    """The keys of a split, from `split_first` to before `end`: pages[n] is where page first_page + n lies."""

    K_pages: Any
    """Address of the first page of K; and below, of V."""
    V_pages: Any
    pages: Any
    split_first: Any
    end: Any
    first_page: Any
    kv_head: Any
    kv_heads: Any


@cuda.jit(device=True, forceinline=True)
def first_key(keys):
    return int32(0)


@cuda.jit(device=True, forceinline=True)
def skipped(keys, key):
    return int32(0)


@cuda.jit(device=True, forceinline=True)
def first_tile(keys, warp):
    return int32(keys.split_first + warp * BC)


@cuda.jit(device=True, forceinline=True)
def tile_after(keys, key):
    return int32(key + STEP)


def keys_of_pages(D: int, page_size: int) -> KeyFunctions:
    """Device functions for rows of D elements in pages of `page_size` rows."""
    PAGE = page_size

    @cuda.jit(device=True, forceinline=True)
    def row_of_key(keys, key):
        page = keys.pages[int32(uint32(key) // uint32(PAGE)) - keys.first_page]
        in_pages = uint64(page) * uint64(keys.kv_heads) + uint64(keys.kv_head)
        return in_pages * uint64(PAGE) + uint64(uint32(key) % uint32(PAGE))

    @cuda.jit(device=True, forceinline=True)
    def K(keys, key):
        return keys.K_pages + row_of_key(keys, key) * uint64(D * STORED_BYTES)

    @cuda.jit(device=True, forceinline=True)
    def V(keys, key):
        return keys.V_pages + row_of_key(keys, key) * uint64(D * STORED_BYTES)

    return KeyFunctions(first_key, skipped, first_tile, tile_after, K, V)


class RowsOfHead(NamedTuple):
    """Rows of one key/value head from `first` on, counted through all sequences; and a split of the prefix."""

    first: Any
    split: Any
    group_rows: Any
    """Rows that each sequence has of them."""
    kv_head: Any
    kv_heads: Any
    most_splits: Any


@cuda.jit(device=True, forceinline=True)
def sequence_of(rows, row):
    return int32(int32(rows.first + row) // rows.group_rows)


@cuda.jit(device=True, forceinline=True)
def in_part(rows, part, row):
    of_head = part * uint64(rows.kv_heads) + uint64(rows.kv_head)
    return of_head * uint64(rows.group_rows) + uint64(int32(rows.first + row) % rows.group_rows)


@cuda.jit(device=True, forceinline=True)
def in_Q(rows, row):
    return in_part(rows, uint64(sequence_of(rows, row)), row)


@cuda.jit(device=True, forceinline=True)
def in_parts(rows, row):
    return in_part(rows, uint64(sequence_of(rows, row)) * uint64(rows.most_splits) + uint64(rows.split), row)


@functools.cache
def cascade_kernels(
    head_dim: int, split: int, slots: int, dtype: str, blocks_per_sm: tuple[int, int], page_size: int
) -> tuple[Any, Any, Any]:
    """The kernels for these compile-time parameters; `blocks_per_sm`: of the first two."""
    D, SPLIT, SLOTS, PAGE, splits = head_dim, split, slots, page_size, numba_splits(head_dim, slots, dtype)
    TD, ROW_BYTES, SLOT_BYTES, RING_BYTES, Q_TILE = (
        splits.TD, splits.ROW_BYTES, splits.SLOT_BYTES, splits.RING_BYTES, splits.Q_TILE
    )  # fmt: skip
    PAGES = (SPLIT - 1) // PAGE + 2  # that the keys of a split may lie in
    tiles = numba_tiles(D, WARPS, dtype)
    UNITS, UNIT_BYTES, place, copy_unit = tiles.UNITS, tiles.UNIT * STORED_BYTES, tiles.place, tiles.copy_unit
    keys_of, no_terms, exponentiate = keys_of_pages(D, page_size), numba_scores(()), running_maximum(TD)
    steps = split_steps(splits, keys_of, ENDS_OF_ROWS, no_terms.apply)
    copy_next, next_slot, scale_and_mask = steps.copy_next, steps.next_slot, steps.scale_and_mask
    add_P_V_where_seen, multiply_Q_Kt, add_P_V = steps.add_P_V_where_seen, splits.multiply_Q_Kt, splits.add_P_V
    seen_at, all_see, O_element = ENDS_OF_ROWS.at, ENDS_OF_ROWS.all_see, splits.O_element
    store_all_of_O, share_rows, shared_O = splits.store_all_of_O, splits.share_rows, splits.shared_O
    shared_l, shared_m = splits.shared_l, splits.shared_m
    attend_to_split = split_attention(splits, keys_of, ENDS_OF_ROWS, no_terms.apply, exponentiate)
    combine_splits, wait_for_copied = numba_combine(D, dtype), wait_for_copies(SLOTS - 2)

    @cuda.jit(device=True, forceinline=True)
    def splits_of(keys):
        return int32(uint32(keys + SPLIT - 1) // uint32(SPLIT))

    # The keys of a sequence that lie in shared pages; `prefix`: of the sequence that has most, whole pages.
    @cuda.jit(device=True, forceinline=True)
    def shared_keys(length, prefix):
        return int32(min(prefix, int32(int32(uint32(length) // uint32(PAGE)) * PAGE)))

    # Entries of the table -> shared memory. All of them at once: a copy would wait for its entry otherwise.
    @cuda.jit(device=True, forceinline=True)
    def load_pages(pages, table, sequence, first_page, end, t):
        count = int32(int32(uint32(end - 1) // uint32(PAGE)) - first_page + 1)
        for i in range((PAGES + THREADS - 1) // THREADS):
            at = int32(i * THREADS + t)
            if at < count:
                pages[at] = table[sequence, first_page + at]
        cuda.syncthreads()

    # One row of Q, zeros unless `wanted`, -> a row of a tile in shared memory, by a warp.
    @cuda.jit(device=True, forceinline=True)
    def copy_row(tile, row, source, wanted, lane):
        for start in range(0, UNITS, THREADS_PER_WARP):
            unit = uint32(start + lane)
            if unit < UNITS:
                at = uint32(tile + place(uint32(row) * uint32(UNITS) + unit))
                copy_unit(at, source + uint64(unit) * uint64(UNIT_BYTES), wanted)

    # Tile w of what the warps have copied of K: S = tau Q K^T.
    @cuda.jit(device=True, forceinline=True)
    def score_tile(w, S, Q_lane, K_lane, tau, seen, key, warp_end, lane):
        tile = cuda.local.array((1, 2, 4), float32)
        first = int32(key + w * BC)
        if first < warp_end:
            multiply_Q_Kt(tile, Q_lane, uint32(K_lane + uint32(w * RING_BYTES)))
            scale_and_mask(tile, tau, ((), ()), seen_at(seen, first), (int32(0), int32(0)), first, lane)
            for n in range(2):
                for e in range(4):
                    S[w, n, e] = tile[0, n, e]

    # Tile w of what they have copied of V, which all rows see: P = exp(S - m), l and m, and O = O + P V.
    @cuda.jit(device=True, forceinline=True)
    def add_tile(w, S, O, l, m, V_lane, key, warp_end):
        P = cuda.local.array((1, 2, 4), float32)
        if int32(key + w * BC) < warp_end:
            for n in range(2):
                for e in range(4):
                    P[0, n, e] = S[w, n, e]
            exponentiate(O, l, m, P, ZERO, l)
            add_P_V(O, P, uint32(V_lane + uint32(w * RING_BYTES)))

    # Tile w of S: registers have no index at run time.
    @cuda.jit(device=True, forceinline=True)
    def choose_tile(other, chosen, S, w):
        for n in range(2):
            for e in range(4):
                chosen[0, n, e] = S[other, n, e] if other == 0 or other == w else chosen[0, n, e]

    score_tiles, add_tiles, choose = (unrolled(WARPS, each) for each in (score_tile, add_tile, choose_tile))

    # The slots that are read next have come; those before them, which all warps have read, are filled anew.
    @cuda.jit(device=True, forceinline=True)
    def wait_for_slots(ring, keys, copied, copied_key, lane):
        wait_for_copied()
        cuda.syncthreads()
        return copy_next(ring, keys, copied, copied_key, lane)

    # Step 1: attention of the rows of all sequences to a split of the prefix. A warp has 16 rows to itself and copies
    # every WARPS-th tile of keys; all warps read all of them. The prefix's pages are the first of sequence `owner`.
    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm[0]))
    def cascade_prefix(
        Q, K, V, table, lengths, O_split, l_split, m_split, prefix, owner, batch, most_splits, q_len, table_len,
        kv_heads, group, tau, limits,
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(0, uint32, alignment=128))
        pages, ends = cuda.shared.array(PAGES, int32), cuda.shared.array(ROWS, int32)
        t, kv_head = int32(cuda.threadIdx.x), int32(cuda.blockIdx.y)
        warp, lane = uint32(t) >> uint32(5), uint32(t) & uint32(31)

        # This block's rows, and the keys of the prefix that each of them sees. Blocks with the same keys are adjacent.
        group_rows = int32(group * q_len)
        row_tiles = int32(int32(batch * group_rows + ROWS - 1) // ROWS)
        block = int32(cuda.blockIdx.x)
        own_split = int32(block // row_tiles)
        split_first = int32(own_split * SPLIT)
        rows = RowsOfHead(int32(block % row_tiles * ROWS), own_split, group_rows, kv_head, kv_heads, most_splits)
        is_asked = False
        if t < ROWS:
            ends[t] = 0
            sequence = sequence_of(rows, t)
            if sequence < batch:
                kv_len = int32(lengths[sequence])
                end = end_seen(int32(int32(rows.first + t) % q_len), q_len, kv_len, limits[1])
                ends[t] = min(end, shared_keys(kv_len, prefix))
                is_asked = ends[t] > split_first
        if cuda.syncthreads_or(int32(is_asked)) == 0:
            return  # no row asks for it

        end = int32(min(int32(split_first + SPLIT), prefix))
        first_page = int32(uint32(split_first) // uint32(PAGE))
        load_pages(pages, table, owner, first_page, end, t)

        # Q, and K and V of the first tiles.
        if D % 16 != 0:
            # Rows are not copied as far as they are multiplied.
            for chunk in range(t, int32((Q_TILE + WARPS * SLOT_BYTES) // CHUNK_BYTES), int32(THREADS)):
                store_chunk(shared + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()
        warp_row = int32(warp * uint32(BR))
        Q_rows = uint32(shared + uint32(Q_TILE) + warp * uint32(SLOT_BYTES))
        row, all_rows = int32(0), int32(unknown(int32(BR)))
        while row < all_rows:
            wanted = ends[warp_row + row] > split_first
            first_of_Q = in_Q(rows, int32(warp_row + row)) if wanted else uint64(0)
            copy_row(Q_rows, row, global_address(Q) + first_of_Q * uint64(D * STORED_BYTES), wanted, lane)
            row = int32(row + 1)
        commit_copies()
        keys = KeysOfPages(
            global_address(K), global_address(V), pages, split_first, end, first_page, uint32(kv_head), uint32(kv_heads)
        )
        ring = uint32(shared + warp * uint32(RING_BYTES))
        copied, copied_key, ahead = int32(0), first_tile(keys, int32(warp)), int32(unknown(int32(SLOTS - 1)))
        while copied < ahead:
            copied_key = copy_next(ring, keys, copied, copied_key, lane)
            copied = int32(copied + 1)

        # Up to where some row of the warp sees keys, and up to where all do that are written.
        to_0 = int32(ends[warp_row + int32(lane >> uint32(2))])
        to_1 = int32(ends[warp_row + int32(lane >> uint32(2)) + 8])
        warp_end = int32(max(to_0, to_1))
        to_for_all = int32(min(to_0 if to_0 > split_first else end, to_1 if to_1 > split_first else end))
        for distance in (4, 8, 16):
            warp_end = int32(max(warp_end, cuda.shfl_xor_sync(ALL_LANES, warp_end, distance)))
            to_for_all = int32(min(to_for_all, cuda.shfl_xor_sync(ALL_LANES, to_for_all, distance)))
        warp_end = int32(min(warp_end, end))
        seen = EndsOfRows(to_0, to_1, to_for_all)

        by_row = swizzled(ROW_BYTES, lane & uint32(15), lane >> uint32(4))
        by_column = swizzled(
            ROW_BYTES, uint32((lane >> uint32(4)) * uint32(8) + (lane & uint32(7))), (lane >> uint32(3)) & uint32(1)
        )
        O = cuda.local.array((1, TD, 4), float32)
        l = cuda.local.array(2, float32)
        m = cuda.local.array(2, float32)
        S = cuda.local.array((WARPS, 2, 4), float32)
        P = cuda.local.array((1, 2, 4), float32)
        l[0], l[1], m[0], m[1] = ZERO, ZERO, MINUS_INFINITY, MINUS_INFINITY
        for n in range(TD):
            for e in range(4):
                O[0, n, e] = ZERO
        key, slot = split_first, shared
        while key < end:
            # S = tau Q K^T.
            copied_key = wait_for_slots(ring, keys, copied, copied_key, lane)
            score_tiles(S, uint32(Q_rows + by_row), uint32(slot + by_column), tau, seen, key, warp_end, lane)
            slot = next_slot(shared, slot)

            # P = exp(S - m), l and m, and O = O + P V.
            copied_key = wait_for_slots(ring, keys, int32(copied + 1), copied_key, lane)
            copied = int32(copied + 2)
            if all_see(seen, key, int32(min(int32(key + STEP), warp_end))):
                add_tiles(S, O, l, m, uint32(slot + by_row), key, warp_end)
            else:
                w, first, tiles_end = int32(0), key, int32(min(int32(key + STEP), warp_end))
                while first < tiles_end:
                    choose(P, S, w)
                    exponentiate(O, l, m, P, ZERO, l)
                    at = uint32(slot + uint32(w) * uint32(RING_BYTES))
                    add_P_V_where_seen(O, P, at, seen_at(seen, first), lane)
                    w, first = int32(w + 1), int32(first + BC)
            slot = next_slot(shared, slot)
            key = int32(key + STEP)

        # O, l and m of the rows that see a key of the split: others may have no such part.
        cuda.syncthreads()  # no warp reads a slot any more
        for i in range(2):
            row = int32(lane >> uint32(2)) + int32(8 * i)
            l_row = quad_sum(l[i])
            if lane & uint32(3) == 0 and (to_0 if i == 0 else to_1) > split_first:
                stat = in_parts(rows, int32(warp_row + row)) * uint64(FLOAT_BYTES)
                store_float_global(global_address(l_split) + stat, l_row)
                store_float_global(global_address(m_split) + stat, m[i])
            store_all_of_O(shared, warp, uint32(row), (lane & uint32(3)) * uint32(2), O, i, ONE)
        cuda.syncwarp()
        row = int32(0)
        while row < all_rows:
            if ends[warp_row + row] > split_first:
                O_row = global_address(O_split) + in_parts(rows, int32(warp_row + row)) * uint64(D * FLOAT_BYTES)
                for e in range(int32(lane), D, THREADS_PER_WARP):
                    x = load_float(O_element(shared, warp, uint32(row), uint32(e)))
                    store_float_global(O_row + uint64(e) * uint64(FLOAT_BYTES), x)
            row = int32(row + 1)

    # Step 2: attention of 16 rows of the query heads that share a key/value head of one sequence, to a split of the
    # keys that are its own.
    @cuda.jit(launch_bounds=(THREADS, blocks_per_sm[1]))
    def cascade_suffix(
        Q, K, V, table, lengths, O_split, l_split, m_split, prefix, most_splits, q_len, table_len, kv_heads, group, tau,
        limits,
    ):  # fmt: skip
        shared = shared_address(cuda.shared.array(0, uint32, alignment=128))
        pages = cuda.shared.array(PAGES, int32)
        t, block, sequence = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x), int32(cuda.blockIdx.z)
        lane = t & 31
        group_rows = int32(group * q_len)
        row_tiles = int32(int32(group_rows + BR - 1) // BR)
        first_row, of_heads = int32(block % row_tiles * BR), int32(block // row_tiles)
        kv_head, own_split = int32(of_heads % kv_heads), int32(of_heads // kv_heads)
        rows = int32(min(int32(BR), int32(group_rows - first_row)))
        kv_len = int32(lengths[sequence])
        shared_end = shared_keys(kv_len, prefix)

        # The keys of the split that a row of this tile sees: up to the last that its last query sees, and some rows see
        # fewer. Where the rows of two heads meet, the last query of all is among them, and the first.
        first_query = int32(first_row % q_len)
        last_query = int32(first_query + rows - 1)
        heads_meet = last_query >= q_len
        split_first = int32(shared_end + own_split * SPLIT)
        end_by_last = end_seen(int32(min(last_query, int32(q_len - 1))), q_len, kv_len, limits[1])
        end = int32(min(int32(split_first + SPLIT), end_by_last))
        if split_first >= end:
            return  # no row asks for it

        first_page = int32(uint32(split_first) // uint32(PAGE))
        load_pages(pages, table, sequence, first_page, end, t)

        O = cuda.local.array((1, TD, 4), float32)
        l = cuda.local.array(2, float32)
        m = cuda.local.array(2, float32)
        m[0], m[1] = MINUS_INFINITY, MINUS_INFINITY
        row = int32(lane >> 2)
        queries = int32(int32(first_row + row) % q_len), int32(int32(first_row + row + 8) % q_len)
        keys = KeysOfPages(
            global_address(K), global_address(V), pages, split_first, end, first_page, uint32(kv_head), uint32(kv_heads)
        )
        seen = EndsOfRows(
            end_seen(queries[0], q_len, kv_len, limits[1]),
            end_seen(queries[1], q_len, kv_len, limits[1]),
            end_seen(int32(0) if heads_meet else first_query, q_len, kv_len, limits[1]),
        )
        of_sequence = uint64(sequence) * uint64(kv_heads) + uint64(kv_head)
        first_of_Q = of_sequence * uint64(group_rows) + uint64(first_row)
        Q_rows = global_address(Q) + first_of_Q * uint64(D * STORED_BYTES)
        attend_to_split(shared, Q_rows, rows, tau, keys, seen, ((), ()), queries, O, l, m, ZERO, l, t)

        part = uint64(sequence) * uint64(most_splits) + uint64(splits_of(shared_end)) + uint64(own_split)
        stat = (part * uint64(kv_heads) + uint64(kv_head)) * uint64(group_rows) + uint64(first_row)
        share_rows(shared, O, l, m, t)
        O_rows = global_address(O_split) + stat * uint64(D * FLOAT_BYTES)
        for start in range(0, int32(rows * D), THREADS):
            e = int32(start + t)
            if e < rows * D:
                store_float_global(O_rows + uint64(e) * uint64(FLOAT_BYTES), shared_O(shared, e))
        if t < rows:
            at = (stat + uint64(t)) * uint64(FLOAT_BYTES)
            store_float_global(global_address(l_split) + at, shared_l(shared, t))
            store_float_global(global_address(m_split) + at, shared_m(shared, t))

    # Step 3: the parts of a row, of the prefix and of the sequence's own keys, put together. What a row sees nothing of
    # is not read: it may not have been written.
    @cuda.jit(launch_bounds=(THREADS_PER_WARP * MOST_COMBINE_WARPS,))
    def cascade_combine(O_split, l_split, m_split, lengths, O, lse, prefix, most_splits, q_len, sequence_rows, limits):
        row = int32(cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y)
        sequence = int32(row // sequence_rows)
        kv_len = int32(lengths[sequence])
        shared_end = shared_keys(kv_len, prefix)
        end = end_seen(int32(row % q_len), q_len, kv_len, limits[1])
        of_row = splits_of(int32(min(end, shared_end))) + splits_of(int32(max(int32(end - shared_end), int32(0))))
        of_sequences = uint64(sequence) * uint64(most_splits) * uint64(sequence_rows)
        combine_splits(
            global_address(O) + uint64(row) * uint64(D * STORED_BYTES),
            global_address(lse) + uint64(row) * uint64(FLOAT_BYTES),
            global_address(O_split),
            global_address(l_split),
            global_address(m_split),
            of_sequences + uint64(int32(row % sequence_rows)),
            uint64(sequence_rows),
            of_row,
        )

    return cascade_prefix, cascade_suffix, cascade_combine
