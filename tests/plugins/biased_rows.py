"""A thread per query row that adds a bias to its scores, and the same with mistakes."""

from __future__ import annotations

import functools

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Variant

CODE = r"""
extern "C" __global__ void biased_rows(
    const float* Q, const float* K, const float* V, const float* bias, float* O, float* lse,
    int heads, int N_q, int N_k, int d, int group, float tau, int causal, int per_head, int per_row, int per_key)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    if (i >= N_q) return;
    const float* q = Q + ((long long)head * N_q + i) * d;
    const float* k = K + (long long)(head / group) * N_k * d;
    const float* v = V + (long long)(head / group) * N_k * d;
    const float* b = bias + HEAD * per_head + i * per_row;
    float* o = O + ((long long)head * N_q + i) * d;
    int keys = causal ? min(N_k, i + N_k - N_q + 1) : N_k;
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < d; ++c) o[c] = 0.0f;
    for (int j = 0; j < keys; ++j) {
        float s = 0.0f;
        for (int c = 0; c < d; ++c) s += q[c] * k[j * d + c];
        s = SCORE(s, b[j * per_key]);
        if (HIDDEN(s)) continue;  // m may still be -inf, and the key's value may be NaN
        float m_new = fmaxf(m, s), alpha = expf(m - m_new), p = expf(s - m_new);
        l = alpha * l + p;
        for (int c = 0; c < d; ++c) o[c] = alpha * o[c] + p * v[j * d + c];
        m = s != s ? s : m_new;
    }
    for (int c = 0; c < d; ++c) o[c] = l == 0.0f ? 0.0f : o[c] / l;
    lse[(long long)head * N_q + i] = m + logf(l);
}
"""

HEAD, SCORE, HIDDEN = "-DHEAD=(head%heads)", "-DSCORE(s,b)=(tau*(s)+(b))", "-DHIDDEN(s)=(s==-1.0f/0.0f)"
WITHOUT = (HEAD, "-DSCORE(s,b)=(tau*(s))", HIDDEN)
KERNELS = {
    "biased-rows": (HEAD, SCORE, HIDDEN),
    "biased-rows-scaled": (HEAD, "-DSCORE(s,b)=(tau*((s)+(b)))", HIDDEN),
    "biased-rows-first-head": ("-DHEAD=0", SCORE, HIDDEN),
    "biased-rows-blind": (HEAD, SCORE, "-DHIDDEN(s)=0"),
}
"""Compiler options by name of the variant; the first one is right."""


def plan(options: tuple[str, ...], problem: Problem) -> Plan:
    if problem.bias is None:
        options = WITHOUT
    kernel = cupy.RawKernel(CODE, "biased_rows", options=options)
    sizes = (problem.heads, problem.q_len, problem.kv_len, problem.head_dim, problem.group)
    scalars = (*map(np.int32, sizes), np.float32(problem.tau), np.int32(problem.causal))
    strides = map(np.int32, problem.bias_strides)
    grid = (-(-problem.q_len // 64), problem.batch * problem.heads)
    bias = "Q" if problem.bias is None else "bias"  # without a bias, nothing is read from it
    launch = Launch(kernel, grid, (64,), ("Q", "K", "V", bias, "O", "lse", *scalars, *strides))
    return Plan((launch,), (Buffer("lse", problem.lse_shape, "float32"),))


def supports(problem: Problem) -> str | None:
    return None if problem.dtype == "float32" else "it is written for float32"


def register(registry):
    numerics = Numerics(functions="accurate", sums="nearest", one_score=True, divides_last=True)
    for name, options in KERNELS.items():
        registry.add(
            Variant(
                name=name,
                plan=functools.partial(plan, options),
                supports=supports,
                takes=("causal", "bias"),
                numerics=numerics,
                idea="one thread per query row, and a bias",
            )
        )
