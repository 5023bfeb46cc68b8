"""The Numba twin of warp.cuh."""

from __future__ import annotations

from numba import cuda

ALL = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_sum(x):
    bit = 16
    while bit > 0:
        x += cuda.shfl_xor_sync(ALL, x, bit)
        bit //= 2
    return x


@cuda.jit(device=True)
def warp_max(x):
    bit = 16
    while bit > 0:
        x = max(x, cuda.shfl_xor_sync(ALL, x, bit))
        bit //= 2
    return x
