"""Standard attention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 3, with S, P, dP and dS in memory.

A row of S, P, dP and dS is the keys that it sees: what lies ahead of them or behind is neither written nor read. The
CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32, int32
from numba.cuda import libdevice

from variants._dropout.numba_dropout import numba_dropout
from variants._tiles import Tile
from variants._tiles.numba_backward import numba_backward
from variants._tiles.numba_tiles import (
    BLOCKS_PER_SM,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    conversions,
    copies,
    head_index,
    kv_head_index,
    lanes_sum,
    numba_tiles,
    thread_index,
    what_rows_see,
)

WARPS = THREADS // 32
KEYS_AT_ONCE = 8


@cuda.jit(device=True, forceinline=True)
def warp_index():
    return thread_index() // 32


@cuda.jit(device=True, forceinline=True)
def lane_index():
    return thread_index() % 32


@functools.cache
def three_pass_weights(head_dim: int, dtype: str, spans: bool, features: tuple[str, ...]) -> Any:
    """The kernel between the products, `bwd_three_pass_weights`.

    `spans`: see `numba_tiles`; `features`: dropout, or none.
    """
    D = head_dim
    stored, widen, narrow = conversions(dtype)
    dropout = numba_dropout(features)
    DROPOUT, keeps, factor_of = dropout.DROPOUT, dropout.keeps, dropout.factor_of
    rows = what_rows_see(spans)
    first_seen, end_seen, limits_in_memory = rows.first_seen, rows.end_seen, rows.limits_in_memory

    # P = exp(S - lse), which line 1 has from the forward pass, and, line 3, dS = P o (dP - D) with D = rowsum(dO o O),
    # which is rowsum(P o dP): read S and dP, write P and dS. A warp takes a row. Where a weight drops
    # out P and dP are 0; elsewhere dP grows here, and P's product where no 16 bits are between.
    @cuda.jit
    def bwd_three_pass_weights(S, dP, O, dO, lse, P, dS, before, after, draw, kept_factor):
        s = cuda.local.array(KEYS_AT_ONCE, stored)
        dp = cuda.local.array(KEYS_AT_ONCE, stored)

        q_len, kv_len = S.shape[2], S.shape[3]
        row = block_index() * WARPS + warp_index()
        if row >= q_len:
            return
        before, after = limits_in_memory(before, after)
        first_key = first_seen(row, q_len, kv_len, before)
        seen = end_seen(row, q_len, kv_len, after) - first_key
        if seen <= 0:
            return
        O_head = O[batch_index(), head_index()]
        dO_head = dO[batch_index(), head_index()]
        S_head = S[batch_index(), head_index()]
        dP_head = dP[batch_index(), head_index()]
        P_head = P[batch_index(), head_index()]
        dS_head = dS[batch_index(), head_index()]

        total = ZERO
        for start in range(0, D, 32):
            e = start + lane_index()
            if e < D:
                total += widen(dO_head[row, e]) * widen(O_head[row, e])
        delta = lanes_sum(total, 32)
        lse_row = lse[batch_index(), head_index(), row]

        for start in range(0, seen, 32 * KEYS_AT_ONCE):
            j = start + lane_index()
            at = row * kv_len + first_key + j
            for c in range(KEYS_AT_ONCE):
                s[c] = S_head.flat[at + c * 32] if j + c * 32 < seen else stored(0)
                dp[c] = dP_head.flat[at + c * 32] if j + c * 32 < seen else stored(0)
            for c in range(KEYS_AT_ONCE):
                # S <= lse but for its rounding, which 16 bits may have by more than what exp has numbers for.
                below = widen(s[c]) - lse_row
                p = libdevice.fast_expf(ZERO if below > ZERO else below)
                if j + c * 32 < seen:
                    kept = not DROPOUT or keeps(draw, row, first_key + j + c * 32, head_index(), batch_index())
                    P_head.flat[at + c * 32] = narrow(p if kept else ZERO)
                    dp_c = factor_of(kept_factor) * widen(dp[c]) if kept else ZERO
                    dS_head.flat[at + c * 32] = narrow(p * (dp_c - delta))

    return bwd_three_pass_weights


@functools.cache
def three_pass_of_keys(head_dim: int, tile: Tile, dtype: str, spans: bool) -> Any:
    """The kernel that owns keys, `bwd_three_pass_of_keys`; the tile is turned: Br keys, Bc rows.

    `spans`: see `numba_backward`.
    """
    D = head_dim
    load_tile, store_tile = copies(D, dtype)
    _, widen, _ = conversions(dtype)
    tiles, backward = numba_tiles(head_dim, tile, spans), numba_backward(head_dim, tile, spans)
    KEYS, ROWS = backward.KEYS, backward.ROWS
    MOST = max(KEYS, ROWS)
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    first_seen, end_seen, span_in_tile = tiles.first_seen, tiles.end_seen, tiles.span_in_tile
    rows_seeing = backward.rows_seeing
    keep_limits_of_keys, add_P_V, gather = backward.keep_limits_of_keys, tiles.add_P_V, backward.gather

    # Line 1: dV = P^T dO, and line 5: dK = tau dS^T Q: read W and X by blocks, write Y. A block owns a tile of keys of
    # one head, and the query heads that share it.
    @cuda.jit
    def bwd_three_pass_of_keys(W, X, Y, group, factor, before, after):
        X_tile = cuda.shared.array((MOST, LD), float32, alignment=16)
        W_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        Y_acc = cuda.local.array((TM, TD), float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        q_len, kv_len = X.shape[2], Y.shape[2]
        first_key = block_index() * KEYS
        keys = min(KEYS, kv_len - first_key)
        for i in range(TM):
            for j in range(TD):
                Y_acc[i, j] = ZERO

        # All X_i with a row that sees some key of the tile, of all heads that share it.
        ahead, behind = keep_limits_of_keys(before, after, first_key, keys, q_len)
        last_key = first_key + keys - 1
        start_row, end_row, first_row_by_all, end_row_by_all = rows_seeing(
            first_key, last_key, q_len, kv_len, ahead, behind
        )
        for member in range(group):
            head = head_index() * group + member
            X_head = X[batch_index(), head]
            W_head = W[batch_index(), head]
            for first_row in range(start_row, end_row, ROWS):
                # Load X_i and the tile of W, a row per warp, once nobody reads the last ones any more. Zeros: not seen.
                rows = min(ROWS, q_len - first_row)
                cuda.syncthreads()
                load_tile(X_tile, ROWS, X_head, first_row, rows)
                for start in range(0, KEYS, 32):
                    c = start + lane_index()
                    key = min(first_key + c, last_key)
                    first_r = first_seen(key, kv_len, q_len, ahead) - first_row
                    end_r = end_seen(key, kv_len, q_len, behind) - first_row if c < keys else 0
                    for r in range(warp_index(), ROWS, WARPS):
                        seen = first_r <= r and r < end_r
                        w = widen(W_head.flat[(first_row + r) * kv_len + first_key + c]) if seen else ZERO
                        if c < KEYS:
                            W_tile[c, r] = w
                cuda.syncthreads()

                span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind)
                first_by_all = first_row_by_all - first_row
                end_by_all = end_row_by_all - first_row
                add_P_V(Y_acc, W_tile, X_tile, first_by_all, end_by_all, rows, first, end)

        cuda.syncthreads()
        gather(X_tile, KEYS, Y_acc, TM, factor)
        cuda.syncthreads()
        store_tile(Y[batch_index(), head_index()], first_key, X_tile, keys)

    return bwd_three_pass_of_keys


@functools.cache
def three_pass_of_rows(head_dim: int, tile: Tile, dtype: str, spans: bool) -> tuple[Any, Any]:
    """The kernels that own rows, `bwd_three_pass_product` and `bwd_three_pass_of_rows`; `spans`: see `numba_tiles`."""
    D, BR, BC = head_dim, tile.Br, tile.Bc
    load_tile, store_tile = copies(D, dtype)
    _, widen, narrow = conversions(dtype)
    tiles = numba_tiles(head_dim, tile, spans)
    first_seen, end_seen, keep_limits = tiles.first_seen, tiles.end_seen, tiles.keep_limits
    gather = numba_backward(head_dim, tile).gather
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    row_of, key_of = tiles.row_of, tiles.key_of
    multiply_Q_Kt, span_in_tile, add_P_V = tiles.multiply_Q_Kt, tiles.span_in_tile, tiles.add_P_V
    ROWS_PER_WARP = P_ROWS // WARPS  # of a tile with a row of scores per row
    COLUMNS_PER_LANE = -(-BC // 32)

    # Whether a row sees a key.
    @cuda.jit(device=True, forceinline=True)
    def sees(row, key, q_len, kv_len, before, after):
        return first_seen(row, q_len, kv_len, before) <= key and key < end_seen(row, q_len, kv_len, after)

    # S = tau Q K^T, which the forward pass does not keep, and, line 2, dP = dO V^T: read X and Y by blocks, write S.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def bwd_three_pass_product(X, Y, S, group, factor, before, after):
        X_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        Y_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        S_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S_acc = cuda.local.array((TM, TN), float32)

        q_len, kv_len = X.shape[2], Y.shape[2]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        Y_head = Y[batch_index(), kv_head_index(group)]
        S_head = S[batch_index(), head_index()]
        load_tile(X_tile, BR, X[batch_index(), head_index()], first_row, rows)

        # All Y_j with a key that some row sees: from the first row's first to the last row's last.
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        end_by_last = end_seen(first_row + rows - 1, q_len, kv_len, after)
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            # Load Y_j, once nobody reads Y_(j-1) any more.
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
                    in_tile = r < rows and c < BC
                    if in_tile and sees(first_row + r, first_key + c, q_len, kv_len, before, after):
                        S_head.flat[at] = narrow(S_tile[r, c])
                    at += WARPS * kv_len

    # Line 4: dQ = tau dS K: read dS and K by blocks, write dQ.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def bwd_three_pass_of_rows(dS, K, dQ, group, factor, before, after):
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dQ_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        dQ_acc = cuda.local.array((TM, TD), float32)
        first = cuda.local.array(TM, int32)
        end = cuda.local.array(TM, int32)

        q_len, kv_len = dS.shape[2], dS.shape[3]
        first_row = block_index() * BR
        rows = min(BR, q_len - first_row)
        dS_head = dS[batch_index(), head_index()]
        K_head = K[batch_index(), kv_head_index(group)]
        for i in range(TM):
            for j in range(TD):
                dQ_acc[i, j] = ZERO

        last_row = first_row + rows - 1
        before, after = keep_limits(before, after, first_row, rows, kv_len)
        first_by_first = first_seen(first_row, q_len, kv_len, before)
        first_by_last = first_seen(last_row, q_len, kv_len, before)
        end_by_first = end_seen(first_row, q_len, kv_len, after)
        end_by_last = end_seen(last_row, q_len, kv_len, after)
        for first_key in range(first_by_first // BC * BC, end_by_last, BC):
            # Load K_j and the tile of dS, a row per warp, once nobody reads the last ones any more. Zeros: no row.
            keys = min(BC, kv_len - first_key)
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, keys)
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    in_tile = r < rows and c < BC
                    seen = in_tile and sees(first_row + r, first_key + c, q_len, kv_len, before, after)
                    ds = widen(dS_head.flat[at]) if seen else ZERO
                    if c < BC:
                        dS_tile[r, c] = ds
                    at += WARPS * kv_len
            cuda.syncthreads()

            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after)
            add_P_V(dQ_acc, dS_tile, K_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end)

        gather(dQ_tile, BR, dQ_acc, TM, factor)
        cuda.syncthreads()
        store_tile(dQ[batch_index(), head_index()], first_row, dQ_tile, rows)

    return bwd_three_pass_product, bwd_three_pass_of_rows
