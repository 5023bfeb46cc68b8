"""A warp per query row: what the algorithms without tiles have in common. Warps share nothing, so none waits for
another.

The CUDA twin of this text is warps.cuh: same names, same order.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, float32

from variants._features.numba_stored import conversions
from variants._tiles.numba_lanes import lane_index
from variants._tiles.numba_tiles import MASK, ZERO, lanes_sum
from variants._warps import TILE

# Keys of one step. Lane t has the score of key t / SHARING of them.
KEYS = TILE.Bc
SHARING = 32 // KEYS


# Whether this lane's key is among the next `keys`.
@cuda.jit(device=True, forceinline=True)
def has_key(keys):
    return lane_index() // SHARING < keys


# Maximum and sum of what the lanes have of their keys; the same in all lanes.
@cuda.jit(device=True, forceinline=True)
def keys_max(x):
    distance = 16
    while distance >= SHARING:
        x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, distance))
        distance //= 2
    return x


@cuda.jit(device=True, forceinline=True)
def keys_sum(x):
    distance = 16
    while distance >= SHARING:
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, distance)
        distance //= 2
    return x


@functools.cache
def numba_warps(head_dim: int, dtype: str) -> SimpleNamespace:
    """Device functions and constants for rows of `head_dim` elements, stored as `dtype`."""
    D = head_dim
    # Elements of a row of Q, K, V or O per lane: lane t has t, t + 32, ... A warp moves a row as one run.
    EACH = -(-D // 32)
    stored, widen, narrow = conversions(dtype)

    # Whether element e of this lane lies in a row.
    @cuda.jit(device=True, forceinline=True)
    def lies_in_row(e):
        return D % 32 == 0 or lane_index() + 32 * e < D

    # `count` rows of memory in float32, all under way before the first is waited for; zeros from row `rows` on, and
    # beyond the end of a row.
    @cuda.jit(device=True, forceinline=True)
    def load_rows(x, count, source, first_row, rows):
        start = (first_row & MASK) * D + lane_index()
        if rows >= count:  # in most cases, and then fewer conditions are evaluated
            for c in range(count):
                for e in range(EACH):
                    x[c, e] = widen(source.flat[start + c * D + 32 * e] if lies_in_row(e) else stored(0))
        else:
            for c in range(count):
                for e in range(EACH):
                    is_there = c < rows and lies_in_row(e)
                    x[c, e] = widen(source.flat[start + c * D + 32 * e] if is_there else stored(0))

    @cuda.jit(device=True, forceinline=True)
    def store_row(target, row, x):
        for e in range(EACH):
            if lies_in_row(e):
                target.flat[(row & MASK) * D + lane_index() + 32 * e] = narrow(x[e])

    # q.k_j for this lane's key. At each exchange a lane gives half of its sums to another one and adds that one's half
    # to those it keeps, until one is left; the rest of that lies in the lanes that share the key.
    @cuda.jit(device=True, forceinline=True)
    def multiply_q_Kt(q, k):
        dot = cuda.local.array(KEYS, float32)
        for c in range(KEYS):
            dot[c] = ZERO
            for e in range(EACH):
                dot[c] += q[0, e] * k[c, e]
        kept = KEYS // 2
        while kept > 0:
            keeps_upper = lane_index() & (kept * SHARING) != 0
            for c in range(kept):
                lower, upper = dot[c], dot[c + kept]
                given = cuda.shfl_xor_sync(0xFFFFFFFF, lower if keeps_upper else upper, kept * SHARING)
                dot[c] = (upper if keeps_upper else lower) + given
            kept //= 2
        return lanes_sum(dot[0], SHARING)

    # o += sum p_j v_j over the keys; p is that of this lane's key.
    @cuda.jit(device=True, forceinline=True)
    def add_p_V(o, p, v):
        for c in range(KEYS):
            p_c = cuda.shfl_sync(0xFFFFFFFF, p, c * SHARING)
            for e in range(EACH):
                o[e] += p_c * v[c, e]

    return SimpleNamespace(
        EACH=EACH, load_rows=load_rows, store_row=store_row, multiply_q_Kt=multiply_q_Kt, add_p_V=add_p_V
    )
