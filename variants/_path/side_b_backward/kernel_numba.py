"""The Numba twin of kernel.cu."""

from __future__ import annotations

import math

from numba import cuda, float32

from variants._path.numba_warp import ALL, warp_sum

D, B = 32, 32
STRIDE = D + 1  # floats from one row of a tile to the next


# Each warp copies one row of an array to the tile; zeros from row `end` on.
@cuda.jit(device=True)
def load_tile(tile, array, first, end):
    warp, lane = cuda.threadIdx.y, cuda.threadIdx.x
    tile[warp, lane] = array[0, 0, first + warp, lane] if first + warp < end else float32(0.0)


# The product of the row that the warp has in x, an element per lane, with row `lane` of a tile.
@cuda.jit(device=True)
def times_tile(x, tile):
    total = float32(0.0)
    for c in range(D):
        total += cuda.shfl_sync(ALL, x, c) * tile[cuda.threadIdx.x, c]
    return total


# The sum of the rows of a tile, row i weighted by the x of lane i: an element per lane.
@cuda.jit(device=True)
def weighted_sum(x, tile):
    total = float32(0.0)
    for i in range(B):
        total += cuda.shfl_sync(ALL, x, i) * tile[i, cuda.threadIdx.x]
    return total


# delta = sum over a row of O dO.
@cuda.jit
def prepare(O, dO, delta):
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = warp_sum(O[0, 0, row, lane] * dO[0, 0, row, lane])
    if lane == 0:
        delta[row] = total


# dK and dV: a warp owns one key; lane i works on row i of each tile of rows.
@cuda.jit
def keys(Q, K, V, lse, dO, delta, dK, dV, rows, n, tau):
    Q_tile = cuda.shared.array((B, STRIDE), float32)
    dO_tile = cuda.shared.array((B, STRIDE), float32)
    lane, key = cuda.threadIdx.x, cuda.blockIdx.x * B + cuda.threadIdx.y
    k = K[0, 0, key, lane] if key < n else float32(0.0)
    v = V[0, 0, key, lane] if key < n else float32(0.0)
    dk, dv = float32(0.0), float32(0.0)
    for first in range(0, rows, B):
        cuda.syncthreads()
        load_tile(Q_tile, Q, first, rows)
        load_tile(dO_tile, dO, first, rows)
        cuda.syncthreads()
        row = min(first + lane, rows - 1)
        p = math.exp(tau * times_tile(k, Q_tile) - lse[0, 0, row])
        if first + lane >= rows:
            p = float32(0.0)
        ds = tau * p * (times_tile(v, dO_tile) - delta[row])
        dv += weighted_sum(p, dO_tile)
        dk += weighted_sum(ds, Q_tile)
    if key < n:
        dK[0, 0, key, lane] = dk
        dV[0, 0, key, lane] = dv


# dQ: a warp owns one row; lane j works on key j of each tile of keys.
@cuda.jit
def rows_of_Q(Q, K, V, lse, dO, delta, dQ, rows, n, tau):
    K_tile = cuda.shared.array((B, STRIDE), float32)
    V_tile = cuda.shared.array((B, STRIDE), float32)
    lane, row = cuda.threadIdx.x, cuda.blockIdx.x * B + cuda.threadIdx.y
    mine = min(row, rows - 1)
    q, g, dq = Q[0, 0, mine, lane], dO[0, 0, mine, lane], float32(0.0)
    lse_of_row, delta_of_row = lse[0, 0, mine], delta[mine]
    for first in range(0, n, B):
        cuda.syncthreads()
        load_tile(K_tile, K, first, n)
        load_tile(V_tile, V, first, n)
        cuda.syncthreads()
        p = math.exp(tau * times_tile(q, K_tile) - lse_of_row)
        ds = tau * p * (times_tile(g, V_tile) - delta_of_row)
        if first + lane >= n:
            ds = float32(0.0)
        dq += weighted_sum(ds, K_tile)
    if row < rows:
        dQ[0, 0, row, lane] = dq


KERNELS = (prepare, keys, rows_of_Q)
