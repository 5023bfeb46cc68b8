"""Standard attention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 3, with S, P, dP and dS in memory.

A row of S, P, dP and dS is the keys that it sees: what lies before and after them is neither written nor read. The
CUDA twins are kernel.cu and weights.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_backward import RowsInMemory, numba_backward
from variants._tiles.numba_grids import kv_head_index
from variants._tiles.numba_lanes import WARPS, lane_index, warp_index
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    head_index,
    lanes_sum,
    numba_tiles,
)

KEYS_AT_ONCE = 8


@functools.cache
def three_pass_weights(head_dim: int, dtype: str, features: NumbaFeatures) -> Any:
    """The kernel between the products, `bwd_three_pass_weights`."""
    D = head_dim
    stored, widen, narrow = conversions(dtype)
    limits_of_sequence, first_of, end_of = features.limits.of_sequence, features.limits.first, features.limits.end
    dropout_of_head, keeps, factor = features.dropout.of_head, features.dropout.keeps, features.dropout.factor

    # P = exp(S - lse), which line 1 has from the forward pass, and, line 3, dS = P o (dP - D) with D = rowsum(dO o O),
    # which is rowsum(P o dP): load S and dP, write P and dS. Each warp takes a row. If a weight is dropped, P and dP
    # are 0; else dP is multiplied by the factor of dropout here, and P's product where nothing has been rounded to 16
    # bits.
    @cuda.jit
    def bwd_three_pass_weights(S, dP, O, dO, lse, P, dS, q_len, kv_len, limits, dropout):
        s = cuda.local.array(KEYS_AT_ONCE, stored)
        dp = cuda.local.array(KEYS_AT_ONCE, stored)

        batch, head, row = batch_index(), head_index(), block_index() * WARPS + warp_index()
        if row >= q_len:
            return
        run = limits_of_sequence(limits, batch, q_len, kv_len)
        first_key = first_of(run, row)
        seen = end_of(run, row) - first_key
        if seen <= 0:
            return
        O_head, dO_head = O[batch, head], dO[batch, head]
        S_head, dP_head, P_head, dS_head = S[batch, head], dP[batch, head], P[batch, head], dS[batch, head]
        drawn = dropout_of_head(dropout, head, batch)

        total = ZERO
        for start in range(0, D, 32):
            e = start + lane_index()
            if e < D:
                total += widen(dO_head[row, e]) * widen(O_head[row, e])
        delta = lanes_sum(total, 32)
        lse_row = lse[batch, head, row]

        for start in range(0, seen, 32 * KEYS_AT_ONCE):
            j = start + lane_index()
            at = row * kv_len + first_key + j
            for c in range(KEYS_AT_ONCE):
                s[c] = S_head.flat[at + c * 32] if j + c * 32 < seen else stored(0)
                dp[c] = dP_head.flat[at + c * 32] if j + c * 32 < seen else stored(0)
            for c in range(KEYS_AT_ONCE):
                # S <= lse, except for rounding: in 16 bits S may exceed it by more than exp can represent.
                below = widen(s[c]) - lse_row
                p = libdevice.fast_expf(ZERO if below > ZERO else below)
                if j + c * 32 < seen:
                    kept = keeps(drawn, row, first_key + j + c * 32)
                    P_head.flat[at + c * 32] = narrow(p if kept else ZERO)
                    dp_c = factor(dropout) * widen(dp[c]) if kept else ZERO
                    dS_head.flat[at + c * 32] = narrow(p * (dp_c - delta))

    return bwd_three_pass_weights


@functools.cache
def three_pass_of_keys(head_dim: int, tile: Tile, dtype: str, features: NumbaFeatures) -> Any:
    """The kernel that owns keys, `bwd_three_pass_of_keys`; the tile is turned: Br keys, Bc rows."""
    D = head_dim
    load_tile, store_tile = copies(D, dtype)
    _, widen, _ = conversions(dtype)
    tiles, backward = numba_tiles(D, tile, features), numba_backward(RowsInMemory(D, D, dtype), tile, features)
    KEYS, ROWS = backward.KEYS, backward.ROWS
    MOST = max(KEYS, ROWS)
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    own_rows, add_P_V, gather = tiles.own_rows, tiles.add_P_V, tiles.gather
    rows_seeing, in_tile = backward.rows_seeing, backward.in_tile
    first_of, end_of = features.limits.first, features.limits.end

    # Line 1: dV = P^T dO, and line 5: dK = tau dS^T Q: load W and X by blocks, write Y. A block owns a tile of keys of
    # one head, and the query heads that share it; `limits` are mirrored, see numba_backward.py.
    @cuda.jit
    def bwd_three_pass_of_keys(W, X, Y, q_len, kv_len, group, factor, limits):
        X_tile = cuda.shared.array((MOST, LD), float32, alignment=16)
        W_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        Y_acc = cuda.local.array((TM, TD), float32)
        bounds = cuda.local.array((2, TM), int32)

        block = own_rows(kv_len)
        first_key, keys = block.first_row, block.rows
        last_key = first_key + keys - 1
        for i in range(TM):
            for j in range(TD):
                Y_acc[i, j] = ZERO

        # For all X_i with a row that sees some key of the tile, of all heads that share it.
        seeing = rows_seeing(limits, block, q_len, kv_len)
        run = seeing.mirrored.run
        for member in range(group):
            head = block.head * group + member
            X_head, W_head = X[block.batch, head], W[block.batch, head]
            for first_row in range(seeing.start_row, seeing.end_row, ROWS):
                # Load X_i and the tile of W, a row per warp, once no thread reads the last ones any more; zeros for
                # rows that do not see the key.
                rows = min(ROWS, q_len - first_row)
                cuda.syncthreads()
                load_tile(X_tile, ROWS, X_head, first_row, rows)
                for start in range(0, KEYS, 32):
                    c = start + lane_index()
                    key = min(first_key + c, last_key)
                    first_r = first_of(run, key) - first_row
                    end_r = end_of(run, key) - first_row if c < keys else 0
                    for r in range(warp_index(), ROWS, WARPS):
                        seen = first_r <= r and r < end_r
                        w = widen(W_head.flat[(first_row + r) * kv_len + first_key + c]) if seen else ZERO
                        if c < KEYS:
                            W_tile[c, r] = w
                cuda.syncthreads()
                add_P_V(Y_acc, W_tile, X_tile, rows, in_tile(bounds, seeing, (), first_row, rows))

        cuda.syncthreads()
        gather(X_tile, Y_acc, factor)
        cuda.syncthreads()
        store_tile(Y[block.batch, block.head], first_key, X_tile, keys)

    return bwd_three_pass_of_keys


@functools.cache
def three_pass_of_rows(head_dim: int, tile: Tile, dtype: str, features: NumbaFeatures) -> tuple[Any, Any]:
    """The kernels that own rows, `bwd_three_pass_product` and `bwd_three_pass_of_rows`."""
    D, BR, BC = head_dim, tile.Br, tile.Bc
    load_tile, store_tile = copies(D, dtype)
    _, widen, narrow = conversions(dtype)
    tiles = numba_tiles(D, tile, features)
    limits_of_block, first_of, end_of = features.limits.of_block, features.limits.first, features.limits.end
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    own_rows, row_of, key_of, gather = tiles.own_rows, tiles.row_of, tiles.key_of, tiles.gather
    multiply_Q_Kt, seen_in_tile, add_P_V = tiles.multiply_Q_Kt, tiles.seen_in_tile, tiles.add_P_V
    ROWS_PER_WARP = P_ROWS // WARPS  # of a tile with a row of scores per row
    COLUMNS_PER_LANE = -(-BC // 32)

    # Whether a row sees a key.
    @cuda.jit(device=True, forceinline=True)
    def sees(run, row, key):
        return first_of(run, row) <= key and key < end_of(run, row)

    # S = tau Q K^T, which the forward pass does not store, and, line 2, dP = dO V^T: load X and Y by blocks, write S.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def bwd_three_pass_product(X, Y, S, q_len, kv_len, group, factor, limits):
        X_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        Y_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        S_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S_acc = cuda.local.array((TM, TN), float32)

        block = own_rows(q_len)
        first_row, rows = block.first_row, block.rows
        Y_head, S_head = Y[block.batch, kv_head_index(group)], S[block.batch, block.head]
        load_tile(X_tile, BR, X[block.batch, block.head], first_row, rows)

        # For all Y_j with a key that some row sees.
        seen = limits_of_block(limits, block, q_len, kv_len)
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            # Load Y_j, once no thread reads Y_(j-1) any more.
            cuda.syncthreads()
            load_tile(Y_tile, BC, Y_head, first_key, min(BC, kv_len - first_key))
            cuda.syncthreads()

            multiply_Q_Kt(S_acc, X_tile, Y_tile)
            for i in range(TM):
                for j in range(TN):
                    S_tile[row_of(i), key_of(j)] = factor * S_acc[i, j]

            # A warp writes a row at a time: 32 consecutive elements.
            cuda.syncthreads()
            for start in range(0, BC, 32):
                c = start + lane_index()
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    if r < rows and c < BC and sees(seen.run, first_row + r, first_key + c):
                        S_head.flat[at] = narrow(S_tile[r, c])
                    at += WARPS * kv_len

    # Line 4: dQ = tau dS K: load dS and K by blocks, write dQ.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def bwd_three_pass_of_rows(dS, K, dQ, q_len, kv_len, group, factor, limits):
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dQ_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        dQ_acc = cuda.local.array((TM, TD), float32)
        bounds = cuda.local.array((2, TM), int32)

        block = own_rows(q_len)
        first_row, rows = block.first_row, block.rows
        dS_head, K_head = dS[block.batch, block.head], K[block.batch, kv_head_index(group)]
        for i in range(TM):
            for j in range(TD):
                dQ_acc[i, j] = ZERO

        # For all K_j with a key that some row sees.
        seen = limits_of_block(limits, block, q_len, kv_len)
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            # Load K_j and the tile of dS, a row per warp, once no thread reads the last ones any more; zeros for unseen
            # keys.
            keys = min(BC, kv_len - first_key)
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, keys)
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    seen_here = r < rows and c < BC and sees(seen.run, first_row + r, first_key + c)
                    ds = widen(dS_head.flat[at]) if seen_here else ZERO
                    if c < BC:
                        dS_tile[r, c] = ds
                    at += WARPS * kv_len
            cuda.syncthreads()
            add_P_V(dQ_acc, dS_tile, K_tile, keys, seen_in_tile(bounds, seen, (), first_row, first_key, keys))

        gather(dQ_tile, dQ_acc, factor)
        cuda.syncthreads()
        store_tile(dQ[block.batch, block.head], first_row, dQ_tile, rows)

    return bwd_three_pass_product, bwd_three_pass_of_rows
