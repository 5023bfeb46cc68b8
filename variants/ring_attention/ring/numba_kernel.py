"""Puts attention of one block of keys and the sum over the blocks before it together. The CUDA twin is kernel.cu.

A warp has a row; each of the two counts by the weight of its keys, exp(lse). Below are the letters of README.md: O_s
and lse_s are the sum, O_t and lse_t the block.
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
def ring_merge_kernel(head_dim: int, dtype: str) -> Any:
    """The kernel for rows of so many elements."""
    D = head_dim
    _, widen, narrow = conversions(dtype)

    @cuda.jit
    def ring_merge(O_t, lse_t, O_s, lse_s, O, lse, rows, is_first, is_last):
        row, lane = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y, cuda.threadIdx.x
        if row >= rows:
            return
        q_len = lse_t.shape[2]
        i, of_head = row % q_len, row // q_len
        head, batch = of_head % lse_t.shape[1], of_head // lse_t.shape[1]

        # m = max(lse_s, lse_t); a block of which the row sees no key has lse_t = -inf, and weight 0.
        of_block = lse_t[batch, head, i]
        of_sum = MINUS_INFINITY if is_first else lse_s[batch, head, i]
        m = max(of_sum, of_block)
        sees_block, sees_sum = of_block != MINUS_INFINITY, of_sum != MINUS_INFINITY
        w_t = libdevice.expf(of_block - m) if sees_block else ZERO
        w_s = libdevice.expf(of_sum - m) if sees_sum else ZERO
        l = w_s + w_t
        sees_any = sees_block or sees_sum

        # lse_s = m + log(w_s + w_t)
        together = m + libdevice.logf(l) if sees_any else MINUS_INFINITY
        share_t = w_t / l if sees_any else ZERO
        share_s = w_s / l if sees_any else ZERO
        cuda.syncwarp()  # all lanes have read lse_s
        if lane == 0:
            if is_last:
                lse[batch, head, i] = together
            else:
                lse_s[batch, head, i] = together

        # O_s = (w_s O_s + w_t O_t) / (w_s + w_t), rounded to the problem's dtype behind the last block. O of no keys is
        # not read.
        for x in range(lane, D, LANES):
            o = share_t * widen(O_t[batch, head, i, x]) if sees_block else ZERO
            before = O_s[batch, head, i, x] if sees_sum else ZERO
            o = libdevice.fmaf(share_s, before, o)
            if is_last:
                O[batch, head, i, x] = narrow(o)
            else:
                O_s[batch, head, i, x] = o

    return ring_merge
