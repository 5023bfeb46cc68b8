"""FlashAttention-2, forward pass, on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma.numba_mma import (
    ALL_LANES,
    MINUS_INFINITY,
    chunks_further,
    commit_copies,
    copy_async,
    exp2_approx,
    global_address,
    load_global,
    load_matrices,
    load_matrices_transposed,
    load_shared,
    numba_mma,
    quad_max,
    quad_sum,
    shared_address,
    store_global,
    store_shared,
    swizzled,
    wait_for_copies,
)
from variants._mma.numba_unrolled import unrolled

ZERO = np.float32(0)
ONE = np.float32(1)
LOG_2 = np.float32(0.693147180559945)
LANE_MASK = 31
STORED_BYTES = 2
CHUNK = 8  # elements
ZEROS = (np.uint32(0), np.uint32(0), np.uint32(0), np.uint32(0))
load_word, store_word = load_shared(4), store_shared(4)
store_chunk = store_shared(16)


# The grid is (blocks of a head, heads, batch). Heads are counted through the batch; `group` of them share K and V.
@cuda.jit(device=True, forceinline=True)
def head_index():
    return uint64(cuda.blockIdx.z) * uint64(cuda.gridDim.y) + uint64(cuda.blockIdx.y)


@cuda.jit(device=True, forceinline=True)
def kv_head_index(group):
    heads, head = uint32(cuda.gridDim.y), uint32(cuda.blockIdx.y)
    return uint64(cuda.blockIdx.z) * uint64(heads // uint32(group)) + uint64(head // uint32(group))


# How many keys, counted from the first, a query row sees. Causal is aligned bottom-right.
@cuda.jit(device=True, forceinline=True)
def keys_seen(row, q_len, kv_len, causal):
    return min(max(int32(row + 1 - q_len + kv_len), int32(0)), kv_len) if causal else kv_len


@functools.cache
def fa2_mma_kernel(head_dim: int, dtype: str, BR: int, BC: int, WARPS: int, STAGES: int, BLOCKS_PER_SM: int, SLACK: float = 0.0) -> Any:
    """The kernel for these compile-time parameters."""
    D = head_dim
    THREADS = 32 * WARPS
    WARP_ROWS = BR // WARPS  # a warp owns so many rows of Q_i, S, P and O_i from end to end
    TM = WARP_ROWS // 16  # tiles of 16 rows
    TN = BC // 8  # tiles of 8 keys
    TK = BC // 16  # steps of 16 keys in which P V is summed
    STEPS = -(-D // 16)  # of 16 elements in which Q K^T is summed; zeros fill the last
    TD = 2 * STEPS  # tiles of 8 elements of O
    ROW_BYTES = -(-D // 64) * 128  # of a row in shared memory
    KV_BYTES = BC * ROW_BYTES  # of K_j, and of V_j
    Q_STAYS = D <= 64  # Q_i in registers; else it is read anew for every tile of keys
    KEPT = STEPS if Q_STAYS else 1
    LIMIT = np.float32(SLACK)

    # What one thread copies at once: as much as rows of D elements keep aligned.
    UNIT = next(unit for unit in (8, 4, 2, 1) if D % unit == 0)
    UNIT_BYTES = UNIT * STORED_BYTES
    UNITS = D // UNIT  # per row

    mma = numba_mma(dtype)
    multiply_add, packed, unpacked = mma.multiply_add, mma.packed, mma.unpacked
    not_finite, finite_or_zero = mma.not_finite, mma.finite_or_zero
    wait_for_Q, wait_for_oldest, wait_for_all = (wait_for_copies(n) for n in (STAGES - 1, STAGES - 2, 0))
    load_unit, store_unit = load_shared(UNIT_BYTES), store_global(UNIT_BYTES)

    # Where unit e of a run of rows lies in a tile.
    @cuda.jit(device=True, forceinline=True)
    def place(e):
        e = uint32(e)
        element = e % uint32(UNITS) * uint32(UNIT)
        row, chunk = e // uint32(UNITS), element // uint32(CHUNK)
        return uint32(swizzled(ROW_BYTES, row, chunk) + element % uint32(CHUNK) * uint32(STORED_BYTES))

    if UNIT > 1:
        copy_unit = copy_async(UNIT_BYTES)
    else:
        load_element, store_element = load_global(STORED_BYTES), store_shared(STORED_BYTES)

        @cuda.jit(device=True, forceinline=True)
        def copy_unit(to, source, valid):
            store_element(to, load_element(source) if valid else np.uint16(0))

    # The one `further` units after unit e: with eight rows per turn of the block, chunks change places as before.
    @cuda.jit(device=True, forceinline=True)
    def place_further(e, further):
        return place(e) + further // UNITS * ROW_BYTES if THREADS % (8 * UNITS) == 0 else place(e + further)

    # `rows` rows of global memory -> a tile of `extent` rows, zeros below. The rows of a head lie one after the other:
    # the block copies them as one run, 32 consecutive units per warp.
    @cuda.jit(device=True, forceinline=True)
    def copy_tile(tile, extent, source, rows):
        thread = int32(cuda.threadIdx.x)
        left = int32(rows * UNITS - thread)
        source += uint64(thread) * uint64(UNIT_BYTES)
        for start in range(0, extent * UNITS, THREADS):
            if extent * UNITS % THREADS == 0 or start + thread < extent * UNITS:
                copy_unit(tile + place_further(thread, start), source + uint64(start * UNIT_BYTES), start < left)

    # K_j and V_j go where those of STAGES tiles before were.
    @cuda.jit(device=True, forceinline=True)
    def copy_keys(KV_tiles, K_head, V_head, j, tiles, kv_len):
        if j < tiles:
            K_tile = KV_tiles + uint32(j) % uint32(STAGES) * uint32(2 * KV_BYTES)
            first_key, keys = uint64(j) * uint64(BC * D * STORED_BYTES), int32(kv_len - j * BC)
            copy_tile(K_tile, BC, K_head + first_key, keys)
            copy_tile(K_tile + KV_BYTES, BC, V_head + first_key, keys)
        commit_copies()

    # Whether what this thread copied into a tile of keys holds NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def copied_not_finite(tile):
        found = False
        for start in range(0, BC * UNITS, cuda.blockDim.x):  # not a constant: unrolled, this would be long
            e = start + cuda.threadIdx.x
            if e < BC * UNITS:
                if UNIT > 1:
                    for i in range(0, UNIT_BYTES, 4):
                        found |= not_finite(load_word(tile + place(e) + i))
                else:
                    found |= not_finite(uint32(load_unit(tile + place(e))))
        return found

    # S = Q_i K_j^T for the warp's rows.
    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_kept, Q_lane, K_lane):
        for i in range(TM):
            for j in range(TN):
                for c in range(4):
                    S[i, j, c] = ZERO
        q = cuda.local.array((TM, 4), uint32)
        for k in range(STEPS):
            for i in range(TM):
                if Q_STAYS:
                    for c in range(4):
                        q[i, c] = Q_kept[i, k, c]
                else:
                    q[i, 0], q[i, 1], q[i, 2], q[i, 3] = load_matrices(
                        chunks_further(Q_lane, 2 * k) + i * 16 * ROW_BYTES
                    )
            for j in range(0, TN, 2):
                k0, k1, k2, k3 = load_matrices(chunks_further(K_lane, 2 * k) + j * 8 * ROW_BYTES)
                for i in range(TM):
                    multiply_add(S, i, j, q, k0, k1)
                    multiply_add(S, i, j + 1, q, k2, k3)

    # O += P V over 16 keys; what is NaN or infinity in V counts as 0 where not `finite`.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P, V_lane, finite):
        for j in range(0, TD, 2):
            v0, v1, v2, v3 = load_matrices_transposed(chunks_further(V_lane, j))
            if not finite:
                v0, v1, v2, v3 = finite_or_zero(v0), finite_or_zero(v1), finite_or_zero(v2), finite_or_zero(v3)
            for i in range(TM):
                multiply_add(O, i, j, P, v0, v1)
                multiply_add(O, i, j + 1, P, v2, v3)

    # O += p v over the tile's keys from first_key to last_key, 16 at most, for each v that is NaN or infinity, in rows
    # that see its key. A row must not even multiply a key that it does not see by its zero weight then. seen[i]: how
    # many keys of the tile a row sees.
    @cuda.jit(device=True, forceinline=True)
    def add_not_finite(O, P, V_tile, first_key, last_key, seen):
        lane = cuda.threadIdx.x & LANE_MASK
        p = cuda.local.array((TM, 2), float32)
        for key in range(first_key, last_key):
            for i in range(TM):
                for h in range(2):
                    both = int32(P[i, 2 + h] if key & 8 else P[i, h])
                    low, high = unpacked(uint32(cuda.shfl_sync(ALL_LANES, both, (lane & ~3) | ((key & 7) >> 1))))
                    p[i, h] = high if key & 1 else low
            for j in range(TD):
                both = load_word(V_tile + swizzled(ROW_BYTES, key, j) + (lane & 3) * 4)
                if not_finite(both):
                    v0, v1 = unpacked(both)
                    for i in range(TM):
                        for h in range(2):
                            if key < seen[i, h] and not math.isfinite(v0):
                                O[i, j, 2 * h] += p[i, h] * v0
                            if key < seen[i, h] and not math.isfinite(v1):
                                O[i, j, 2 * h + 1] += p[i, h] * v1

    # O += P V where V holds NaN or infinity in keys that some rows do not see. No row of the warp sees more than `keys`.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_where_seen(O, P, V_tile, V_lane, keys, seen):
        for first_key in range(0, keys, 16):
            add_P_V(O, P[0], V_lane + first_key * ROW_BYTES, False)
            add_not_finite(O, P[0], V_tile, first_key, min(first_key + 16, keys), seen)
            # The next 16 keys move up: registers have no index at run time.
            for s in range(1, TK):
                for i in range(TM):
                    for c in range(4):
                        P[s - 1, i, c] = P[s, i, c]

    # P[s] = exp(tau S - m) of 16 keys, rounded to 16 bits as A of the next product, and l += rowsum(P), not rounded.
    @cuda.jit(device=True, forceinline=True)
    def exponentiate(s, P, l, S, m, tau2):
        for i in range(TM):
            for h in range(2):
                above = ZERO if m[i, h] == MINUS_INFINITY else -m[i, h]
                for j in range(2):
                    low = exp2_approx(libdevice.fmaf(S[i, 2 * s + j, 2 * h], tau2, above))
                    high = exp2_approx(libdevice.fmaf(S[i, 2 * s + j, 2 * h + 1], tau2, above))
                    l[i, h] += low
                    l[i, h] += high
                    P[s, i, 2 * j + h] = packed(low, high)

    @cuda.jit(device=True, forceinline=True)
    def exponentiate_and_add(s, O, P, V_lane, l, S, m, tau2):
        exponentiate(s, P, l, S, m, tau2)
        add_P_V(O, P[s], V_lane + s * 16 * ROW_BYTES, True)

    exponentiate_all, exponentiate_and_add_all = unrolled(TK, exponentiate), unrolled(TK, exponentiate_and_add)

    # Lines 8 to 10 for the warp's rows and one tile of keys. m is in powers of two: log2(e) is part of tau2. l is that
    # of this lane's columns alone.
    def visiting(MASKED: bool) -> Any:
        @cuda.jit(device=True, forceinline=True)
        def visit_tile(
            O, m, l, Q_kept, Q_lane, K_lane, V_tile, V_lane, tau2, row, first_key, q_len, kv_len, causal, keys, poisoned
        ):
            column = (cuda.threadIdx.x & 3) * 2
            S = cuda.local.array((TM, TN, 4), float32)
            seen = cuda.local.array((TM, 2), int32)
            largest = cuda.local.array((TM, 2), float32)

            # Line 8: S = Q_i K_j^T. Where the row does not see the key: -inf, chosen and not added, so that NaN stays
            # there.
            multiply_Q_Kt(S, Q_kept, Q_lane, K_lane)
            if MASKED:
                for i in range(TM):
                    for h in range(2):
                        seen[i, h] = int32(keys_seen(row + 16 * i + 8 * h, q_len, kv_len, causal) - first_key)
                        seen_by_lane = int32(seen[i, h] - column)
                        for j in range(TN):
                            for c in range(2):
                                if 8 * j + c >= seen_by_lane:
                                    S[i, j, 2 * h + c] = MINUS_INFINITY

            # Line 9, first half: m = max(m, rowmax(tau S)).
            rises = False
            for i in range(TM):
                for h in range(2):
                    x = max(S[i, 0, 2 * h], S[i, 0, 2 * h + 1])
                    for j in range(1, TN):
                        x = max(x, max(S[i, j, 2 * h], S[i, j, 2 * h + 1]))
                    largest[i, h] = tau2 * quad_max(x)
                    rises |= largest[i, h] > m[i, h] + LIMIT

            # Line 10, first half: O_i = diag(exp(m_old - m)) O_i, unless that is 1 for all of the warp's rows.
            if cuda.any_sync(ALL_LANES, rises):
                for i in range(TM):
                    for h in range(2):
                        m_new = max(m[i, h], largest[i, h])
                        correction = exp2_approx(m[i, h] - (ZERO if m_new == MINUS_INFINITY else m_new))
                        m[i, h] = m_new
                        l[i, h] *= correction
                        for j in range(TD):
                            for c in range(2):
                                O[i, j, 2 * h + c] *= correction

            # Line 9, second half: P = exp(tau S - m), l = l + rowsum(P). Line 10, second half: O_i = O_i + P V_j. 16
            # keys at a time, so that exponentials of the next can be under way with the products of these.
            P = cuda.local.array((TK, TM, 4), uint32)
            if MASKED and poisoned:
                exponentiate_all(P, l, S, m, tau2)
                add_P_V_where_seen(O, P, V_tile, V_lane, keys, seen)
            else:
                exponentiate_and_add_all(O, P, V_lane, l, S, m, tau2)

        return visit_tile

    visit_masked, visit_unmasked = visiting(True), visiting(False)

    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def fa2_mma(Q, K, V, O, lse, group, tau2, sign, causal):
        Q_tile = shared_address(cuda.shared.array(0, uint32, alignment=1024))
        KV_tiles = uint32(Q_tile + BR * ROW_BYTES)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & LANE_MASK, thread >> 5
        Q_kept = cuda.local.array((TM, KEPT, 4), uint32)
        O_acc = cuda.local.array((TM, TD, 4), float32)
        m = cuda.local.array((TM, 2), float32)
        l = cuda.local.array((TM, 2), float32)
        L = cuda.local.array((TM, 2), float32)

        # Line 3: the block owns Q_i and O_i of one head. Where causal, the blocks with most keys start first.
        q_len, kv_len = int32(Q.shape[2]), int32(K.shape[2])
        first_row = int32((cuda.gridDim.x - 1 - cuda.blockIdx.x if causal else cuda.blockIdx.x) * BR)
        rows = int32(min(BR, q_len - first_row))
        first_stat = head_index() * uint64(q_len) + uint64(first_row)
        head_bytes = kv_head_index(group) * uint64(kv_len) * uint64(D * STORED_BYTES)
        K_head, V_head = global_address(K) + head_bytes, global_address(V) + head_bytes

        # Columns beyond D belong to the last step of a product: zeros, once and for all.
        if D % 16 != 0:
            for start in range(0, BR * ROW_BYTES + STAGES * 2 * KV_BYTES, THREADS * 16):
                store_chunk(Q_tile + start + thread * 16, ZEROS)
            cuda.syncthreads()

        # Line 4: load Q_i.
        copy_tile(Q_tile, BR, global_address(Q) + first_stat * uint64(D * STORED_BYTES), rows)
        commit_copies()

        # Lines 6 and 7: K_j and V_j that the last row of Q_i sees are visited, STAGES - 1 of them ahead of their use.
        seen_by_first = keys_seen(first_row, q_len, kv_len, causal)
        seen_by_last = keys_seen(first_row + rows - 1, q_len, kv_len, causal)
        tiles = int32((seen_by_last + BC - 1) // BC)
        for j in range(STAGES - 1):
            copy_keys(KV_tiles, K_head, V_head, j, tiles, kv_len)

        wait_for_Q()
        cuda.syncthreads()
        if sign != 1:  # tau2 is positive: Q_i takes the sign of tau, or becomes 0
            for start in range(0, BR * TD * 4, THREADS):
                e = uint32(start + thread)
                at = Q_tile + swizzled(ROW_BYTES, e // uint32(TD * 4), (e >> 2) % uint32(TD)) + (e & 3) * 4
                both = load_word(at)
                low, high = unpacked(both)
                store_word(at, both ^ 0x80008000 if sign < 0 else packed(ZERO * low, ZERO * high))
            cuda.syncthreads()

        # This lane's part in loads of fragments, in rows 0 to 15 of a tile.
        A_lane = swizzled(ROW_BYTES, lane & 15, lane >> 4)
        K_lane = swizzled(ROW_BYTES, (lane >> 4) * 8 + (lane & 7), (lane >> 3) & 1)
        Q_lane = uint32(Q_tile + warp * WARP_ROWS * ROW_BYTES + A_lane)
        if Q_STAYS:
            for i in range(TM):
                for k in range(STEPS):
                    Q_kept[i, k, 0], Q_kept[i, k, 1], Q_kept[i, k, 2], Q_kept[i, k, 3] = load_matrices(
                        chunks_further(Q_lane, 2 * k) + i * 16 * ROW_BYTES
                    )

        # Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers.
        for i in range(TM):
            for h in range(2):
                m[i, h] = MINUS_INFINITY
                l[i, h] = ZERO
            for j in range(TD):
                for c in range(4):
                    O_acc[i, j, c] = ZERO

        warp_row = int32(first_row + warp * WARP_ROWS)
        row = int32(warp_row + (lane >> 2))
        seen_by_warps_first = keys_seen(warp_row, q_len, kv_len, causal)
        seen_by_warps_last = keys_seen(warp_row + WARP_ROWS - 1, q_len, kv_len, causal)
        for j in range(tiles):
            # Line 7: K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. V_j of
            # a tile of which some rows do not see every key must not hold NaN or infinity, or products are not enough.
            first_key = int32(j * BC)
            K_tile = uint32(KV_tiles + uint32(j) % uint32(STAGES) * uint32(2 * KV_BYTES))
            wait_for_oldest()
            poisoned = False
            if first_key + BC > seen_by_first and seen_by_first < kv_len:
                poisoned = cuda.syncthreads_or(int32(copied_not_finite(K_tile + KV_BYTES))) != 0
            else:
                cuda.syncthreads()
            copy_keys(KV_tiles, K_head, V_head, j + STAGES - 1, tiles, kv_len)

            K_at, V_at = uint32(K_tile + K_lane), uint32(K_tile + KV_BYTES + A_lane)
            if first_key + BC <= seen_by_warps_first:
                visit_unmasked(
                    O_acc, m, l, Q_kept, Q_lane, K_at, K_tile + KV_BYTES, V_at, tau2, row, first_key, q_len, kv_len,
                    causal, 0, False
                )
            elif first_key < seen_by_warps_last:
                visit_masked(
                    O_acc, m, l, Q_kept, Q_lane, K_at, K_tile + KV_BYTES, V_at, tau2, row, first_key, q_len, kv_len,
                    causal, min(BC, seen_by_warps_last - first_key), poisoned
                )

        # Line 12: O_i = diag(l_i)^-1 O_i, gathered where the warp's rows of Q_i were. A row that saw nothing has l = 0:
        # its O stays 0.
        wait_for_all()
        cuda.syncthreads()
        O_tile = uint32(Q_tile + warp * WARP_ROWS * ROW_BYTES)
        for i in range(TM):
            for h in range(2):
                total = quad_sum(l[i, h])
                inverse = ZERO if total == ZERO else ONE / total
                for j in range(TD):
                    at = O_tile + swizzled(ROW_BYTES, 16 * i + 8 * h + (lane >> 2), j) + (lane & 3) * 4
                    store_word(at, packed(O_acc[i, j, 2 * h] * inverse, O_acc[i, j, 2 * h + 1] * inverse))
                L[i, h] = m[i, h] * LOG_2 + libdevice.logf(total)
        cuda.syncwarp()

        # Line 14: write O_i, 32 consecutive units at once.
        warp_rows = int32(rows - warp * WARP_ROWS)
        warp_stat = first_stat + uint64(warp * WARP_ROWS)
        O_rows = global_address(O) + warp_stat * uint64(D * STORED_BYTES)
        for start in range(0, WARP_ROWS * UNITS, 32):
            e = int32(start + lane)
            if e < warp_rows * UNITS and e < WARP_ROWS * UNITS:
                store_unit(O_rows + uint64(e) * uint64(UNIT_BYTES), load_unit(O_tile + place(e)))

        # Lines 13 and 15: L_i = m_i + log(l_i), which is -inf where nothing was seen; write it, lane t that of row t.
        mine = ZERO
        for i in range(TM):
            for h in range(2):
                of_eight_rows = cuda.shfl_sync(ALL_LANES, L[i, h], (lane & 7) * 4)
                if lane >> 3 == 2 * i + h:
                    mine = of_eight_rows
        if lane < min(WARP_ROWS, warp_rows):
            lse[cuda.blockIdx.z, cuda.blockIdx.y, warp_row + lane] = mine

    return fa2_mma
