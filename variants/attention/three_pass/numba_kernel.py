"""Standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, in three kernels with S and P in global memory.

A row of S and of P is the keys that it sees: what lies before and after them is neither written nor read. The softmax
between the two kernels here is in numba_softmax.py. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_stored import conversions
from variants._tiles import Tile
from variants._tiles.numba_grids import kv_head_index
from variants._tiles.numba_lanes import WARPS, lane_index, warp_index
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import BLOCKS_PER_SM, THREADS, ZERO, numba_tiles
from variants.attention.three_pass.numba_rows_seeing import rows_seeing_in


@functools.cache
def three_pass_kernels(head_dim: int, tile: Tile, dtype: str, spans: bool, features: NumbaFeatures) -> SimpleNamespace:
    """The kernels `three_pass_scores` and `three_pass_output` for these compile-time parameters.

    `spans`: whether what rows see is read from arrays.
    """
    D, BR, BC = head_dim, tile.Br, tile.Bc
    load_tile, store_tile = copies(D, dtype)
    stored, widen, narrow = conversions(dtype)
    tiles, rows_seeing = numba_tiles(head_dim, tile, features), rows_seeing_in(spans)
    TM, TN, TD, P_ROWS, LD, LP = tiles.TM, tiles.TN, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    own_rows, row_of, key_of, seen_in_tile = tiles.own_rows, tiles.row_of, tiles.key_of, tiles.seen_in_tile
    multiply_Q_Kt, add_P_V, gather = tiles.multiply_Q_Kt, tiles.add_P_V, tiles.gather
    limits_of_block, factor = features.limits.of_block, features.dropout.factor
    score_of_head, score_of = features.scores.of_head, features.scores.apply
    ROWS_PER_WARP = P_ROWS // WARPS  # of a tile of S or P
    COLUMNS_PER_LANE = -(-BC // 32)

    # Algorithm 0, line 1: load Q, K by blocks, compute S = tau Q K^T, write S.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_scores(Q, K, S, q_len, kv_len, group, tau, limits, scores):
        Q_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        K_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        S_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        S_acc = cuda.local.array((TM, TN), float32)
        s = cuda.local.array(ROWS_PER_WARP, float32)

        block = own_rows(q_len)
        first_row, kv_head = block.first_row, kv_head_index(group)
        K_head, S_head = K[block.batch, kv_head], S[block.batch, block.head]
        load_tile(Q_tile, BR, Q[block.batch, block.head], first_row, block.rows)
        seen = limits_of_block(limits, block, q_len, kv_len)
        first_tile = seen.first_key // BC * BC
        if first_tile >= seen.end_key:
            return
        score = score_of_head(scores, block.head, q_len, kv_len)

        # For all K_j with a key that some row sees.
        for first_key in range(first_tile, seen.end_key, BC):
            # Load K_j, once no thread reads K_(j-1) any more.
            cuda.syncthreads()
            load_tile(K_tile, BC, K_head, first_key, min(BC, kv_len - first_key))
            cuda.syncthreads()
            multiply_Q_Kt(S_acc, Q_tile, K_tile)
            for i in range(TM):
                for j in range(TN):
                    scored = score_of(score, tau * S_acc[i, j], first_row + row_of(i), first_key + key_of(j))
                    S_tile[row_of(i), key_of(j)] = scored

            # A warp writes a row at a time: 32 consecutive elements.
            cuda.syncthreads()
            for start in range(0, BC, 32):
                c = start + lane_index()
                first, end = rows_seeing(seen.run, block, first_key + c if c < BC else kv_len)
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    s[i] = S_tile[warp_index() + WARPS * i, c] if c < BC else ZERO
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    if first <= r and r < end:
                        S_head.flat[at] = narrow(s[i])
                    at += WARPS * kv_len

    # Algorithm 0, line 3: load P and V by blocks, compute O = P V, write O. The factor of dropout is applied here,
    # where nothing has been rounded to 16 bits yet.
    @cuda.jit(launch_bounds=(THREADS, BLOCKS_PER_SM))
    def three_pass_output(P, V, O, q_len, kv_len, group, limits, dropout):
        V_tile = cuda.shared.array((BC, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        O_tile = cuda.shared.array((BR, LD), float32, alignment=16)
        O_acc = cuda.local.array((TM, TD), float32)
        bounds = cuda.local.array((2, TM), int32)
        p = cuda.local.array((COLUMNS_PER_LANE, ROWS_PER_WARP), stored)

        block = own_rows(q_len)
        first_row = block.first_row
        P_head, V_head = P[block.batch, block.head], V[block.batch, kv_head_index(group)]
        for i in range(TM):
            for j in range(TD):
                O_acc[i, j] = ZERO

        # For all V_j with a key that some row sees.
        seen = limits_of_block(limits, block, q_len, kv_len)
        for first_key in range(seen.first_key // BC * BC, seen.end_key, BC):
            keys = min(BC, kv_len - first_key)

            # Load V_j and the tile of P, a row per warp, once no thread reads the last ones any more; zeros for unseen
            # keys.
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                first, end = rows_seeing(seen.run, block, first_key + c if c < BC else kv_len)
                at = (first_row + warp_index()) * kv_len + first_key + c
                for i in range(ROWS_PER_WARP):
                    r = warp_index() + WARPS * i
                    p[j, i] = P_head.flat[at] if first <= r and r < end else stored(0)
                    at += WARPS * kv_len
            cuda.syncthreads()
            load_tile(V_tile, BC, V_head, first_key, keys)
            for j in range(COLUMNS_PER_LANE):
                c = lane_index() + 32 * j
                for i in range(ROWS_PER_WARP):
                    if c < BC:
                        P_tile[warp_index() + WARPS * i, c] = widen(p[j, i])
            cuda.syncthreads()

            add_P_V(O_acc, P_tile, V_tile, keys, seen_in_tile(bounds, seen, (), first_row, first_key, keys))

        gather(O_tile, O_acc, factor(dropout))
        cuda.syncthreads()
        store_tile(O[block.batch, block.head], first_row, O_tile, block.rows)

    return SimpleNamespace(three_pass_scores=three_pass_scores, three_pass_output=three_pass_output)
