"""The gradient of sinks. The CUDA twin is sink_gradient.cu."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, float32
from numba.cuda import libdevice

from variants._features.numba_scores import MINUS_INFINITY

ZERO = float32(0)


@functools.cache
def sink_gradient_kernel(threads: int) -> Any:
    """The kernel for blocks of so many threads."""
    THREADS, WARPS = threads, threads // 32

    # The sum of -exp(sink - L_i) D_i over the rows of a head, in all sequences: a block has a head.
    @cuda.jit(launch_bounds=THREADS)
    def sink_gradient(sinks, lse, delta, dsinks, batch, q_len):
        sums = cuda.shared.array(WARPS, float32)
        head, t = cuda.blockIdx.x, cuda.threadIdx.x
        sink = sinks[head]
        total = ZERO
        for b in range(batch):
            for row in range(t, q_len, THREADS):
                # A row that sees no key has an L_i of -infinity only if the head has no sink: P = 0.
                L = lse[b, head, row]
                total -= libdevice.fast_expf(sink - (ZERO if L == MINUS_INFINITY else L)) * delta[b, head, row]
        apart = 16
        while apart > 0:
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, apart)
            apart //= 2
        if t % 32 == 0:
            sums[t // 32] = total
        cuda.syncthreads()
        if t == 0:
            for warp in range(1, WARPS):
                total += sums[warp]
            dsinks[head] = total

    return sink_gradient
