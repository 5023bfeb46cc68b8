"""One thread per row, which declares no numerics: right, or with a mistake no larger than what others may do."""

import cupy
import numpy as np

from harness import Launch, Plan, Variant

SOURCE = r"""
#if SIXTEEN
typedef unsigned short T;  // bfloat16
__device__ float load(T x) { return __uint_as_float((unsigned)x << 16); }
__device__ T store(float x) { unsigned u = __float_as_uint(x); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
#else
typedef float T;
__device__ float load(T x) { return x; }
__device__ T store(float x) { return x; }
#endif
extern "C" __global__ void k(const T* Q, const T* K, const T* V, T* O, int q_len, int kv_len, float tau) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= q_len) return;
    Q += (blockIdx.y * q_len + i) * D, O += (blockIdx.y * q_len + i) * D;
    K += blockIdx.y * kv_len * D, V += blockIdx.y * kv_len * D;
    float m = __int_as_float(0xff800000), l = 0.0f, o[D] = {};
    for (int j = 0; j < kv_len; ++j) {
        float s = 0.0f;
        for (int c = 0; c < D; ++c) s += load(Q[c]) * load(K[j * D + c]);
        s *= tau;
        float m_new = fmaxf(m, s), correction = expf(m - m_new), p = expf(s - m_new);
        l = l * correction + p;
        WEIGHT
        for (int c = 0; c < D; ++c) o[c] = o[c] * correction + p * load(V[j * D + c]);
        m = m_new;
    }
    for (int c = 0; c < D; ++c) O[c] = store(o[c] / (l + EPSILON));
}
"""
MISTAKES = {
    "says-nothing": ("", "0.0f"),
    "adds-epsilon": ("", "1e-6f"),
    "truncates-weights": ("p = __uint_as_float(__float_as_uint(p) & 0xffff0000u);", "0.0f"),
}
"""Variant -> what is done to a weight, and what is added to the denominator."""


def register(registry):
    for name, mistake in MISTAKES.items():
        registry.add(Variant(name=name, plan=_planner(*mistake), supports=_supports, takes=()))


def _planner(weight, epsilon):
    def plan(p):
        source = f"#define SIXTEEN {int(p.dtype == 'bfloat16')}\n#define D {p.head_dim}\n" + SOURCE
        kernel = cupy.RawKernel(source.replace("WEIGHT", weight).replace("EPSILON", epsilon), "k")
        args = ("Q", "K", "V", "O", np.int32(p.q_len), np.int32(p.kv_len), np.float32(p.tau))
        return Plan((Launch(kernel, (-(-p.q_len // 32), p.heads), (32,), args),))

    return plan


def _supports(p):
    if p.dtype == "float16" or p.group > 1 or p.batch > 1:
        return "these kernels know one batch entry, all heads alike, in float32 or bfloat16"
    return None
