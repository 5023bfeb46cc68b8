"""Tiles in shared memory, copied as float4 where they are aligned, with a scalar tail. float32."""
import cupy
import numpy as np
from harness import Launch, Numerics, Plan, Variant

CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 32
#define BC 32
#define NT 128
#define MAXC 32
__device__ __forceinline__ void copy_tile(float* dst, const float* src, int n)
{
    if (((unsigned long long)src & 15) == 0) {
        int n4 = n / 4;
        for (int t = threadIdx.x; t < n4; t += NT)
            ((float4*)dst)[t] = ((const float4*)src)[t];
        for (int t = n4 * 4 + threadIdx.x; t < n; t += NT) dst[t] = src[t];
    } else {
        for (int t = threadIdx.x; t < n; t += NT) dst[t] = src[t];
    }
}
extern "C" __global__ void vec4(const float* Q, const float* K, const float* V, float* O,
                                int H, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float4 smem4[];
    float* qs = (float*)smem4;
    int stride = (BR * d + 3) / 4 * 4;
    float* ks = qs + stride;
    float* vs = ks + stride;
    float* ss = vs + stride;
    int row = threadIdx.x / 4, part = threadIdx.x % 4;
    int i0 = blockIdx.x * BR, h = blockIdx.y, b = blockIdx.z;
    const float* q = Q + ((long long)(b * H + h) * N + i0) * d;
    long long kv = (long long)(b * HK + h / (H / HK)) * M;
    int rows = min(BR, N - i0);
    copy_tile(qs, q, rows * d);
    float acc[MAXC];
    for (int t = 0; t < MAXC; ++t) acc[t] = 0.f;
    float m = -INF, l = 0.f;
    int i = i0 + row;
    int end = causal ? min(M, i + M - N + 1) : M;
    int last = causal ? min(M, i0 + rows + M - N) : M;
    for (int j0 = 0; j0 < last; j0 += BC) {
        int cols = min(BC, M - j0);
        __syncthreads();
        copy_tile(ks, K + (kv + j0) * d, cols * d);
        copy_tile(vs, V + (kv + j0) * d, cols * d);
        __syncthreads();
        if (row < rows) {
            for (int j = part; j < BC; j += 4) {
                float s = -INF;
                if (j0 + j < end) {
                    s = 0.f;
                    if (d % 4 == 0) {
                        const float4* a = (const float4*)(qs + row * d);
                        const float4* c = (const float4*)(ks + j * d);
                        for (int t = 0; t < d / 4; ++t)
                            s += a[t].x * c[t].x + a[t].y * c[t].y + a[t].z * c[t].z + a[t].w * c[t].w;
                    } else {
                        for (int t = 0; t < d; ++t) s += qs[row * d + t] * ks[j * d + t];
                    }
                    s *= tau;
                }
                ss[row * BC + j] = s;
            }
        }
        __syncthreads();
        if (row < rows && j0 < end) {
            float mt = m;
            for (int j = 0; j < BC; ++j) mt = fmaxf(mt, ss[row * BC + j]);
            float a = __expf(m - mt);
            l *= a;
            #pragma unroll
            for (int t = 0; t < MAXC; ++t) acc[t] *= a;
            for (int j = 0; j < BC && j0 + j < end; ++j) {
                float p = __expf(ss[row * BC + j] - mt);
                l += p;
                #pragma unroll
                for (int t = 0; t < MAXC; ++t)
                    if (part + 4 * t < d) acc[t] += p * vs[j * d + part + 4 * t];
            }
            m = mt;
        }
    }
    if (row < rows) {
        float* o = O + ((long long)(b * H + h) * N + i) * d;
        float inv = end > 0 ? 1.f / l : 0.f;
        #pragma unroll
        for (int t = 0; t < MAXC; ++t)
            if (part + 4 * t < d) o[part + 4 * t] = acc[t] * inv;
    }
}
"""
KERNEL = cupy.RawKernel(CODE, "vec4")


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(p.causal))
    shared = 4 * (3 * (-(-32 * p.head_dim // 4) * 4) + 32 * 32)
    return Plan((Launch(KERNEL, (-(-p.q_len // 32), p.heads, p.batch), (128,), args, shared_bytes=shared),))


def supports(p):
    if p.dtype != "float32":
        return "float32 only"
    return None if p.head_dim <= 128 else "head_dim up to 128"


def register(registry):
    registry.add(Variant(name="u-vec4", plan=plan, supports=supports, idea="float4 tile copies with a scalar tail",
                         numerics=Numerics(scores="float32", weights="float32", functions="__expf", sums="nearest")))
