"""What the algorithms of the backward pass do with tiles besides numba_tiles.py. The CUDA twin is backward.cuh.

A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. So the functions of
numba_tiles.py are used the other way round: what they call a row of a tile is a key, and what they call a key is a
query row; BR is the papers' B_c and BC their B_r. S, P, dP and dS lie on chip transposed, a key per row.
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


# Query rows that see a key of a tile: first_seeing up to, not including, end_seeing; none where that is not beyond it.
@cuda.jit(device=True, forceinline=True)
def first_seeing(first_key, q_len, kv_len, after):
    return max(first_key + q_len - kv_len - after, 0)


@cuda.jit(device=True, forceinline=True)
def end_seeing(first_key, keys, q_len, kv_len, before):
    return min(first_key + keys + q_len - kv_len + before, q_len)


@functools.cache
def numba_backward(head_dim: int, tile: Tile, features: tuple[str, ...] = ()) -> SimpleNamespace:
    """Device functions and constants besides those of `numba_tiles`, for a tile that is turned: Br keys, Bc rows.

    `features`: dropout, or none.
    """
    D, KEYS, ROWS = head_dim, tile.Br, tile.Bc
    tiles = numba_tiles(head_dim, tile)
    TM, TN, TD = tiles.TM, tiles.TN, tiles.TD
    TQ = -(-ROWS // TY)  # query rows per thread
    row_of, key_of, element_of, has_element = tiles.row_of, tiles.key_of, tiles.element_of, tiles.has_element
    chosen = numba_dropout(features, -(-KEYS // 8))
    DROPOUT, kept, dropped = chosen.DROPOUT, chosen.kept, chosen.dropped
    multiply_Q_Kt, add_P_V, span_in_tile = tiles.multiply_Q_Kt, tiles.add_P_V, tiles.span_in_tile

    # A thread beyond the tile's edge repeats the edge, as in numba_tiles.py.
    @cuda.jit(device=True, forceinline=True)
    def tile_key(j):
        return key_of(j) if ROWS == TX * TN else min(key_of(j), ROWS - 1)

    @cuda.jit(device=True, forceinline=True)
    def tile_element(j):
        return element_of(j) if D == TX * TD else min(element_of(j), D - 1)

    # For each key of this thread the rows of a tile of `rows` rows that see it, counted from the tile's first.
    @cuda.jit(device=True, forceinline=True)
    def seen_by_in_tile(first, end, first_key, first_row, rows, q_len, kv_len, before, after):
        span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, after, before)

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

    # X += W^T Y_i over the tile's `rows` rows in ascending order: dV_j += P^T dO_i, dK_j += dS^T Q_i. W_tile is W^T.
    # Where not all keys are seen, a row is not even multiplied by its zero weight, for Y may hold NaN or inf.
    @cuda.jit(device=True, forceinline=True)
    def add_Wt_Y(X, W_tile, Y_tile, first_key, keys, first_row, rows, q_len, kv_len, before, after, first, end):
        own_row = first_key + q_len - kv_len - first_row
        add_P_V(X, W_tile, Y_tile, own_row + keys - 1 - after, own_row + before + 1, rows, first, end)

    # dQ_i = dS K_j over the tile's `keys` keys in ascending order, each only where the row sees it. dS_tile is dS^T.
    @cuda.jit(device=True, forceinline=True)
    def multiply_dS_K(dQ, dS_tile, K_tile, first_key, keys, first_row, rows, q_len, kv_len, before, after):
        own_key = first_row + kv_len - q_len - first_key  # of the tile's first row
        all_seen = own_key + rows - 1 - before <= 0 and own_key + after + 1 >= keys
        for i in range(TQ):
            for j in range(TD):
                dQ[i, j] = ZERO
        for k in range(keys):
            for i in range(TQ):
                own = own_key + row_of(i)
                ds = dS_tile[k & MASK, min(row_of(i), ROWS - 1)]
                if all_seen or (own - before <= k and k < own + after + 1):
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
        seen_by_in_tile=seen_by_in_tile,
        row_dots=row_dots,
        weights_and_gradients=weights_and_gradients,
        add_Wt_Y=add_Wt_Y,
        multiply_dS_K=multiply_dS_K,
        gather=gather,
    )
