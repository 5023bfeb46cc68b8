"""Attention with the softmax of the definition, without a maximum: Rabe and Staats 2021, arXiv 2112.05682, section 2,
with their v* and s* as o and l, KEYS keys at a step.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32
from numba.cuda import libdevice

from variants._features.numba_features import NumbaFeatures
from variants._tiles.numba_grids import kv_head_index
from variants._tiles.numba_lanes import warp_index
from variants._tiles.numba_tiles import ONE, THREADS, ZERO, batch_index, block_index, head_index
from variants._warps import TILE
from variants._warps.numba_warps import KEYS, has_key, keys_sum, numba_warps


@functools.cache
def native_kernel(head_dim: int, dtype: str, features: NumbaFeatures) -> Any:
    """The kernel for these compile-time parameters."""
    BR = TILE.Br
    warps = numba_warps(head_dim, dtype)
    EACH, load_rows, store_row = warps.EACH, warps.load_rows, warps.store_row
    multiply_q_Kt, add_p_V = warps.multiply_q_Kt, warps.add_p_V
    limits_of_sequence, first, end = features.limits.of_sequence, features.limits.first, features.limits.end

    @cuda.jit(launch_bounds=THREADS)
    def native(Q, K, V, O, q_len, kv_len, group, tau, limits):
        q = cuda.local.array((1, EACH), float32)
        k = cuda.local.array((KEYS, EACH), float32)
        v = cuda.local.array((KEYS, EACH), float32)
        o = cuda.local.array(EACH, float32)

        # The warp owns one row of Q and of O.
        row = block_index() * BR + warp_index()
        if row >= q_len:
            return
        K_head = K[batch_index(), kv_head_index(group)]
        V_head = V[batch_index(), kv_head_index(group)]
        run = limits_of_sequence(limits, batch_index(), q_len, kv_len)
        first_key, end_key = first(run, row), end(run, row)
        load_rows(q, 1, Q[batch_index(), head_index()], row, 1 if first_key < end_key else 0)  # if it sees any key

        # o = 0, l = 0. Each lane has what its own keys add to l.
        l = ZERO
        for e in range(EACH):
            o[e] = ZERO

        # All keys that the row sees.
        for key in range(first_key, end_key, KEYS):
            # p_j = exp(tau q.k_j), and 0 beyond the last key.
            load_rows(k, KEYS, K_head, key, end_key - key)
            dot = multiply_q_Kt(q, k)
            p = libdevice.fast_expf(tau * dot) if has_key(end_key - key) else ZERO

            # l = l + p_j, o = o + p_j v_j.
            l += p
            load_rows(v, KEYS, V_head, key, end_key - key)
            add_p_V(o, p, v)

        # O = o / l. A row that sees nothing has l = 0: its O stays 0.
        l = keys_sum(l)
        inverse = ZERO if l == ZERO else ONE / l
        for e in range(EACH):
            o[e] *= inverse
        store_row(O[batch_index(), head_index()], row, o)

    return native
