"""What warps that share a row give each other, in a block or in the blocks of a cluster (Hopper).

The CUDA twin is exchange.cuh.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import cuda, float32, int32, uint32

from variants._mma.numba_mma import exp2_approx, lane_index, thread_index
from variants._rows.numba_rows import MINUS_INFINITY, ZERO, exp_below
from variants.softmax.on_chip.numba_clusters import cluster_arrive, cluster_wait, store_pair
from variants.softmax.on_chip.numba_kernel import warp_max, warp_sum
from variants.softmax.pipelined import WARP

LOG2_E = np.float32(1.44269504088896340736)


@cuda.jit(device=True, forceinline=True)
def warp_index():
    return int32(uint32(thread_index()) >> 5)


# exp(x - m) of an element, and 0 for x = -inf. Where quotients are rounded to 16 bits, ex2.approx is close enough.
@functools.cache
def weights_of(dtype: str) -> Callable:
    """A device function for elements stored as `dtype`."""
    if dtype == "float32":
        return exp_below

    @cuda.jit(device=True, forceinline=True)
    def weight(x, m):
        return exp2_approx(float32((x - (ZERO if m == MINUS_INFINITY else m)) * LOG2_E))

    return weight


@functools.cache
def exchange_of(THREADS: int, CLUSTER: int) -> tuple[Callable, Callable, Callable]:
    """Device functions for blocks of so many threads, of which so many share a row."""
    PAIRS = CLUSTER * THREADS // WARP

    # Until all threads of the cluster have come.
    @cuda.jit(device=True, forceinline=True)
    def cluster_sync():
        if CLUSTER > 1:
            cluster_arrive()
            cluster_wait()
        else:
            cuda.syncthreads()

    # The calling lane's values, to row `number` of `pairs` in block `lane` of the cluster.
    @cuda.jit(device=True, forceinline=True)
    def give_to_blocks(pairs, number, first, second):
        lane = lane_index()
        if CLUSTER > 1:
            if lane < CLUSTER:
                store_pair(pairs, number, lane, first, second)
        elif lane == 0:
            pairs[number, 0] = first
            pairs[number, 1] = second

    # Equation 4: m and d of the row from those of its warps.
    @cuda.jit(device=True, forceinline=True)
    def combine(pairs, turn):
        first = int32(turn * PAIRS)
        m = MINUS_INFINITY
        for warp in range(lane_index(), PAIRS, WARP):
            m = max(m, pairs[first + warp, 0])
        m = warp_max(m)
        d = ZERO
        for warp in range(lane_index(), PAIRS, WARP):
            d += pairs[first + warp, 1] * exp_below(pairs[first + warp, 0], m)
        return m, warp_sum(d)

    return cluster_sync, give_to_blocks, combine
