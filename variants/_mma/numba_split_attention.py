"""16 rows of queries meet a run of keys, on tensor cores, for V with rows as long as those of K.

The CUDA twins are splits.cuh and split_attention.cuh: same names, same layouts.

Each warp goes its own way over every WARPS-th tile of keys, with an O, l and m of its own and its own ring of slots in
shared memory. `keys` and `seen` are named tuples; what can be asked of them are the functions of `KeyFunctions` and
`SeenFunctions`. On registers, see fa2_mma/numba_kernel.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma.numba_mma import (
    ALL_LANES,
    CHUNK_BYTES,
    MINUS_INFINITY,
    chunks_further,
    commit_copies,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    quad_max,
    quad_sum,
    store_shared,
    swizzled,
    unknown,
    wait_for_copies,
)
from variants._mma.numba_runs_of_rows import KeyFunctions, SeenFunctions
from variants._mma.numba_tiles import STORED_BYTES, numba_tiles
from variants._mma.numba_unrolled import unrolled
from variants._mma.splits import BC, BR, WARPS

ZERO = np.float32(0)
FLOAT_BYTES = 4
THREADS = 32 * WARPS
NOTHINGS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
load_word, store_word, store_pair, store_chunk = load_shared(4), store_shared(4), store_shared(8), store_shared(16)


@cuda.jit(device=True, forceinline=True)
def load_float(at):
    return libdevice.int_as_float(int32(load_word(at)))


@cuda.jit(device=True, forceinline=True)
def store_float(at, x):
    store_word(at, uint32(libdevice.float_as_int(x)))


# exp(x - m), and 0 for x = -inf even where nothing was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
@cuda.jit(device=True, forceinline=True)
def exp_below(x, m):
    return libdevice.fast_expf(x - (ZERO if m == MINUS_INFINITY else m))


# --- What is subtracted from scores ----------------------------------------------------------------------------------


# The largest score so far: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), and O is multiplied
# by exp(m_old - m). S becomes P. `largest` is not used.
@functools.cache
def running_maximum(TD: int) -> Callable:
    """The device function for O of TD tiles of 8 columns."""

    @cuda.jit(device=True, forceinline=True)
    def rescale(n, O, correction, i):
        O[0, n, 2 * i] *= correction
        O[0, n, 2 * i + 1] *= correction

    rescale_all = unrolled(TD, rescale)

    @cuda.jit(device=True, forceinline=True)
    def exponentiate_row(O, l, m, S, i):
        largest = max(max(S[0, 0, 2 * i], S[0, 0, 2 * i + 1]), max(S[0, 1, 2 * i], S[0, 1, 2 * i + 1]))
        m_new = max(m[i], quad_max(largest))
        correction = exp_below(m[i], m_new)
        m[i] = m_new
        l[i] *= correction
        for n in range(2):
            for e in range(2):
                S[0, n, 2 * i + e] = exp_below(S[0, n, 2 * i + e], m_new)
                l[i] += S[0, n, 2 * i + e]
        rescale_all(O, correction, i)

    @cuda.jit(device=True, forceinline=True)
    def exponentiate(O, l, m, S, constant, largest):
        exponentiate_row(O, l, m, S, 0)
        exponentiate_row(O, l, m, S, 1)

    return exponentiate


# --- Attention of a block --------------------------------------------------------------------------------------------


# Where O[n][2 i] lies in its row. `column`: that of O[0][2 i].
@cuda.jit(device=True, forceinline=True)
def column_of_product(n, column):
    return uint32(8 * n) + column


@functools.cache
def numba_splits(head_dim: int, slots: int, dtype: str, column_of: Callable = column_of_product) -> SimpleNamespace:
    """What blocks have on chip: constants and device functions for rows of `head_dim` elements.

    `keys`: what differs if K and V do not lie on chip as Q does. `shared` is the address of the block's shared memory:
    the warps' rings, then Q, then l and m of each row from each warp. At the end, each warp's O lies where the rings
    were.
    """
    D, SLOTS = head_dim, slots
    STEPS = -(-D // 16)  # a row in pieces of 16 elements, zeros after the last
    TD = 2 * STEPS  # O in tiles of 8 elements
    tiles, mma = numba_tiles(D, WARPS, dtype), numba_mma(dtype)
    ROW_BYTES, UNITS, UNIT_BYTES = tiles.ROW_BYTES, tiles.UNITS, tiles.UNIT * STORED_BYTES
    place, copy_unit = tiles.place, tiles.copy_unit
    multiply_add, packed, unpacked = mma.multiply_add, mma.packed, mma.unpacked
    SLOT_BYTES = BC * ROW_BYTES
    RING_BYTES = SLOTS * SLOT_BYTES
    Q_TILE = WARPS * RING_BYTES
    L_ROWS = Q_TILE + SLOT_BYTES
    M_ROWS = L_ROWS + WARPS * BR * FLOAT_BYTES
    LD = ROW_BYTES // 2  # floats per row of O
    TILE_UNITS = BC * UNITS

    # Rows from `first` to before `end` of global memory, which lie one after the other -> a tile of 16 in shared
    # memory, zeros above and below: a zero weight times what was there before could be NaN. This is `lane` of `lanes`
    # threads; neighbours copy neighbouring units.
    @functools.cache
    def copy_tile_by(lanes: int) -> Callable:
        @cuda.jit(device=True, forceinline=True)
        def copy_tile(tile, source, first, end, lane):
            for start in range(0, TILE_UNITS, lanes):
                unit = uint32(start + lane)
                if TILE_UNITS % lanes == 0 or unit < TILE_UNITS:
                    row = int32(unit // uint32(UNITS))
                    copy_unit(
                        uint32(tile + place(unit)),
                        source + uint64(unit) * uint64(UNIT_BYTES),
                        row >= first and row < end,
                    )

        return copy_tile

    # S = Q K^T. Q_lane and K_lane: where this lane's row of each 8 x 8 matrix begins.
    @cuda.jit(device=True, forceinline=True)
    def multiply_step(s, S, Q_lane, K_lane):
        q = load_matrices(chunks_further(Q_lane, 2 * s))
        k = load_matrices(chunks_further(K_lane, 2 * s))
        multiply_add(S, 0, 0, q, k[0], k[1])
        multiply_add(S, 0, 1, q, k[2], k[3])

    multiply_steps = unrolled(STEPS, multiply_step)

    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_lane, K_lane):
        for n in range(2):
            for e in range(4):
                S[0, n, e] = ZERO
        multiply_steps(S, Q_lane, K_lane)

    # O += P V.
    @cuda.jit(device=True, forceinline=True)
    def add_step(s, O, P, V_lane):
        v = load_matrices_transposed(chunks_further(V_lane, 2 * s))
        multiply_add(O, 0, 2 * s, P, v[0], v[1])
        multiply_add(O, 0, 2 * s + 1, P, v[2], v[3])

    add_steps = unrolled(STEPS, add_step)

    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P, V_lane):
        first, second = packed(P[0, 0, 0], P[0, 0, 1]), packed(P[0, 0, 2], P[0, 0, 3])
        add_steps(O, (first, second, packed(P[0, 1, 0], P[0, 1, 1]), packed(P[0, 1, 2], P[0, 1, 3])), V_lane)

    # Element e of a row of O from a warp. Half a warp stores pairs of floats at once, in 4 neighbouring rows: these go
    # to different banks.
    @cuda.jit(device=True, forceinline=True)
    def O_element(shared, warp, row, e):
        float_at = uint32(
            (uint32(warp) * uint32(BR) + row) * uint32(LD) + (uint32(e) ^ ((row & uint32(7)) << uint32(3)))
        )
        return uint32(shared + float_at * uint32(FLOAT_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def store_O(n, shared, warp, row, column, O, i, correction):
        low, high = O[0, n, 2 * i] * correction, O[0, n, 2 * i + 1] * correction
        words = uint32(libdevice.float_as_int(low)), uint32(libdevice.float_as_int(high))
        store_pair(O_element(shared, warp, row, column_of(n, column)), words)

    store_all_of_O = unrolled(TD, store_O)

    @cuda.jit(device=True, forceinline=True)
    def share_row(shared, warp, lane, O, l, m, i):
        row = uint32((lane >> uint32(2)) + uint32(8 * i))
        m_block = MINUS_INFINITY
        for w in range(WARPS):
            m_block = max(m_block, load_float(shared + uint32(M_ROWS) + (uint32(w * BR) + row) * uint32(FLOAT_BYTES)))
        correction, l_row = exp_below(m[i], m_block), quad_sum(l[i])
        if lane & uint32(3) == 0:
            at = shared + uint32(L_ROWS) + (uint32(warp) * uint32(BR) + row) * uint32(FLOAT_BYTES)
            store_float(at, l_row * correction)
        store_all_of_O(shared, warp, row, (lane & uint32(3)) * uint32(2), O, i, correction)

    # The warps' O, l and m become the block's: a share of the keys each instead of a tile. They lie in shared memory
    # then, O and l relative to one maximum, and are to be summed over the warps.
    @cuda.jit(device=True, forceinline=True)
    def share_rows(shared, O, l, m, t):
        warp, lane = uint32(t) >> uint32(5), uint32(t) & uint32(31)
        if lane & uint32(3) == 0:
            at = shared + uint32(M_ROWS) + (warp * uint32(BR) + (lane >> uint32(2))) * uint32(FLOAT_BYTES)
            store_float(at, m[0])
            store_float(at + uint32(8 * FLOAT_BYTES), m[1])
        cuda.syncthreads()  # and no warp reads a slot any more
        share_row(shared, warp, lane, O, l, m, 0)
        share_row(shared, warp, lane, O, l, m, 1)
        cuda.syncthreads()

    # Element e of the block's rows, which lie one after the other, not divided by l yet.
    @cuda.jit(device=True, forceinline=True)
    def shared_O(shared, e):
        row, column = uint32(e) // uint32(D), uint32(e) % uint32(D)
        sum = ZERO
        for w in range(WARPS):
            sum += load_float(O_element(shared, w, row, column))
        return sum

    @cuda.jit(device=True, forceinline=True)
    def shared_l(shared, row):
        sum = ZERO
        for w in range(WARPS):
            sum += load_float(shared + uint32(L_ROWS) + uint32(w * BR + row) * uint32(FLOAT_BYTES))
        return sum

    @cuda.jit(device=True, forceinline=True)
    def shared_m(shared, row):
        m_block = MINUS_INFINITY
        for w in range(WARPS):
            m_block = max(m_block, load_float(shared + uint32(M_ROWS) + uint32(w * BR + row) * uint32(FLOAT_BYTES)))
        return m_block

    # The four matrices of a 16 x 16 tile in the order of columns, for K, or of rows, for V, transposed on its way.
    @cuda.jit(device=True, forceinline=True)
    def lanes_in_tile(lane, by_row):
        row = uint32((lane >> uint32(4)) * uint32(8) + (lane & uint32(7)))
        return swizzled(ROW_BYTES, row, (lane >> uint32(3)) & uint32(1)), by_row

    @cuda.jit(device=True, forceinline=True)
    def leave_Q(Q_tile, t):
        pass

    # The elements of row k of V that belong to O[n].
    @cuda.jit(device=True, forceinline=True)
    def V_pair(V_tile, k, n, lane):
        return load_word(uint32(V_tile + swizzled(ROW_BYTES, k, n) + (lane & uint32(3)) * uint32(4)))

    keys = SimpleNamespace(
        SLOTS=SLOTS,
        SLOT_BYTES=SLOT_BYTES,
        copy_tile=copy_tile_by(32),
        lanes_in_tile=lanes_in_tile,
        arrange_Q=leave_Q,
        multiply_Q_Kt=multiply_Q_Kt,
        add_P_V=add_P_V,
        V_pair=V_pair,
    )
    return SimpleNamespace(
        D=D,
        keys=keys,
        TD=TD,
        ROW_BYTES=ROW_BYTES,
        SLOT_BYTES=SLOT_BYTES,
        RING_BYTES=RING_BYTES,
        Q_TILE=Q_TILE,
        copy_tile_by=copy_tile_by,
        multiply_Q_Kt=multiply_Q_Kt,
        add_P_V=add_P_V,
        packed=packed,
        unpacked=unpacked,
        O_element=O_element,
        store_all_of_O=store_all_of_O,
        share_rows=share_rows,
        shared_O=shared_O,
        shared_l=shared_l,
        shared_m=shared_m,
    )


def split_steps(
    splits: SimpleNamespace, keys_of: KeyFunctions, seen_of: SeenFunctions, apply: Callable
) -> SimpleNamespace:
    """Device functions for the steps of a warp from one tile of keys to the next.

    `apply`: a score's terms, as of `numba_scores`.
    """
    TD, SLOTS, SLOT_BYTES = splits.TD, splits.keys.SLOTS, splits.keys.SLOT_BYTES
    copy_keys, V_pair, unpacked, sees = splits.keys.copy_tile, splits.keys.V_pair, splits.unpacked, seen_of.sees
    K_of, V_of, skipped, tile_after = keys_of.K, keys_of.V, keys_of.skipped, keys_of.tile_after

    # A warp's ring: K and V of one tile after the other, SLOTS - 1 copies ahead of where they are read. `copied`: how
    # many tiles of K or V; `copied_key`: the next one's first key. Returns the one after that.
    @cuda.jit(device=True, forceinline=True)
    def copy_next(ring, keys, copied, copied_key, lane):
        is_V = copied & 1 == 1
        if copied_key < keys.end:
            source = V_of(keys, copied_key) if is_V else K_of(keys, copied_key)
            slot = uint32(ring + uint32(copied) % uint32(SLOTS) * uint32(SLOT_BYTES))
            copy_keys(slot, source, skipped(keys, copied_key), int32(keys.end - copied_key), lane)
        commit_copies()
        return tile_after(keys, copied_key) if is_V else copied_key

    @cuda.jit(device=True, forceinline=True)
    def next_slot(ring, slot):
        following = uint32(slot + uint32(SLOT_BYTES))
        return ring if following == uint32(ring + uint32(SLOTS * SLOT_BYTES)) else following

    # S = score(tau S) where the row sees the key, -inf elsewhere: chosen, not added, so that NaN behind the mask stays
    # there.
    @cuda.jit(device=True, forceinline=True)
    def scale_and_mask(S, tau, scores, seen, queries, first_key, lane):
        column = int32((lane & uint32(3)) * uint32(2))
        for n in range(2):
            for e in range(4):
                k, i = int32(8 * n + column + e % 2), e // 2
                if sees(seen, i, k):
                    score, query = (scores[0], queries[0]) if i == 0 else (scores[1], queries[1])
                    S[0, n, e] = apply(score, tau * S[0, n, e], query, int32(first_key + k))
                else:
                    S[0, n, e] = MINUS_INFINITY

    @cuda.jit(device=True, forceinline=True)
    def add_columns(n, O, p_0, p_1, sees_0, sees_1, V_tile, k, lane):
        low, high = unpacked(V_pair(V_tile, k, n, lane))
        O[0, n, 0] = libdevice.fmaf(p_0, low, O[0, n, 0]) if sees_0 else O[0, n, 0]
        O[0, n, 1] = libdevice.fmaf(p_0, high, O[0, n, 1]) if sees_0 else O[0, n, 1]
        O[0, n, 2] = libdevice.fmaf(p_1, low, O[0, n, 2]) if sees_1 else O[0, n, 2]
        O[0, n, 3] = libdevice.fmaf(p_1, high, O[0, n, 3]) if sees_1 else O[0, n, 3]

    add_all_columns = unrolled(TD, add_columns)

    # O += P V, key after key and only in rows that see it: others must not even multiply it by their zero weight, for V
    # may hold NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_where_seen(O, P, V_tile, seen, lane):
        k, keys = int32(0), int32(unknown(int32(BC)))
        while k < keys:
            source = int32((lane & uint32(28)) + (uint32(k & 7) >> uint32(1)))
            is_even, is_first = k & 1 == 0, k < 8
            even_0, odd_0 = (P[0, 0, 0], P[0, 0, 1]) if is_first else (P[0, 1, 0], P[0, 1, 1])
            even_1, odd_1 = (P[0, 0, 2], P[0, 0, 3]) if is_first else (P[0, 1, 2], P[0, 1, 3])
            p_0 = cuda.shfl_sync(ALL_LANES, even_0 if is_even else odd_0, source)
            p_1 = cuda.shfl_sync(ALL_LANES, even_1 if is_even else odd_1, source)
            add_all_columns(O, p_0, p_1, sees(seen, 0, k), sees(seen, 1, k), V_tile, uint32(k), lane)
            k = int32(k + 1)

    return SimpleNamespace(
        copy_next=copy_next,
        next_slot=next_slot,
        scale_and_mask=scale_and_mask,
        add_P_V_where_seen=add_P_V_where_seen,
    )


def split_attention(
    splits: SimpleNamespace, keys_of: KeyFunctions, seen_of: SeenFunctions, apply: Callable, exponentiate: Callable
) -> Callable:
    """The device function `attend_to_split`: attention of some rows of Q over a block's keys on its own.

    `apply`: a score's terms, as of `numba_scores`; `exponentiate`: what is subtracted from scores, such as
    `running_maximum`.
    """
    D, TD, ROW_BYTES, SLOT_BYTES = splits.D, splits.TD, splits.ROW_BYTES, splits.SLOT_BYTES
    RING_BYTES, Q_TILE, of_keys, SLOTS = splits.RING_BYTES, splits.Q_TILE, splits.keys, splits.keys.SLOTS
    lanes_in_tile, arrange_Q, copy_Q = of_keys.lanes_in_tile, of_keys.arrange_Q, splits.copy_tile_by(THREADS)
    multiply_Q_Kt, add_P_V = of_keys.multiply_Q_Kt, of_keys.add_P_V
    tile_after, first_tile, first_of = keys_of.tile_after, keys_of.first_tile, keys_of.first
    seen_at, all_see = seen_of.at, seen_of.all_see
    steps = split_steps(splits, keys_of, seen_of, apply)
    copy_next, next_slot, scale_and_mask = steps.copy_next, steps.next_slot, steps.scale_and_mask
    add_P_V_where_seen = steps.add_P_V_where_seen
    wait_for_slot_copied, wait_for_Q = wait_for_copies(SLOTS - 2), wait_for_copies(SLOTS - 1)

    # The slot that is read next has come; the one before it, which all lanes have read, is filled anew.
    @cuda.jit(device=True, forceinline=True)
    def wait_for_slot(ring, keys, copied, copied_key, lane):
        wait_for_slot_copied()
        cuda.syncwarp()
        return copy_next(ring, keys, copied, copied_key, lane)

    # O, l and m become those of the warp's rows g and g + 8; l is that of the lane's own keys. O is not divided by l.
    # `scores` and `queries`: of both rows; `m` is where it begins.
    @cuda.jit(device=True, forceinline=True)
    def attend_to_split(shared, Q, rows, tau, keys, seen, scores, queries, O, l, m, constant, largest, t):
        warp, lane = uint32(t) >> uint32(5), uint32(t) & uint32(31)
        if D % 16 != 0:
            # Rows are not copied as far as they are multiplied.
            for chunk in range(t, int32((Q_TILE + SLOT_BYTES) // CHUNK_BYTES), int32(cuda.blockDim.x)):
                store_chunk(shared + uint32(chunk) * uint32(CHUNK_BYTES), NOTHINGS)
            cuda.syncthreads()
        ring = uint32(shared + warp * uint32(RING_BYTES))
        key = first_tile(keys, int32(warp))
        copy_Q(uint32(shared + uint32(Q_TILE)), Q, int32(0), rows, uint32(t))
        commit_copies()
        copied, copied_key, ahead = int32(0), key, int32(unknown(int32(SLOTS - 1)))
        while copied < ahead:
            copied_key = copy_next(ring, keys, copied, copied_key, lane)
            copied = int32(copied + 1)
        wait_for_Q()
        cuda.syncthreads()  # all warps have copied of Q
        arrange_Q(uint32(shared + uint32(Q_TILE)), uint32(t))
        by_row = swizzled(ROW_BYTES, lane & uint32(15), lane >> uint32(4))
        K_lane, V_lane = lanes_in_tile(lane, by_row)
        for n in range(TD):
            for e in range(4):
                O[0, n, e] = ZERO
        l[0] = ZERO
        l[1] = ZERO
        S = cuda.local.array((1, 2, 4), float32)
        slot = ring
        while key < keys.end:
            seen_here = seen_at(seen, key)

            # S = tau Q K^T.
            copied_key = wait_for_slot(ring, keys, copied, copied_key, lane)
            multiply_Q_Kt(S, uint32(shared + uint32(Q_TILE) + by_row), uint32(slot + K_lane))
            slot = next_slot(ring, slot)
            scale_and_mask(S, tau, scores, seen_here, queries, key, lane)

            # P = exp(S - m), and l and m.
            exponentiate(O, l, m, S, constant, largest)

            # O = O + P V.
            copied_key = wait_for_slot(ring, keys, int32(copied + 1), copied_key, lane)
            copied = int32(copied + 2)
            if all_see(seen, max(key, first_of(keys)), min(int32(key + BC), keys.end)):
                add_P_V(O, S, uint32(slot + V_lane))
            else:
                add_P_V_where_seen(O, S, slot, seen_here, lane)
            slot = next_slot(ring, slot)
            key = tile_after(keys, key)

    return attend_to_split
