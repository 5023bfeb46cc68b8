"""Puts attention of two sets of keys together, for a warp per row. The CUDA twin is kernel.cu.

Each counts by the weight of its keys, exp(lse). Below are the letters of README.md: O_a and lse_a are the device's own,
O_b and lse_b have arrived.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from variants._features.numba_stored import conversions

LANES = 32
ZERO, MINUS_INFINITY = float32(0), np.float32(-np.inf)


@functools.cache
def tree_merge_kernel(head_dim: int, own: str, arrived: str, merged: str) -> Any:
    """The kernel for rows of so many elements of these dtypes."""
    D = head_dim
    own_as_float, arrived_as_float, put = conversions(own)[1], conversions(arrived)[1], conversions(merged)[2]

    @cuda.jit
    def tree_merge(O_a, lse_a, O_b, lse_b, O, lse, rows):
        row, lane = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y, cuda.threadIdx.x
        if row >= rows:
            return
        q_len = lse_a.shape[2]
        i, of_head = row % q_len, row // q_len
        head, batch = of_head % lse_a.shape[1], of_head // lse_a.shape[1]

        # m = max(lse_a, lse_b); keys of which the row sees none have lse = -inf and weight 0, and O is not read.
        a, b = lse_a[batch, head, i], lse_b[batch, head, i]
        m = max(a, b)
        sees_a, sees_b = a != MINUS_INFINITY, b != MINUS_INFINITY
        sees_any = sees_a or sees_b
        w_a = libdevice.expf(a - m) if sees_a else ZERO
        w_b = libdevice.expf(b - m) if sees_b else ZERO
        l = w_a + w_b
        share_a = w_a / l if sees_any else ZERO
        share_b = w_b / l if sees_any else ZERO

        # lse = m + log(w_a + w_b), perhaps in the place of lse_a
        cuda.syncwarp()  # all lanes have read lse_a
        if lane == 0:
            lse[batch, head, i] = m + libdevice.logf(l) if sees_any else MINUS_INFINITY

        # O = (w_a O_a + w_b O_b) / (w_a + w_b), perhaps in the place of O_a
        for x in range(lane, D, LANES):
            o = share_a * own_as_float(O_a[batch, head, i, x]) if sees_a else ZERO
            if sees_b:
                o = libdevice.fmaf(share_b, arrived_as_float(O_b[batch, head, i, x]), o)
            O[batch, head, i, x] = put(o)

    return tree_merge
