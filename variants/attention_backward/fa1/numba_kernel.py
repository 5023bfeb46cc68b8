"""FlashAttention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 4. Line numbers are the paper's.

There is no dropout, so lines 1, 14, 15 and 18 have nothing to do. dQ is rewritten in memory once per K_j, in float32;
bwd_fa1_round then writes it as elements are stored. The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32, int32

from variants._features.numba_features import NumbaFeatures
from variants._features.numba_limits import RowBlock
from variants._tiles import Tile
from variants._tiles.numba_backward import RowsInMemory, numba_backward
from variants._tiles.numba_tile_copies import copies
from variants._tiles.numba_tiles import (
    ONE,
    THREADS,
    ZERO,
    batch_index,
    block_index,
    head_index,
    numba_tiles,
    thread_index,
)


@functools.cache
def bwd_fa1_kernels(head_dim: int, tile: Tile, dtype: str, features: NumbaFeatures) -> SimpleNamespace:
    """The kernels `bwd_fa1_initialise`, `bwd_fa1` and `bwd_fa1_round`; the tile is turned: Br keys, Bc rows."""
    D = head_dim
    load_tile, _ = copies(D, dtype)
    tiles, backward = numba_tiles(D, tile, features), numba_backward(RowsInMemory(D, D, dtype), tile, features)
    KEYS, ROWS, TQ = backward.KEYS, backward.ROWS, backward.TQ
    TM, TD, P_ROWS, LD, LP = tiles.TM, tiles.TD, tiles.P_ROWS, tiles.LD, tiles.LP
    zero_rows, round_rows, row_dots = backward.zero_rows, backward.round_rows, backward.row_dots
    rows_seeing, in_tile, weights_and_gradients = backward.rows_seeing, backward.in_tile, backward.weights_and_gradients
    multiply_dS_K, gather_dQ, store_dK_dV = backward.multiply_dS_K, backward.gather_dQ, backward.store_dK_dV
    add_P_V = tiles.add_P_V

    # Line 5: dQ = 0 in memory.
    @cuda.jit
    def bwd_fa1_initialise(dQ, q_len):
        first_row = block_index() * ROWS
        zero_rows(dQ[batch_index(), head_index()], first_row, min(ROWS, q_len - first_row))

    # Lines 6 to 25: one block per head of K and V, with the query heads that share it.
    @cuda.jit
    def bwd_fa1(Q, K, V, O, dO, lse, dQ, dK, dV, q_len, kv_len, group, tau, limits):
        K_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        V_tile = cuda.shared.array((KEYS, LD), float32, alignment=16)
        Q_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        O_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)  # O_i, then this K_j's part of dQ_i
        dO_tile = cuda.shared.array((ROWS, LD), float32, alignment=16)
        P_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        dS_tile = cuda.shared.array((P_ROWS, LP), float32, alignment=16)
        lse_tile = cuda.shared.array(ROWS, float32)
        delta_tile = cuda.shared.array(ROWS, float32)
        dK_acc = cuda.local.array((TM, TD), float32)
        dV_acc = cuda.local.array((TM, TD), float32)
        dQ_part = cuda.local.array((TQ, TD), float32)
        bounds = cuda.local.array((2, TM), int32)

        t, batch, kv_head = thread_index(), batch_index(), head_index()
        for first_key in range(0, kv_len, KEYS):
            keys = min(KEYS, kv_len - first_key)
            block = RowBlock(batch, kv_head, first_key // KEYS, (kv_len + KEYS - 1) // KEYS, first_key, keys)

            # Line 7: load K_j, V_j, if any row sees one of the keys, once no thread reads what was gathered there any
            # more.
            cuda.syncthreads()
            seeing = rows_seeing(limits, block, q_len, kv_len)
            if seeing.start_row < seeing.end_row:
                load_tile(K_tile, KEYS, K[batch, kv_head], first_key, keys)
                load_tile(V_tile, KEYS, V[batch, kv_head], first_key, keys)

            # Line 8: dK_j = 0, dV_j = 0, on chip.
            for i in range(TM):
                for j in range(TD):
                    dK_acc[i, j] = ZERO
                    dV_acc[i, j] = ZERO

            # Line 9: for all Q_i with a row that sees some key of the tile, of all heads that share it.
            for member in range(group):
                head = kv_head * group + member
                Q_head, O_head, dO_head = Q[batch, head], O[batch, head], dO[batch, head]
                lse_head, dQ_head = lse[batch, head], dQ[batch, head]
                for first_row in range(seeing.start_row, seeing.end_row, ROWS):
                    # Line 10: load Q_i, O_i, dO_i and the log-sum-exp. After the barrier of line 21 no thread reads the
                    # last ones but the one that overwrites them.
                    rows = min(ROWS, q_len - first_row)
                    load_tile(Q_tile, ROWS, Q_head, first_row, rows)
                    load_tile(O_tile, ROWS, O_head, first_row, rows)
                    load_tile(dO_tile, ROWS, dO_head, first_row, rows)
                    if t < ROWS:
                        lse_tile[t] = lse_head[first_row + t] if t < rows else ZERO
                    cuda.syncthreads()

                    # Line 19: D_i = rowsum(dO_i o O_i).
                    row_dots(delta_tile, dO_tile, O_tile)
                    cuda.syncthreads()

                    # Lines 11 to 13: S = tau Q_i K_j^T, P = exp(S - lse) where seen. Lines 17 and 20: dP = dO_i V_j^T,
                    # dS = P o (dP - D_i).
                    weights_and_gradients(
                        P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, seeing, (), (), (),
                        ONE, (), first_row, rows,
                    )  # fmt: skip
                    cuda.syncthreads()

                    # Line 16: dV_j = dV_j + P^T dO_i. Line 22: dK_j = dK_j + dS^T Q_i.
                    seen = in_tile(bounds, seeing, (), first_row, rows)
                    add_P_V(dV_acc, P_tile, dO_tile, rows, seen)
                    add_P_V(dK_acc, dS_tile, Q_tile, rows, seen)

                    # Line 21: dQ_i = dQ_i + tau dS K_j in memory. Each thread reads only what it wrote itself.
                    multiply_dS_K(dQ_part, dS_tile, K_tile, seeing, seen, keys, first_row, rows)
                    gather_dQ(O_tile, dQ_part, tau)
                    cuda.syncthreads()
                    for start in range(0, rows * D, THREADS):
                        e = start + t
                        if e < rows * D:
                            dQ_head[first_row + e // D, e % D] += O_tile[e // D, e % D]

            # Line 24: write dK_j, dV_j.
            dK_head, dV_head = dK[batch, kv_head], dV[batch, kv_head]
            store_dK_dV(dK_head, dV_head, K_tile, V_tile, dK_acc, dV_acc, tau, ONE, first_key, keys)

    # Line 26: return dQ, as elements are stored.
    @cuda.jit
    def bwd_fa1_round(dQ_running, dQ, q_len):
        batch, head, first_row = batch_index(), head_index(), block_index() * ROWS
        round_rows(dQ[batch, head], dQ_running[batch, head], first_row, min(ROWS, q_len - first_row))

    return SimpleNamespace(bwd_fa1_initialise=bwd_fa1_initialise, bwd_fa1=bwd_fa1, bwd_fa1_round=bwd_fa1_round)
