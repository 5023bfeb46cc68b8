"""Attention whose keys are split over the blocks of a cluster: a plugin for the tests of the command line."""

from __future__ import annotations

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Problem, Variant

ROWS, BLOCKS, MOST_DIMENSIONS = 32, 4, 64
CODE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
extern "C" __global__ void keys_over_a_cluster(
    const float* Q, const float* K, const float* V, float* O, float* lse,
    int N_q, int N_k, int d, int group, float tau, int causal)
{
    __shared__ float part[32][64 + 2];  // of each row: O that is not divided yet, maximum, sum
    auto cluster = cg::this_cluster();
    int rank = cluster.block_rank(), blocks = cluster.num_blocks();
    int i = blockIdx.x * 32 + threadIdx.x, head = blockIdx.y;
    float* mine = part[threadIdx.x];
    float m = __int_as_float(0xff800000), l = 0.0f;
#pragma unroll 1
    for (int c = 0; c < d; ++c) mine[c] = 0.0f;
    if (i < N_q) {
        const float* q = Q + ((long long)head * N_q + i) * d;
        const float* k = K + (long long)(head / group) * N_k * d;
        const float* v = V + (long long)(head / group) * N_k * d;
        int keys = causal ? i + N_k - N_q + 1 : N_k;
#pragma unroll 1
        for (int j = rank; j < keys; j += blocks) {
            float s = 0.0f;
#pragma unroll 1
            for (int c = 0; c < d; ++c) s += q[c] * k[j * d + c];
            s *= tau;
            float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
            l = alpha * l + p;
#pragma unroll 1
            for (int c = 0; c < d; ++c) mine[c] = alpha * mine[c] + p * v[j * d + c];
            m = m_new;
        }
    }
    mine[64] = m;
    mine[65] = l;
    cluster.sync();
    // Each block adds up a part of the dimensions.
    float most = m, total = 0.0f;
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) most = fmaxf(most, cluster.map_shared_rank(mine, b)[64]);
#pragma unroll 1
    for (int b = 0; b < blocks; ++b) {
        float* theirs = cluster.map_shared_rank(mine, b);
        if (theirs[65] > 0.0f) total += expf(theirs[64] - most) * theirs[65];
    }
#pragma unroll 1
    for (int c = rank; c < d && i < N_q; c += blocks) {
        float o = 0.0f;
#pragma unroll 1
        for (int b = 0; b < blocks; ++b) {
            float* theirs = cluster.map_shared_rank(mine, b);
            if (theirs[65] > 0.0f) o += expf(theirs[64] - most) * theirs[c];
        }
        O[((long long)head * N_q + i) * d + c] = total == 0.0f ? 0.0f : o / total;
    }
    if (rank == 0 && i < N_q) lse[(long long)head * N_q + i] = most + logf(total);
    LAST;
}
"""

KERNEL = cupy.RawKernel(CODE.replace("LAST", "cluster.sync()"), "keys_over_a_cluster")
HASTY = cupy.RawKernel(CODE.replace("LAST", ""), "keys_over_a_cluster")
"""Its blocks do not wait until nobody needs their shared memory."""


def planned(kernel: cupy.RawKernel, problem: Problem) -> Plan:
    sizes = (problem.q_len, problem.kv_len, problem.head_dim, problem.group)
    scalars = (*map(np.int32, sizes), np.float32(problem.tau), np.int32(problem.causal))
    grid = (-(-problem.q_len // ROWS), problem.batch * problem.heads, BLOCKS)
    args = ("Q", "K", "V", "O", "lse", *scalars)
    launch = Launch(kernel, grid, (ROWS,), args, cluster=(1, 1, BLOCKS))
    return Plan((launch,), (Buffer("lse", problem.lse_shape, "float32"),))


def supports(problem: Problem) -> str | None:
    if problem.head_dim > MOST_DIMENSIONS:
        return f"only head_dim up to {MOST_DIMENSIONS} is supported"
    return None if problem.dtype == "float32" else "it is written for float32"


def register(registry):
    for name, kernel in (("keys-over-a-cluster", KERNEL), ("hasty-cluster", HASTY)):
        plan = lambda problem, kernel=kernel: planned(kernel, problem)  # noqa: E731
        registry.add(Variant(name=name, plan=plan, supports=supports, idea="keys split over the blocks of a cluster"))
