"""Variants whose answer is right in the default schedule, or whose mistake no answer shows."""

import cupy
import numpy as np

from harness import Buffer, Launch, Plan, Variant

SOURCE = r"""
extern "C" __global__ void warps_in_order(const float* Q, float* O, int n) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = 0.0f;
    __syncthreads();
    if (t < 32) s[t] = Q[t];
    else O[t] = s[t - 32];
    __syncthreads();
    if (t < 32) O[t] = s[t];
    for (int i = t + 64; i < n; i += 64) O[i] = Q[i];
}
extern "C" __global__ void blocks_in_order(const float* Q, float* S, float* O, int n) {
    if (blockIdx.x == 0)
        S[threadIdx.x] = Q[threadIdx.x];
    else
        for (int i = threadIdx.x; i < n; i += 64) O[i] = S[i % 64] + Q[i];
}
extern "C" __global__ void short_output(const float* Q, float* O, int n) {
    for (int i = threadIdx.x; i < n - 3; i += 64) O[i] = Q[i];
}
extern "C" __global__ void adds_up(const float* Q, float* O, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) atomicExch(&O[i], Q[i]);
}
extern "C" __global__ void first_come(const float* Q, unsigned* S, float* O, int n) {
    int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) O[i] = Q[i];
    if (threadIdx.x == 0) atomicExch((unsigned*)&O[0], __float_as_uint(Q[0]) + blockIdx.x);
}
extern "C" __global__ void unwritten_then_stray(const float* Q, float* S, float* O, int n) {
    float x = S[threadIdx.x];
    O[threadIdx.x + (x == x ? 0 : n)] = x;
}
extern "C" __global__ void one_score_too_many(const float* Q, float* O, int n) {
    __shared__ float scores[64], sums[64];
    int t = threadIdx.x;
    for (int i = t; i < 65; i += 64) scores[i] = Q[i];
    __syncthreads();
    sums[t] = scores[t];
    for (int i = t; i < n; i += 64) O[i] = i < 64 ? sums[t] : Q[i];
}
"""
KERNELS = {
    "warps-in-order": (1, False, True),
    "blocks-in-order": (2, True, True),
    "short-output": (1, False, True),
    "adds-up": (8, False, True),
    "first-come": (8, True, True),
    "first-come-and-says-so": (8, True, False),
    "unwritten-then-stray": (1, True, True),
    "one-score-too-many": (1, False, True),
}
"""Variant -> blocks, whether it has scratch, whether it claims to be deterministic."""


def register(registry):
    for name, (blocks, scratch, deterministic) in KERNELS.items():
        plan = _planner(name, blocks, scratch)
        registry.add(Variant(name=name, plan=plan, supports=_float32_alone, deterministic=deterministic))


def _float32_alone(p):
    return None if p.dtype == "float32" else "it is written for float32"


def _planner(name, blocks, scratch):
    kernel = cupy.RawKernel(SOURCE, name.removesuffix("-and-says-so").replace("-", "_"))

    def plan(p):
        args = ("Q", *(["S"] if scratch else []), "O", np.int32(p.batch * p.heads * p.q_len * p.head_dim))
        return Plan((Launch(kernel, (blocks,), (64,), args),), (Buffer("S", (64,), "float32"),) if scratch else ())

    return plan
