"""The simplest right attention kernel: a plugin for the tests of the command line."""

from __future__ import annotations

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Problem, Variant

CODE = r"""
extern "C" __global__ void one_thread_per_row(
    const float* Q, const float* K, const float* V, float* O, float* lse,
    int N_q, int N_k, int d, int group, float tau, int causal)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (i >= N_q) return;
    const float* q = Q + ((long long)head * N_q + i) * d;
    const float* k = K + (long long)(head / group) * N_k * d;
    const float* v = V + (long long)(head / group) * N_k * d;
    float* o = O + ((long long)head * N_q + i) * d;
    int keys = causal ? i + N_k - N_q + 1 : N_k;
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < d; ++c) o[c] = 0.0f;
    for (int j = 0; j < keys; ++j) {
        float s = 0.0f;
        for (int c = 0; c < d; ++c) s += q[c] * k[j * d + c];
        s *= tau;
        float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
        l = alpha * l + p;
        for (int c = 0; c < d; ++c) o[c] = alpha * o[c] + p * v[j * d + c];
        m = m_new;
    }
    for (int c = 0; c < d; ++c) o[c] = l == 0.0f ? 0.0f : o[c] / l;
    lse[(long long)head * N_q + i] = m + logf(l);
}
"""

KERNEL = cupy.RawKernel(CODE, "one_thread_per_row")


def plan(problem: Problem) -> Plan:
    sizes = (problem.q_len, problem.kv_len, problem.head_dim, problem.group)
    scalars = (*map(np.int32, sizes), np.float32(problem.tau), np.int32(problem.causal))
    grid = (-(-problem.q_len // 64), problem.batch * problem.heads)
    launch = Launch(KERNEL, grid, (64,), ("Q", "K", "V", "O", "lse", *scalars))
    return Plan((launch,), (Buffer("lse", problem.lse_shape, "float32"),))


def supports(problem: Problem) -> str | None:
    return None if problem.dtype == "float32" else "it is written for float32"


def register(registry):
    registry.add(Variant(name="one-thread-per-row", plan=plan, supports=supports, idea="one thread per query row"))
