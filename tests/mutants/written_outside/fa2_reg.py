"""FlashAttention-2, a thread per row with q and O in registers, head_dim as a compile-time constant."""
import cupy
import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant

CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 64
#define BC 16
extern "C" __global__ void fa2_reg(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V, float* __restrict__ O,
                        float* __restrict__ L, int H, int HK, int N, int M, int d, float tau, int causal)
{
    __shared__ float ks[BC][D], vs[BC][D];
    int bh = blockIdx.y, b = bh / H, h = bh % H, kvh = h * HK / H;
    int i = blockIdx.x * BR + threadIdx.x;
    bool live = i < N;
    float q[D], o[D];
    #pragma unroll
    for (int c = 0; c < D; ++c) {
        q[c] = live && c < d ? Q[((size_t)bh * N + i) * d + c] * (tau * 1.4426950408889634f) : 0.f;
        o[c] = 0.f;
    }
    const float* k = K + ((size_t)b * HK + kvh) * M * d;
    const float* v = V + ((size_t)b * HK + kvh) * M * d;
    int last = min(N, (int)(blockIdx.x + 1) * BR);
    int tiles_end = causal ? min(M, last + M - N) : M;
    int end = causal ? i + M - N + 1 : M;
    float m = -INF, l = 0.f;
    for (int j0 = 0; j0 < tiles_end; j0 += BC) {
        for (int t = threadIdx.x; t < BC * D; t += BR) {
            int r = t / D, c = t % D;
            bool in = j0 + r < M && c < d;
            ks[r][c] = in ? k[(size_t)(j0 + r) * d + c] : 0.f;
            vs[r][c] = in ? v[(size_t)(j0 + r) * d + c] : 0.f;
        }
        __syncthreads();
        float s[BC], mx = m;
        #pragma unroll
        for (int j = 0; j < BC; ++j) {
            s[j] = 0.f;
            #pragma unroll
            for (int c = 0; c < D; ++c) s[j] += q[c] * ks[j][c];
            if (j0 + j >= min(end, M)) s[j] = -INF;
            mx = fmaxf(mx, s[j]);
        }
        if (j0 < end) {
            float a = exp2f(m - mx);
            l *= a;
            #pragma unroll
            for (int c = 0; c < D; ++c) o[c] *= a;
            #pragma unroll
            for (int j = 0; j < BC; ++j) {
                if (j0 + j < min(end, M)) {
                    float p = exp2f(s[j] - mx);
                    l += p;
                    #pragma unroll
                    for (int c = 0; c < D; ++c) o[c] += p * vs[j][c];
                }
            }
            m = mx;
        }
        __syncthreads();
    }
    if (live) {
        float inv = end > 0 ? 1.f / l : 0.f;
        #pragma unroll
        for (int c = 0; c < D; ++c)
            if (c < d) O[((size_t)bh * N + i) * d + c] = o[c] * inv;
        L[(size_t)bh * N + i] = end > 0 ? m * 0.6931471805599453f + logf(l) : -INF;
    }
}
"""


KERNELS = {D: cupy.RawKernel(f"#define D {D}\n" + CODE, "fa2_reg") for D in (32, 64, 96)}


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(p.causal))
    D = 32 if p.head_dim <= 32 else 64 if p.head_dim <= 64 else 96
    launch = Launch(KERNELS[D], (-(-p.q_len // 64), p.heads * p.batch), (64,), args)
    return Plan((launch,), (Buffer("lse", (p.batch, p.heads, p.q_len), "float32"),))


def supports(p):
    if p.dtype != "float32" or p.head_dim > 96:
        return "float32, head_dim up to 96"
    return "grid too large" if p.heads * p.batch > 65535 else None


def register(registry):
    registry.add(Variant(name="u-fa2-reg", plan=plan, supports=supports, idea="FA2, thread per row, registers",
                         numerics=Numerics(scores="float32", weights="float32", sums="nearest")))
