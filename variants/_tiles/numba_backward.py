"""What the algorithms of the backward pass do with tiles in addition to numba_tiles.py. The CUDA twin is backward.cuh.

A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. Such kernels use
numba_tiles.py with rows and keys exchanged: Br of the tile is the papers' B_c, Bc their B_r, and the limits are
mirrored. S, P, dP and dS are stored transposed, a key per row, so that add_P_V computes dV_j += P^T dO_i and
dK_j += dS^T Q_i.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._features.numba_dropout import numba_dropout
from variants._features.numba_features import NumbaFeatures
from variants._features.numba_limits import RowBlock
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_bias_gradient import NOTHING, numba_bias_gradient
from variants._tiles.numba_grids import head_across, key_block_across
from variants._tiles.numba_strided_tiles import layout_copies
from variants._tiles.numba_tiles import (
    MASK,
    MINUS_INFINITY,
    ONE,
    THREADS,
    TY,
    ZERO,
    batch_index,
    numba_tiles,
    row_sum,
    thread_column,
    thread_index,
    thread_row,
)


class RowsInMemory(NamedTuple):
    """What kernels have compiled in of the rows of tensors and of their gradients."""

    D: int
    """Elements of a row of Q and K."""
    DV: int
    """Elements of a row of V and O."""
    dtype: str
    """How elements are stored."""
    aligned: int | None = None
    """The number of elements at whose multiples rows begin; None if the rows of a head are one run."""


class RowsSeeing(NamedTuple):
    """Which rows see the keys of a block that owns keys."""

    mirrored: Any
    """`BlockLimits` in which rows are keys, and keys are rows."""
    first_key: Any
    keys: Any
    """Of the block."""
    start_row: Any
    """Some row sees a key: tiles of rows from start_row to end_row - 1; none if end_row is 0."""
    end_row: Any


# L_i and D_i of `extent` rows, of which there are `rows`; zeros after these.
@cuda.jit(device=True, forceinline=True)
def load_statistics(lse_tile, delta_tile, extent, lse, delta, first_row, rows):
    t = thread_index()
    if t < extent:
        lse_tile[t] = lse[first_row + t] if t < rows else ZERO
        delta_tile[t] = delta[first_row + t] if t < rows else ZERO


@functools.cache
def numba_backward(rows: RowsInMemory, tile: Tile, features: NumbaFeatures, bias: str = NOTHING) -> SimpleNamespace:
    """Device functions and constants besides those of `numba_tiles`, for blocks of Br keys and tiles of Bc rows.

    `features`: of kernels with blocks of Br rows and tiles of Bc keys. `bias`: as for `numba_bias_gradient`.
    """
    D, DV, dtype, aligned = rows
    KEYS, ROWS = tile.Br, tile.Bc
    # Rows of dK and dQ are as long as those of Q and K, rows of dV as those of V and O.
    tiles, tiles_of_V = numba_tiles(D, tile, features), numba_tiles(DV, tile, features)
    dropout = numba_dropout(features.dropout.DROPS, -(-KEYS // 8))
    sequence_at, hides_some, pair_seen = features.sequences.at, features.order.hides_some, features.order.sees
    first_of, end_of, limits_of_block = features.limits.first, features.limits.end, features.limits.of_block
    _, store_tile = layout_copies(D, dtype, aligned)
    load_V_tile, store_V_tile = layout_copies(DV, dtype, aligned)
    _, _, narrow = conversions(dtype)
    TM, TN, TD, TD_of_V, LDV = tiles.TM, tiles.TN, tiles.TD, tiles_of_V.TD, tiles_of_V.LD
    TQ = -(-ROWS // TY)  # query rows per thread
    tile_row = tiles.tile_row
    row_of, key_of, element_of, has_element = tiles.row_of, tiles.key_of, tiles.element_of, tiles.has_element
    tile_key, tile_element = tiles.tile_key, tiles.tile_element
    multiply_Q_Kt, seen_in_tile, gather = tiles.multiply_Q_Kt, tiles.seen_in_tile, tiles.gather
    multiply_dO_Vt, gather_of_V = tiles_of_V.multiply_Q_Kt, tiles_of_V.gather
    dbias = numba_bias_gradient(bias, tiles)
    add_to_dbias, IS_BIASED = dbias.add, dbias.IS_BIASED
    kept_of, or_zero, with_derivative = dropout.kept, dropout.or_zero, features.scores.with_derivative

    # `block`: of keys.
    @cuda.jit(device=True, forceinline=True)
    def rows_seeing(limits, block, q_len, kv_len):
        mirrored = limits_of_block(limits, block, kv_len, q_len)
        first_row, end_row = mirrored.first_key, mirrored.end_key
        start_row, end_row = first_row // ROWS * ROWS, end_row if first_row < end_row else 0
        return RowsSeeing(mirrored, block.first_row, block.rows, start_row, end_row)

    # Which of a tile's `rows` rows see each of this thread's keys. `pairs`: of listed tiles, which are mirrored, too.
    @cuda.jit(device=True, forceinline=True)
    def in_tile(bounds, seeing, pairs, first_row, rows):
        return seen_in_tile(bounds, seeing.mirrored, pairs, seeing.first_key, first_row, rows)

    # Whether row or key i of this thread, in a block that owns rows or keys, sees the other one.
    @cuda.jit(device=True, forceinline=True)
    def sees_in_tile(seen, i, other):
        sees = seen.first[i] <= other and other < seen.end[i]
        if hides_some(seen.pairs):
            sees = sees and pair_seen(seen.pairs, row_of(i), other)
        return sees

    # The sequence of a block that owns keys, and the keys that it owns, of a head of K and V. The grid is (heads,
    # blocks of a head, sequences). `mirrored`: of sequences, as of the limits, rows are keys, and keys are rows.
    @cuda.jit(device=True, forceinline=True)
    def own_sequence_across(mirrored, q_len, kv_len):
        return sequence_at(mirrored, batch_index(), key_block_across() * KEYS, kv_len, q_len)

    @cuda.jit(device=True, forceinline=True)
    def own_keys_across(own):
        first_key = key_block_across() * KEYS
        keys = min(KEYS, own.q_len - first_key)
        return RowBlock(own.batch, head_across(), key_block_across(), cuda.gridDim.y & MASK, first_key, keys)

    # `rows` rows of X, from first_row on, = 0.
    @cuda.jit(device=True, forceinline=True)
    def zero_rows(X, first_row, rows):
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                X[first_row + e // D, e % D] = ZERO

    # Of float32 -> as elements are stored.
    @cuda.jit(device=True, forceinline=True)
    def round_rows(rounded, X, first_row, rows):
        for start in range(0, rows * D, THREADS):
            e = start + thread_index()
            if e < rows * D:
                rounded[first_row + e // D, e % D] = narrow(X[first_row + e // D, e % D])

    # D_i = rowsum(dO_i o O_i). TX lanes share a row. All threads run the same number of iterations: shuffles need whole
    # warps.
    @cuda.jit(device=True, forceinline=True)
    def row_dots(delta_tile, dO_tile, O_tile):
        for i in range(TQ):
            r = min(row_of(i), ROWS - 1)
            total = ZERO
            for c in range(TD_of_V):
                e = key_of(c)
                if e < DV:
                    total += dO_tile[r, e] * O_tile[r, e]
            total = row_sum(total)
            if thread_column() == 0 and row_of(i) < ROWS:
                delta_tile[r] = total

    # The same of ROWS rows in memory.
    @cuda.jit(device=True, forceinline=True)
    def row_dots_in_memory(delta, dO, O, first_row, rows):
        O_tile = cuda.shared.array((ROWS, LDV), float32, alignment=16)
        dO_tile = cuda.shared.array((ROWS, LDV), float32, alignment=16)
        delta_tile = cuda.shared.array(ROWS, float32)
        load_V_tile(O_tile, ROWS, O, first_row, rows)
        load_V_tile(dO_tile, ROWS, dO, first_row, rows)
        cuda.syncthreads()
        row_dots(delta_tile, dO_tile, O_tile)
        cuda.syncthreads()
        t = thread_index()
        if t < rows:
            delta[first_row + t] = delta_tile[t]

    # P = exp(score(tau Q_i K_j^T) - L_i) and dS = P o (dP - D_i), where dP = dO_i V_j^T; P and dS are transposed, and 0
    # where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. dS_tile gets
    # dS times the derivative of the score, which is the gradient of tau Q_i K_j^T.
    #
    # `tau`: divided by the cap, if there is one. `rows`: of the tile. Under dropout dP is 0 if the weight is dropped,
    # and else multiplied by `factor`; P_tile gets the weights that are kept, and dV_j is multiplied by the factor
    # later. A bias of -infinity hides a key, even from a row that sees no other one, whose L_i is -infinity. `dbias`
    # adds dS to the bias's gradient. `pairs`: as for `in_tile`.
    @cuda.jit(device=True, forceinline=True)
    def weights_and_gradients(
        P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, seeing, pairs, score, drawn,
        factor, dbias, first_row, rows,
    ):  # fmt: skip
        S = cuda.local.array((TM, TN), float32)
        dP = cuda.local.array((TM, TN), float32)
        bounds = cuda.local.array((2, TM), int32)
        seen = in_tile(bounds, seeing, pairs, first_row, rows)
        multiply_Q_Kt(S, K_tile, Q_tile)
        multiply_dO_Vt(dP, V_tile, dO_tile)
        for j in range(TN):
            lse_j = lse_tile[tile_key(j)]
            delta_j = delta_tile[tile_key(j)]
            # A thread's keys are TY apart, which is a multiple of 8.
            kept = kept_of(drawn, first_row + key_of(j), seeing.first_key, thread_row() & 7)
            for i in range(TM):
                sees = sees_in_tile(seen, i, key_of(j))
                if IS_BIASED:
                    sees = sees and row_of(i) < seeing.keys
                s, derivative = ZERO, ONE
                if sees or not IS_BIASED:
                    row, key = first_row + key_of(j), seeing.first_key + row_of(i)
                    s, derivative = with_derivative(score, tau * S[i, j], row, key)
                if IS_BIASED:
                    sees = sees and s != MINUS_INFINITY
                p = libdevice.fast_expf(s - lse_j) if sees else ZERO
                dp = or_zero(kept, factor * dP[i, j], row_of(i) >> 3)
                P_tile[row_of(i), key_of(j)] = or_zero(kept, p, row_of(i) >> 3)
                dS = p * (dp - delta_j) if sees else ZERO
                dS_tile[row_of(i), key_of(j)] = (derivative if sees else ONE) * dS
                dP[i, j] = dS
        add_to_dbias(dbias, dP, seeing.first_key, seeing.keys, first_row, rows)

    # dQ_i = dS K_j of `rows` rows over the tile's `keys` keys in ascending order, each only where the row sees it.
    # dS_tile is dS^T; `seen`: of the tile.
    @cuda.jit(device=True, forceinline=True)
    def multiply_dS_K(dQ, dS_tile, K_tile, seeing, seen, keys, first_row, rows):
        run, first_key = seeing.mirrored.run, seeing.first_key
        all_seen = seen.first_by_all == 0 and seen.end_by_all == rows and not hides_some(seen.pairs)
        for i in range(TQ):
            for j in range(TD):
                dQ[i, j] = ZERO
        for k in range(keys):
            first = first_of(run, first_key + k) - first_row
            end = end_of(run, first_key + k) - first_row
            for i in range(TQ):
                ds = dS_tile[k & MASK, min(row_of(i), ROWS - 1)]
                sees = all_seen or (first <= row_of(i) and row_of(i) < end)
                if hides_some(seen.pairs):
                    sees = sees and pair_seen(seen.pairs, k, row_of(i))
                if sees:
                    for j in range(TD):
                        dQ[i, j] += ds * K_tile[k & MASK, tile_element(j)]

    # What each thread has of dQ_i, times a factor -> a tile of ROWS rows.
    @cuda.jit(device=True, forceinline=True)
    def gather_dQ(tile, dQ, factor):
        for i in range(TQ):
            for j in range(TD):
                if row_of(i) < ROWS and has_element(j):
                    tile[row_of(i), element_of(j)] = factor * dQ[i, j]

    # Write dK_j, which is multiplied by tau, and dV_j, gathered where K_j and V_j were, once no thread reads these.
    @cuda.jit(device=True, forceinline=True)
    def store_dK_dV(dK, dV, K_tile, V_tile, dK_acc, dV_acc, tau, factor, first_key, keys):
        cuda.syncthreads()
        gather(K_tile, dK_acc, tau)
        gather_of_V(V_tile, dV_acc, factor)
        cuda.syncthreads()
        store_tile(dK, first_key, K_tile, keys)
        store_V_tile(dV, first_key, V_tile, keys)

    # In a block that owns rows, so that S and dP have a row per row: dP becomes dS = P o (dP - D_i), and S the gradient
    # of tau Q_i K_j^T, which is dS times the derivative of the score; both are 0 where the row does not see the key.
    @cuda.jit(device=True, forceinline=True)
    def row_gradients(S, dP, lse_tile, delta_tile, tau, score, seen, first_row, rows, first_key):
        for i in range(TM):
            lse_i = lse_tile[tile_row(i)]
            delta_i = delta_tile[tile_row(i)]
            for j in range(TN):
                sees = sees_in_tile(seen, i, key_of(j))
                if IS_BIASED:
                    sees = sees and row_of(i) < rows
                s, derivative = ZERO, ONE
                if sees or not IS_BIASED:
                    s, derivative = with_derivative(score, tau * S[i, j], first_row + row_of(i), first_key + key_of(j))
                if IS_BIASED:
                    sees = sees and s != MINUS_INFINITY
                p = libdevice.fast_expf(s - lse_i) if sees else ZERO
                dP[i, j] = p * (dP[i, j] - delta_i) if sees else ZERO
                S[i, j] = (derivative if sees else ONE) * dP[i, j]

    return SimpleNamespace(
        tiles=tiles,
        tiles_of_V=tiles_of_V,
        row_gradients=row_gradients,
        dbias=dbias,
        KEYS=KEYS,
        ROWS=ROWS,
        TQ=TQ,
        rows_seeing=rows_seeing,
        in_tile=in_tile,
        own_sequence_across=own_sequence_across,
        own_keys_across=own_keys_across,
        zero_rows=zero_rows,
        round_rows=round_rows,
        row_dots=row_dots,
        row_dots_in_memory=row_dots_in_memory,
        weights_and_gradients=weights_and_gradients,
        multiply_dS_K=multiply_dS_K,
        gather_dQ=gather_dQ,
        store_dK_dV=store_dK_dV,
    )
