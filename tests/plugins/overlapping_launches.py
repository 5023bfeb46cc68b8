"""Attention in two launches, of which the second may begin before the first has ended; one variant forgets to wait."""

from __future__ import annotations

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Problem, Variant

CODE = r"""
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_launch_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
extern "C" __global__ void scores(
    const float* Q, const float* K, float* S, int N_k, int d, int rows_per_head, float tau) {
    let_next_launch_begin();
    int row = blockIdx.x;
    const float *q = Q + (size_t)row * d, *k = K + (size_t)(row / rows_per_head) * N_k * d;
    for (int j = threadIdx.x; j < N_k; j += blockDim.x) {
        float s = 0.0f;
        for (int c = 0; c < d; ++c) s += q[c] * k[j * d + c];
        S[(size_t)row * N_k + j] = tau * s;
    }
}
extern "C" __global__ void attend(const float* S, const float* V, float* O, int N_k, int d, int rows_per_head) {
    int row = blockIdx.x, c = threadIdx.x;
    const float *s = S + (size_t)row * N_k, *v = V + (size_t)(row / rows_per_head) * N_k * d;
    float v_next = v[c];  // V is an input, so this need not wait
    WAIT;
    float m = __int_as_float(0xff800000), l = 0.0f, o = 0.0f;
    for (int j = 0; j < N_k; ++j) {
        float v_j = v_next, s_j = s[j];
        float m_new = fmaxf(m, s_j), alpha = expf(m - m_new), p = expf(s_j - m_new);
        if (j + 1 < N_k) v_next = v[(j + 1) * d + c];
        l = alpha * l + p;
        o = alpha * o + p * v_j;
        m = m_new;
    }
    O[(size_t)row * d + c] = o / l;
}
"""
WAITS = {"begins-early": "wait_for_previous_launch()", "forgets-to-wait": "(void)0"}


def register(registry):
    for name, wait in WAITS.items():
        registry.add(Variant(name=name, plan=_planner(CODE.replace("WAIT;", f"{wait};")), supports=supports))


def _planner(code: str):
    scores, attend = (cupy.RawKernel(code, name) for name in ("scores", "attend"))

    def plan(p: Problem) -> Plan:
        rows = p.batch * p.heads * p.q_len
        sizes = np.int32(p.kv_len), np.int32(p.head_dim), np.int32(p.group * p.q_len)
        return Plan(
            (
                Launch(scores, (rows,), (64,), ("Q", "K", "S", *sizes, np.float32(p.tau))),
                Launch(attend, (rows,), (p.head_dim,), ("S", "V", "O", *sizes), overlaps_previous=True),
            ),
            (Buffer("S", (rows, p.kv_len), "float32"),),
        )

    return plan


def supports(p: Problem) -> str | None:
    return "it is written for float32 and without a mask" if p.dtype != "float32" or p.causal else None
