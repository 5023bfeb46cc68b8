"""What every algorithm here does with tiles: bring them on chip, multiply them, take them back.

The CUDA twin of this text is tiles.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_limits import RowBlock
from variants._tiles import THREADS_X, THREADS_Y, Tile

TX = THREADS_X
TY = THREADS_Y
THREADS = TX * TY
APART = 2  # lanes from one column to the next
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)
ONE = np.float32(1)

# Numba computes indices in 64 bits and lets a negative one count from the end. A mask shows the compiler that an index
# is not negative, which drops that test and turns divisions into shifts and multiplications.
X_MASK = TX - 1
Y_MASK = TY - 1
APART_MASK = APART - 1
# As many blocks as share a multiprocessor at least: each thread may then have 128 registers, which the products fill.
BLOCKS_PER_SM = 4
MASK = 0x7FFFFFFF


@cuda.jit(device=True, forceinline=True)
def thread_index():
    return (cuda.threadIdx.y & Y_MASK) * TX + (cuda.threadIdx.x & X_MASK)


@cuda.jit(device=True, forceinline=True)
def thread_row():
    return (cuda.threadIdx.y & (Y_MASK ^ APART_MASK)) + (cuda.threadIdx.x & APART_MASK)


@cuda.jit(device=True, forceinline=True)
def thread_column():
    return (cuda.threadIdx.y & APART_MASK) * (TX // APART) + (cuda.threadIdx.x & X_MASK) // APART


# The grid is (blocks of a head, heads, batch).
@cuda.jit(device=True, forceinline=True)
def block_index():
    return cuda.blockIdx.x & MASK


@cuda.jit(device=True, forceinline=True)
def head_index():
    return cuda.blockIdx.y & MASK


@cuda.jit(device=True, forceinline=True)
def batch_index():
    return cuda.blockIdx.z & MASK


# Maximum and sum over `lanes` lanes, `apart` from each other.
@cuda.jit(device=True, forceinline=True)
def lanes_max(x, lanes, apart=1):
    distance = lanes // 2
    while distance > 0:
        x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, distance * apart))
        distance //= 2
    return x


@cuda.jit(device=True, forceinline=True)
def lanes_sum(x, lanes, apart=1):
    distance = lanes // 2
    while distance > 0:
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, distance * apart)
        distance //= 2
    return x


# The sum of what the lanes that share a row have of it.
@cuda.jit(device=True, forceinline=True)
def row_sum(part):
    return lanes_sum(part, TX, APART)


# exp(x - m), and 0 for x = -inf even where nothing was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
@cuda.jit(device=True, forceinline=True)
def exp_below(x, m):
    return libdevice.fast_expf(x - (ZERO if m == MINUS_INFINITY else m))


def step_over(D: int) -> int:
    """How many elements of a row of Q or K one load brings."""
    return 4 if D % 4 == 0 else 2 if D % 2 == 0 else 1


def leading_dimension(D: int) -> int:
    """The stride of rows of D elements in shared memory."""
    return step_over(D) * (D // step_over(D) | 1)


@functools.cache
def numba_tiles(
    head_dim: int,
    tile: Tile,
    features: NumbaFeatures | None = None,
    v_width: int | None = None,
    steps_at_once: int = 4,
) -> SimpleNamespace:
    """Device functions and constants for tiles of Br rows or Bc keys of `head_dim` elements.

    Rows of V and O have `v_width` elements, or `head_dim` if it is None. Without `features` there are no functions that
    look at masks or scores.
    """
    D, DV, BR, BC = head_dim, v_width or head_dim, tile.Br, tile.Bc
    # 128 threads stand in TY = 16 rows of TX = 8. The thread in row ty and column tx owns every 16th row of S and of O
    # from ty on, and of each such row the keys tx, tx + 8, ... of S and the elements of O that element_of names. A row
    # lies in a quarter of a warp, so its maximum and sum need only shuffles.
    #
    # Lanes n and n + 1, n even, stand in one column. Hardware serves a warp's loads of 16 bytes a lane from shared
    # memory to eight lanes at once, and to sixteen where such neighbours, or n and n + 2, want the same: those of K and
    # V, and of Q and P, then take half as many turns.
    TM = -(-BR // TY)  # rows of S and O per thread
    TN = -(-BC // TX)  # keys per thread and row of S
    TD = -(-DV // TX)  # elements per thread and row of O
    P_ROWS = TY * TM  # rows of P in shared memory: those beyond Br belong to threads at the edge

    # Products are limited by how many loads from shared memory they need, so these are as wide as rows allow: STEP
    # elements of a row of Q or K, STEP_P of a row of P, and VD of a row of V. The compiler joins what is adjacent and
    # aligned.
    STEP = step_over(D)
    STEP_P = 4
    # Two or four steps of Q K^T are written out one after the other, up to element AT_ONCE_END, the others in a loop.
    STEPS_AT_ONCE = steps_at_once
    AT_ONCE_END = D // (STEPS_AT_ONCE * STEP) * (STEPS_AT_ONCE * STEP)
    VD = 4 if DV % (4 * TX) == 0 else 2 if DV % (2 * TX) == 0 else 1
    # Strides of tiles in shared memory, LD of Q and K, and LDV of V and O. They are odd numbers of wide loads, so that
    # the same column of adjacent rows lies in different banks. With LP, an odd multiple of TX, so do 8 adjacent keys of
    # the 4 rows of P that a warp stores at once.
    LD, LDV = leading_dimension(D), leading_dimension(DV)
    LP = TX * (TN | 1)

    # The rows that the block owns.
    @cuda.jit(device=True, forceinline=True)
    def own_rows(q_len):
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        return RowBlock(batch_index(), head_index(), block_index(), cuda.gridDim.x & MASK, first_row, rows)

    @cuda.jit(device=True, forceinline=True)
    def row_of(i):
        return thread_row() + TY * i

    @cuda.jit(device=True, forceinline=True)
    def key_of(j):
        return thread_column() + TX * j

    @cuda.jit(device=True, forceinline=True)
    def element_of(j):
        return (j // VD * TX + thread_column()) * VD + j % VD

    # A thread beyond the tile's edge repeats the edge; nothing that it computes is used.
    @cuda.jit(device=True, forceinline=True)
    def tile_row(i):
        return row_of(i) if BR == TY * TM else min(row_of(i), BR - 1)

    @cuda.jit(device=True, forceinline=True)
    def tile_key(j):
        return key_of(j) if BC == TX * TN else min(key_of(j), BC - 1)

    @cuda.jit(device=True, forceinline=True)
    def tile_element(j):
        return element_of(j) if DV == TX * TD else min(element_of(j), DV - 1)

    # Whether row i and element j of this thread lie in the tile.
    @cuda.jit(device=True, forceinline=True)
    def has_row(i):
        return BR == TY * TM or row_of(i) < BR

    @cuda.jit(device=True, forceinline=True)
    def has_element(j):
        return DV == TX * TD or element_of(j) < DV

    # What each thread has of O, times a factor -> a tile.
    @cuda.jit(device=True, forceinline=True)
    def gather(tile, O, factor):
        for i in range(TM):
            for j in range(TD):
                if has_row(i) and has_element(j):
                    tile[row_of(i), element_of(j)] = factor * O[i, j]

    # S += the products of STEP elements of Q_i and of K_j, from k on.
    @cuda.jit(device=True, forceinline=True)
    def add_q_k(S, Q_tile, K_tile, k):
        key = cuda.local.array((TN, STEP), float32)
        q = cuda.local.array((TM, STEP), float32)
        for j in range(TN):
            for e in range(STEP):
                key[j, e] = K_tile[tile_key(j), k + e]
        for i in range(TM):
            for e in range(STEP):
                q[i, e] = Q_tile[tile_row(i), k + e]
        for e in range(STEP):
            for i in range(TM):
                for j in range(TN):
                    S[i, j] += q[i, e] * key[j, e]

    # S = Q_i K_j^T, each element one sum over D in ascending order.
    @cuda.jit(device=True, forceinline=True)
    def multiply_Q_Kt(S, Q_tile, K_tile):
        for i in range(TM):
            for j in range(TN):
                S[i, j] = ZERO
        # Of the steps at once, one loads while another multiplies.
        for k in range(int32(0), int32(AT_ONCE_END), int32(STEPS_AT_ONCE * STEP)):
            add_q_k(S, Q_tile, K_tile, k & MASK)
            add_q_k(S, Q_tile, K_tile, (k & MASK) + STEP)
            if STEPS_AT_ONCE == 4:
                add_q_k(S, Q_tile, K_tile, (k & MASK) + 2 * STEP)
                add_q_k(S, Q_tile, K_tile, (k & MASK) + 3 * STEP)
        for k in range(AT_ONCE_END, D, STEP):
            add_q_k(S, Q_tile, K_tile, k)

    # rowmax(S) of row i of S; the same in all lanes that share the row.
    @cuda.jit(device=True, forceinline=True)
    def row_max(S, i):
        largest = S[i, 0]
        for j in range(1, TN):
            largest = max(largest, S[i, j])
        return lanes_max(largest, TX, APART)

    # O += P V_j over STEP_P keys from k on, which all rows see.
    @cuda.jit(device=True, forceinline=True)
    def add_p_v(O, P_tile, V_tile, k):
        p = cuda.local.array((TM, STEP_P), float32)
        for i in range(TM):
            for e in range(STEP_P):
                p[i, e] = P_tile[row_of(i), k + e]
        for e in range(STEP_P):
            for j in range(TD):
                v = V_tile[k + e, tile_element(j)]
                for i in range(TM):
                    O[i, j] += p[i, e] * v

    tiles = SimpleNamespace(
        TM=TM, TN=TN, TD=TD, P_ROWS=P_ROWS, STEP_P=STEP_P, LD=LD, LDV=LDV, LP=LP,
        own_rows=own_rows, row_of=row_of, key_of=key_of, element_of=element_of, tile_row=tile_row, tile_key=tile_key,
        tile_element=tile_element, has_row=has_row, has_element=has_element, gather=gather,
        multiply_Q_Kt=multiply_Q_Kt, row_max=row_max, add_p_v=add_p_v,
    )  # fmt: skip
    if features is not None:
        vars(tiles).update(_masked(features, tiles))
    return tiles


class SeenInTile(NamedTuple):
    """Which keys of a tile each row of this thread sees, counted from the tile's first key.

    Row i sees first[i] to end[i] - 1, of which `pairs` (numba_tile_order.py) may hide some.
    """

    first: Any
    end: Any
    first_by_all: Any
    end_by_all: Any
    pairs: Any


def _masked(features: NumbaFeatures, tiles: SimpleNamespace) -> dict[str, Any]:
    """Device functions that look at masks and scores."""
    TM, TN, TD, STEP_P = tiles.TM, tiles.TN, tiles.TD, tiles.STEP_P
    row_of, key_of, tile_element, add_p_v = tiles.row_of, tiles.key_of, tiles.tile_element, tiles.add_p_v
    unclipped_first, unclipped_end = features.limits.unclipped_first, features.limits.unclipped_end
    hides_some, pair_seen, score_of = features.order.hides_some, features.order.sees, features.scores.apply
    SCORES_READ_PAIRS = features.scores.READS_PAIRS

    @cuda.jit(device=True, forceinline=True)
    def seen_in_tile(bounds, seen, pairs, first_row, first_key, keys):
        # The kernel declares `bounds`, int32[2, TM]: memory of an array that is declared here ends with this function.
        first, end = bounds[0], bounds[1]
        for i in range(TM):
            first[i] = unclipped_first(seen.run, first_row + row_of(i)) - first_key
            end[i] = min(unclipped_end(seen.run, first_row + row_of(i)) - first_key, keys)
        first_by_all = max(seen.first_by_all - first_key, 0)
        return SeenInTile(first, end, first_by_all, min(seen.end_by_all - first_key, keys), pairs)

    # S = score(tau S) where the row sees the key, -inf elsewhere: chosen, not added, so that NaN behind the mask stays
    # there.
    @cuda.jit(device=True, forceinline=True)
    def scale_and_mask(S, tau, score, seen, first_row, first_key):
        for i in range(TM):
            for j in range(TN):
                sees, scored = key_of(j) < seen.end[i], MINUS_INFINITY
                if sees or not SCORES_READ_PAIRS:
                    scored = score_of(score, tau * S[i, j], first_row + row_of(i), first_key + key_of(j))
                S[i, j] = scored if sees else MINUS_INFINITY
        if seen.first[TM - 1] > 0:  # no row sees keys ahead of those that one above it sees
            for i in range(TM):
                for j in range(TN):
                    S[i, j] = S[i, j] if key_of(j) >= seen.first[i] else MINUS_INFINITY
        if hides_some(seen.pairs):
            for i in range(TM):
                for j in range(TN):
                    S[i, j] = S[i, j] if pair_seen(seen.pairs, row_of(i), key_of(j)) else MINUS_INFINITY

    # O += P V_j over keys from first_key to end_key - 1, each only where the row sees it: its zero weight must not even
    # be multiplied, since V may hold NaN or infinity.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_where_seen(O, P_tile, V_tile, first_key, end_key, seen):
        for k in range(first_key, end_key):
            for i in range(TM):
                p_ik = P_tile[row_of(i), k & MASK]
                for j in range(TD):
                    if seen.first[i] <= k and k < seen.end[i]:
                        O[i, j] += p_ik * V_tile[k & MASK, tile_element(j)]

    # The same over all of the tile's `keys` keys, of which `pairs` hide some.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V_of_pairs(O, P_tile, V_tile, keys, seen):
        for k in range(keys):
            for i in range(TM):
                p_ik = P_tile[row_of(i), k & MASK]
                if seen.first[i] <= k and k < seen.end[i] and pair_seen(seen.pairs, row_of(i), k):
                    for j in range(TD):
                        O[i, j] += p_ik * V_tile[k & MASK, tile_element(j)]

    # O += P V_j over the tile's `keys` keys in ascending order: in steps of STEP_P those that all rows see, one by one
    # the others.
    @cuda.jit(device=True, forceinline=True)
    def add_P_V(O, P_tile, V_tile, keys, seen):
        if hides_some(seen.pairs):
            add_P_V_of_pairs(O, P_tile, V_tile, keys, seen)
            return
        first_step = (seen.first_by_all + STEP_P - 1) // STEP_P
        end_step = max(first_step, seen.end_by_all // STEP_P)
        add_P_V_where_seen(O, P_tile, V_tile, 0, min(first_step * STEP_P, keys), seen)
        pairs_end = first_step + (end_step - first_step) // 2 * 2
        for step in range(int32(first_step), int32(pairs_end), int32(2)):
            add_p_v(O, P_tile, V_tile, STEP_P * (step & MASK))
            add_p_v(O, P_tile, V_tile, STEP_P * (step & MASK) + STEP_P)
        if pairs_end < end_step:
            add_p_v(O, P_tile, V_tile, STEP_P * (pairs_end & MASK))
        add_P_V_where_seen(O, P_tile, V_tile, end_step * STEP_P, keys, seen)

    return {"seen_in_tile": seen_in_tile, "scale_and_mask": scale_and_mask, "add_P_V": add_P_V}
