"""What the algorithms of the backward pass do with tiles besides numba_tiles.py. The CUDA twin is backward.cuh.

A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. So the functions of
numba_tiles.py are used the other way round: what they call a row of a tile is a key, and what they call a key is a
query row; BR is the papers' B_c and BC their B_r. S, P, dP and dS lie on chip transposed, a key per row, so that
add_P_V sums dV_j += P^T dO_i and dK_j += dS^T Q_i.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, uint32
from numba.cuda import libdevice

from variants._dropout.numba_dropout import numba_dropout
from variants._tiles import Tile
from variants._tiles.numba_tiles import (
    MASK,
    TX,
    TY,
    ZERO,
    batch_index,
    numba_tiles,
    row_sum,
    thread_column,
    thread_row,
)


@functools.cache
def numba_backward(head_dim: int, tile: Tile, spans: bool = False, features: tuple[str, ...] = ()) -> SimpleNamespace:
    """Device functions and constants besides those of `numba_tiles`, for a tile that is turned: Br keys, Bc rows.

    `spans`: kernels are told by arrays which rows see a key; `features`: dropout, or none.
    """
    D, KEYS, ROWS = head_dim, tile.Br, tile.Bc
    tiles = numba_tiles(head_dim, tile, spans)
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    TQ = -(-ROWS // TY)  # query rows per thread
    row_of, key_of, element_of, has_element = tiles.row_of, tiles.key_of, tiles.element_of, tiles.has_element
    chosen = numba_dropout(features, -(-KEYS // 8))
    DROPOUT, kept, dropped = chosen.DROPOUT, chosen.kept, chosen.dropped
    multiply_Q_Kt = tiles.multiply_Q_Kt

    # A thread beyond the tile's edge repeats the edge, as in numba_tiles.py.
    @cuda.jit(device=True, forceinline=True)
    def tile_key(j):
        return key_of(j) if ROWS == TX * TN else min(key_of(j), ROWS - 1)

    @cuda.jit(device=True, forceinline=True)
    def tile_element(j):
        return element_of(j) if D == TX * TD else min(element_of(j), D - 1)

    # Rows that see a key: as a row sees keys, the other way round. In a band key j lies on row j + q_len - kv_len, and
    # is seen by the rows from `ahead` ahead of that to `behind` behind it, which are a row's `after` and `before`. So
    # first_seen(key, kv_len, q_len, ahead) is the first row that sees it, and end_seen(key, kv_len, q_len, behind) ends
    # those that do.
    @cuda.jit(device=True, forceinline=True)
    def keep_limits_of_keys(before, after, first_key, keys, q_len):
        return after, before

    if spans:
        # Of each key its first row and their end, in this order.
        @cuda.jit(device=True, forceinline=True)
        def keep_limits_of_keys(first_rows, end_rows, first_key, keys, q_len):
            return keep_limits(first_rows, end_rows, first_key, keys, q_len)

    # Which rows see keys from first_key to last_key: (start, end, first_by_all, end_by_all). Some of them no row ahead
    # of that which the tile of rows at `start` begins with, and none from `end` on, which is 0 where nobody does; all
    # of them the rows from first_by_all to before end_by_all.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(first_key, last_key, q_len, kv_len, ahead, behind):
        first = first_seen(first_key, kv_len, q_len, ahead)
        end = end_seen(last_key, kv_len, q_len, behind)
        first_by_all = first_seen(last_key, kv_len, q_len, ahead)
        end_by_all = end_seen(first_key, kv_len, q_len, behind)
        return first // ROWS * ROWS, end if first < end else 0, first_by_all, end_by_all

    # D_i = rowsum(dO_i o O_i). TX lanes share a row; all threads go round equally often, for shuffles want whole warps.
    @cuda.jit(device=True, forceinline=True)
    def row_dots(delta_tile, dO_tile, O_tile):
        for i in range(TQ):
            r = min(row_of(i), ROWS - 1)
            total = ZERO
            for c in range(TD):
                e = key_of(c)
                if e < D:
                    total += dO_tile[r, e] * O_tile[r, e]
            total = row_sum(total)
            if thread_column() == 0 and row_of(i) < ROWS:
                delta_tile[r] = total

    if DROPOUT:
        # A thread's keys are TY apart.
        @cuda.jit(device=True, forceinline=True)
        def bits_of_row(dropout, j):
            draw, _, head, first_row, first_key = dropout
            return kept(draw, first_row + key_of(j), first_key, thread_row() & 7, head, batch_index())

        @cuda.jit(device=True, forceinline=True)
        def grown(dp, dropout):
            return dropout[1] * dp

    else:

        @cuda.jit(device=True, forceinline=True)
        def bits_of_row(dropout, j):
            return uint32(0)

        @cuda.jit(device=True, forceinline=True)
        def grown(dp, dropout):
            return dp

    # P = exp(tau Q_i K_j^T - lse_i) and dS = P o (dO_i V_j^T - D_i), transposed, both 0 where the row does not see the
    # key: chosen, not multiplied, so that NaN behind the mask stays there. first[i] to end[i]: the rows that see key i.
    # Where a weight drops out P and dP are 0; elsewhere dP grows here, and P's product later. `dropout`: the kernel's
    # two parameters, the query head, and where its tile of rows and that of keys begin, a multiple of 8; or empty.
    @cuda.jit(device=True, forceinline=True)
    def weights_and_gradients(
        P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first, end, dropout
    ):
        S = cuda.local.array((TM, TN), float32)
        dP = cuda.local.array((TM, TN), float32)
        multiply_Q_Kt(S, K_tile, Q_tile)
        multiply_Q_Kt(dP, V_tile, dO_tile)
        for j in range(TN):
            lse_j = lse_tile[tile_key(j)]
            delta_j = delta_tile[tile_key(j)]
            bits = bits_of_row(dropout, j)
            for i in range(TM):
                seen = first[i] <= key_of(j) and key_of(j) < end[i]
                p = libdevice.fast_expf(tau * S[i, j] - lse_j) if seen else ZERO
                P_tile[row_of(i), key_of(j)] = dropped(p, bits, row_of(i) >> 3)
                dp = dropped(grown(dP[i, j], dropout), bits, row_of(i) >> 3)
                dS_tile[row_of(i), key_of(j)] = p * (dp - delta_j) if seen else ZERO

    # dQ_i = dS K_j over the tile's `keys` keys in ascending order, each only where the row sees it. dS_tile is dS^T.
    # All keys are seen by the tile's rows from first_by_all to end_by_all.
    @cuda.jit(device=True, forceinline=True)
    def multiply_dS_K(
        dQ, dS_tile, K_tile, first_by_all, end_by_all, first_key, keys, first_row, rows, q_len, kv_len, ahead, behind
    ):
        all_seen = first_by_all <= 0 and end_by_all >= rows
        for i in range(TQ):
            for j in range(TD):
                dQ[i, j] = ZERO
        for k in range(keys):
            first = first_seen(first_key + k, kv_len, q_len, ahead) - first_row
            end = end_seen(first_key + k, kv_len, q_len, behind) - first_row
            for i in range(TQ):
                ds = dS_tile[k & MASK, min(row_of(i), ROWS - 1)]
                if all_seen or (first <= row_of(i) and row_of(i) < end):
                    for j in range(TD):
                        dQ[i, j] += ds * K_tile[k & MASK, tile_element(j)]

    # Each thread's part of `factor` X -> a tile of `extent` rows; `parts` rows per thread.
    @cuda.jit(device=True, forceinline=True)
    def gather(tile, extent, X, parts, factor):
        for i in range(parts):
            for j in range(TD):
                if row_of(i) < extent and has_element(j):
                    tile[row_of(i), element_of(j)] = factor * X[i, j]

    return SimpleNamespace(
        KEYS=KEYS,
        ROWS=ROWS,
        TQ=TQ,
        keep_limits_of_keys=keep_limits_of_keys,
        rows_seeing=rows_seeing,
        row_dots=row_dots,
        weights_and_gradients=weights_and_gradients,
        multiply_dS_K=multiply_dS_K,
        gather=gather,
    )
