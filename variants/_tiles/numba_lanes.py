"""Warps of a thread block and lanes of a warp. The CUDA twin is lanes.cuh."""

from __future__ import annotations

from numba import cuda

from variants._tiles.numba_tiles import THREADS, thread_index

WARPS = THREADS // 32


@cuda.jit(device=True, forceinline=True)
def warp_index():
    return thread_index() // 32


@cuda.jit(device=True, forceinline=True)
def lane_index():
    return thread_index() % 32
