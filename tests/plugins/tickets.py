"""Blocks that draw their tiles from a counter of the module: one variant leaves it as it was, one forgets to."""

import cupy
import numpy as np

from harness import Launch, Plan, Variant

SOURCE = r"""
__device__ unsigned next_tile;
__device__ unsigned finished;

extern "C" __global__ void one_key_by_tickets(const float* V, float* O, int n, int forgets) {
    __shared__ unsigned tile;
    if (threadIdx.x == 0) tile = atomicAdd(&next_tile, 1);
    __syncthreads();
    unsigned i = 32 * tile + threadIdx.x;
    if (i < n) O[i] = V[i];
    __threadfence();
    if (threadIdx.x == 0 && !forgets && atomicAdd(&finished, 1) == gridDim.x - 1) {
        atomicExch(&next_tile, 0);
        atomicExch(&finished, 0);
    }
}
"""
KERNEL = cupy.RawKernel(SOURCE, "one_key_by_tickets")


def register(registry):
    for name, forgets in (("tickets", 0), ("tickets-forgotten", 1)):
        registry.add(Variant(name=name, plan=_planner(forgets)))


def _planner(forgets):
    def plan(p):
        n = p.batch * p.heads * p.head_dim
        return Plan((Launch(KERNEL, (-(-n // 32),), (32,), ("V", "O", np.int32(n), np.int32(forgets))),))

    return plan
