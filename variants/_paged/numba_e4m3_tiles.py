"""Tiles of K and V whose elements are e4m3, widened to 16 bits on their way to tensor cores. The CUDA twin is
e4m3_tiles.cuh: same names, same layouts."""

from __future__ import annotations

from types import SimpleNamespace

from numba import cuda, int32, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import U32, assembly
from variants._mma.numba_mma import (
    CHUNK_BYTES,
    chunks_further,
    copy_async,
    global_address,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    store_shared,
    swizzled,
)
from variants._mma.numba_split_attention import ZERO, numba_splits
from variants._mma.numba_unrolled import unrolled
from variants._mma.splits import BC, BR, WARPS

THREADS = 32 * WARPS
load_word, load_chunk, store_chunk = load_shared(4), load_shared(16), store_shared(16)


# Two times two e4m3, in their order, as float16.
@intrinsic
def widened_halves(typing_context, word):
    text = """{
    .reg .b16 low, high;
    mov.b32 {low, high}, $2;
    cvt.rn.f16x2.e4m3x2 $0, low;
    cvt.rn.f16x2.e4m3x2 $1, high;
    }"""
    return assembly(text, types.UniTuple(U32, 2)(U32))


# Bytes 0, 2, 1 and 3 of a word.
@intrinsic
def exchanged(typing_context, word):
    return assembly("prmt.b32 $0, $1, 0, 12576;", U32(U32))  # 0x3120


# Of the columns that a lane has of 16, O[2 s] and O[2 s + 1] of a row have two neighbours each. `column`: 2 q.
@cuda.jit(device=True, forceinline=True)
def column_of_pair(n, column):
    return uint32(n // 2 * 16 + n % 2 * 2) + uint32(column) * uint32(2)


def numba_e4m3_splits(head_dim: int, slots: int, dtype: str) -> SimpleNamespace:
    """As `numba_splits`, for K and V in e4m3. `sort_columns` brings columns of O to where `share_rows` has them."""
    splits, D = numba_splits(head_dim, slots, dtype, column_of_pair), head_dim
    PITCH = -(-D // 128) * 128
    SLOT_BYTES, STEPS, UNIT = BC * PITCH, splits.TD // 2, 16 if D % 16 == 0 else 8
    UNITS, ROW_BYTES = D // UNIT, splits.ROW_BYTES
    mma, halves = numba_mma(dtype), numba_mma("float16").unpacked
    multiply_add, packed, copy_unit = mma.multiply_add, mma.packed, copy_async(UNIT)
    is_float16 = dtype == "float16"

    @cuda.jit(device=True, forceinline=True)
    def as_stored(both):
        if is_float16:
            return both
        low, high = halves(both)
        return packed(low, high)

    @cuda.jit(device=True, forceinline=True)
    def widened(word):
        both = widened_halves(uint32(word))
        return as_stored(both[0]), as_stored(both[1])

    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, source, first, end, lane):
        for start in range(0, BC * UNITS, 32):
            unit = uint32(start + lane)
            if BC * UNITS % 32 == 0 or unit < BC * UNITS:
                row, byte = unit // uint32(UNITS), unit % uint32(UNITS) * uint32(UNIT)
                at = swizzled(PITCH, row, byte // uint32(CHUNK_BYTES)) + byte % uint32(CHUNK_BYTES)
                valid = int32(row) >= first and int32(row) < end
                copy_unit(uint32(tile + at), source + uint64(unit) * uint64(UNIT), valid)

    @cuda.jit(device=True, forceinline=True)
    def lanes_in_tile(lane, Q_by_row):
        own = swizzled(PITCH, lane & uint32(15), lane >> uint32(4))
        return own, own

    # Of each 16 elements of a row of Q, those that a lane has of K to where it looks for its own.
    @cuda.jit(device=True, forceinline=True)
    def arrange_Q(Q_tile, t):
        for i in range(int32(t), int32(BR * STEPS), int32(THREADS)):
            row, chunk = uint32(i) // uint32(STEPS), uint32(i) % uint32(STEPS) * uint32(2)
            x = uint32(Q_tile + swizzled(ROW_BYTES, row, chunk))
            y = uint32(Q_tile + swizzled(ROW_BYTES, row, chunk + uint32(1)))
            a, b = load_chunk(x), load_chunk(y)
            store_chunk(x, (a[0], a[2], b[0], b[2]))
            store_chunk(y, (a[1], a[3], b[1], b[3]))
        cuda.syncthreads()

    # Two steps, which share what ldmatrix gives of K.
    @cuda.jit(device=True, forceinline=True)
    def multiply_steps(pair, S, Q_lane, K_lane):
        k = load_matrices(chunks_further(K_lane, 2 * pair))
        for step in range(min(2, STEPS - 2 * pair)):
            q = load_matrices(chunks_further(Q_lane, 4 * pair + 2 * step))
            first, second = widened(k[0] if step == 0 else k[2]), widened(k[1] if step == 0 else k[3])
            multiply_add(S, 0, 0, q, first[0], first[1])
            multiply_add(S, 0, 1, q, second[0], second[1])

    multiply_all_steps = unrolled(-(-STEPS // 2), multiply_steps)

    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_lane, K_lane):
        for n in range(2):
            for e in range(4):
                S[0, n, e] = ZERO
        multiply_all_steps(S, Q_lane, K_lane)

    # Bytes of two keys' neighbours in a row become neighbours of two keys.
    @cuda.jit(device=True, forceinline=True)
    def add_steps(pair, O, P, V_lane):
        v = load_matrices_transposed(chunks_further(V_lane, 2 * pair))
        for step in range(min(2, STEPS - 2 * pair)):
            near = widened(exchanged(v[0] if step == 0 else v[2]))
            far = widened(exchanged(v[1] if step == 0 else v[3]))
            multiply_add(O, 0, 4 * pair + 2 * step, P, near[0], far[0])
            multiply_add(O, 0, 4 * pair + 2 * step + 1, P, near[1], far[1])

    add_all_steps = unrolled(-(-STEPS // 2), add_steps)

    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P, V_lane):
        first, second = packed(P[0, 0, 0], P[0, 0, 1]), packed(P[0, 0, 2], P[0, 0, 3])
        add_all_steps(O, (first, second, packed(P[0, 1, 0], P[0, 1, 1]), packed(P[0, 1, 2], P[0, 1, 3])), V_lane)

    @cuda.jit(device=True, forceinline=True)
    def V_pair(V_tile, k, n, lane):
        at = uint32(V_tile + swizzled(PITCH, k, n // 2) + (lane & uint32(3)) * uint32(4))
        both = widened(exchanged(load_word(at)))
        return both[0] if n % 2 == 0 else both[1]

    # And V's scale is multiplied with O.
    @cuda.jit(device=True, forceinline=True)
    def sort_columns(s, O, scale):
        for e in range(0, 4, 2):
            second = O[0, 2 * s, e + 1]
            O[0, 2 * s, e] *= scale
            O[0, 2 * s, e + 1] = O[0, 2 * s + 1, e] * scale
            O[0, 2 * s + 1, e] = second * scale
            O[0, 2 * s + 1, e + 1] *= scale

    keys = SimpleNamespace(
        SLOTS=splits.RING_BYTES // SLOT_BYTES,
        SLOT_BYTES=SLOT_BYTES,
        copy_tile=copy_tile,
        lanes_in_tile=lanes_in_tile,
        arrange_Q=arrange_Q,
        multiply_Q_Kt=multiply_Q_Kt,
        add_P_V=add_P_V,
        V_pair=V_pair,
    )
    return SimpleNamespace(**{**vars(splits), "keys": keys, "sort_columns": unrolled(STEPS, sort_columns)})


def numba_pools(head_dim: int, slots: int, dtype: str, kv_dtype: str | None) -> SimpleNamespace:
    """What depends on how K and V are stored, which kernels take as arrays, or as pairs of an array and its scales.

    `splits` for kernels of numba_split_attention.py, the address of a pool, `row_bytes`; tau times the scale of K, and
    `finish_O`, which multiplies O by that of V.
    """
    if kv_dtype is None:

        @cuda.jit(device=True, forceinline=True)
        def first_address(pool):
            return global_address(pool)

        @cuda.jit(device=True, forceinline=True)
        def times_scale(tau, pool, kv_head):
            return tau

        @cuda.jit(device=True, forceinline=True)
        def finish_O(O, pool, kv_head):
            pass

        splits, row_bytes = numba_splits(head_dim, slots, dtype), 2 * head_dim
    else:
        splits, row_bytes = numba_e4m3_splits(head_dim, slots, dtype), head_dim
        sort_columns = splits.sort_columns

        @cuda.jit(device=True, forceinline=True)
        def first_address(pool):
            return global_address(pool[0])

        @cuda.jit(device=True, forceinline=True)
        def times_scale(tau, pool, kv_head):
            return tau * pool[1][kv_head]

        @cuda.jit(device=True, forceinline=True)
        def finish_O(O, pool, kv_head):
            sort_columns(O, pool[1][kv_head])

    return SimpleNamespace(
        splits=splits, row_bytes=row_bytes, first_address=first_address, times_scale=times_scale, finish_O=finish_O
    )
