"""A thread for each row, whose q and O are arrays indexed by a variable: they are in local memory."""

import cupy
import numpy as np

from harness import Launch, Plan, Variant

BR, BC = 64, 32
KERNEL = cupy.RawKernel(
    r"""
extern "C" __global__ void tiled(const float* Q, const float* K, const float* V, float* O, int N, int M, int d,
                                 int group, float tau) {
    extern __shared__ float smem[];
    float *Ks = smem, *Vs = smem + 32 * d;
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    long long head = blockIdx.y;
    const float *k = K + head / group * M * d, *v = V + head / group * M * d;
    float q[128], acc[128];
    for (int c = 0; c < d; ++c) { q[c] = i < N ? Q[(head * N + i) * d + c] : 0.f; acc[c] = 0.f; }  // first
    float m = __int_as_float(0xff800000), l = 0.f;
    for (int j0 = 0; j0 < M; j0 += 32) {
        int n = min(32, M - j0);
        __syncthreads();
        for (int x = t; x < n * d; x += blockDim.x) { Ks[x] = k[j0 * d + x]; Vs[x] = v[j0 * d + x]; }
        __syncthreads();
        for (int j = 0; j < n; ++j) {
            float s = 0.f;
            for (int c = 0; c < d; ++c) s += q[c] * Ks[j * d + c];  // scores
            s *= tau;
            float mn = fmaxf(m, s), a = expf(m - mn), p = expf(s - mn);
            l = l * a + p;
            for (int c = 0; c < d; ++c) acc[c] = acc[c] * a + p * Vs[j * d + c];  // values
            m = mn;
        }
    }
    if (i < N) for (int c = 0; c < d; ++c) O[(head * N + i) * d + c] = acc[c] / l;
}
""",
    "tiled",
)


def plan(p):
    args = ("Q", "K", "V", "O", *map(np.int32, (p.q_len, p.kv_len, p.head_dim, p.group)), np.float32(p.tau))
    return Plan((Launch(KERNEL, (-(-p.q_len // BR), p.batch * p.heads), (BR,), args, 2 * BC * p.head_dim * 4),))


def supports(p):
    return None if p.dtype == "float32" and p.head_dim <= 128 else "only float32 with head_dim up to 128 is supported"


def register(registry):
    registry.add(Variant(name="tiled", plan=plan, supports=supports))
