"""One thread per row, a right answer, and a store into Q: in one variant it changes Q, in the other it does not."""

from pathlib import Path

import cupy
import numpy as np

from harness import Launch, Plan, Variant

SOURCE = r"""
extern "C" __global__ void NAME(float* Q, const float* K, const float* V, float* O, int q_len, int kv_len, int d,
                                int group, float tau) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= q_len) return;
    size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y, kv_head = head / group;
    float* q = Q + (head * q_len + i) * d;
    float* o = O + (head * q_len + i) * d;
    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int c = 0; c < d; ++c) o[c] = 0.0f;
    for (int c = 0; c < d; ++c) q[c] *= FACTOR;
    for (int j = 0; j < kv_len; ++j) {
        const float* k = K + (kv_head * kv_len + j) * d;
        const float* v = V + (kv_head * kv_len + j) * d;
        float s = 0.0f;
        for (int c = 0; c < d; ++c) s += q[c] * k[c];
        s *= tau / FACTOR;
        float m_new = fmaxf(m, s), correction = expf(m - m_new), p = expf(s - m_new);
        l = l * correction + p;
        for (int c = 0; c < d; ++c) o[c] = o[c] * correction + p * v[c];
        m = m_new;
    }
    for (int c = 0; c < d && l > 0.0f; ++c) o[c] /= l;
}
"""
LINE = 1 + Path(__file__).read_text().split("q[c] *=")[0].count("\n")
"""Of this file, on which the store into Q stands."""
FACTORS = {"scales-q": "tau", "stores-q-again": "1.0f"}


def register(registry):
    for name, factor in FACTORS.items():
        registry.add(Variant(name=name, plan=_planner(name, factor), supports=_supports, takes=()))


def _planner(name, factor):
    entry = name.replace("-", "_")
    # A volatile access is one that no compiler leaves out.
    source = SOURCE.replace("NAME", entry).replace("FACTOR", factor).replace("q[c] *=", "((volatile float*)q)[c] *=")
    kernel = cupy.RawKernel(source, entry)

    def plan(p):
        sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.group)]
        args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau))
        return Plan((Launch(kernel, (-(-p.q_len // 64), p.heads, p.batch), (64,), args),))

    return plan


def _supports(p):
    return None if p.dtype == "float32" else "these kernels know only float32"
