"""Packed grouped heads: a block takes 32 of the group * q_len rows that share a kv head."""
import cupy
import numpy as np
from harness import Launch, Numerics, Plan, Variant

TYPES = {
    "float32": "#define T float\n#define LD(x) (x)\n#define ST(x) (x)\n",
    "float16": "#include <cuda_fp16.h>\n#define T __half\n#define LD(x) __half2float(x)\n#define ST(x) __float2half_rn(x)\n",
    "bfloat16": "#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define LD(x) __bfloat162float(x)\n#define ST(x) __float2bfloat16_rn(x)\n",
}
CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 32
#define BC 16
#define NT 128
extern "C" __global__ void gqa_pack(const T* Q, const T* K, const T* V, T* O,
                                    int group, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float smem[];
    float* ks = smem;
    float* vs = ks + BC * d;
    float* qs = vs + BC * d;
    int kvh = blockIdx.y, b = blockIdx.z, H = HK * group;
    int r = threadIdx.x / 4, part = threadIdx.x % 4;
    int packed = blockIdx.x * BR + r;
    bool live = packed < N * group;
    int i = live ? packed / group : 0, h = kvh * group + packed % group;
    long long row = ((long long)(b * H + h)) * N + i;
    long long kv = (long long)(b * HK + kvh) * M * d;
    for (int c = part; c < d; c += 4) qs[r * (d + 1) + c] = live ? LD(Q[row * d + c]) : 0.f;
    int end = causal ? min(M, i + M - N + 1) : M;
    int last_packed = min((int)(blockIdx.x + 1) * BR, N * group) - 1;
    int last = causal ? min(M, last_packed / group + M - N + 1) : M;
    float m = -INF, l = 0.f, acc[64];
    #pragma unroll
    for (int t = 0; t < 64; ++t) acc[t] = 0.f;
    for (int j0 = 0; j0 < last; j0 += BC) {
        __syncthreads();
        for (int t = threadIdx.x; t < BC * d; t += NT) {
            bool in = j0 + t / d < M;
            ks[t] = in ? LD(K[kv + (long long)j0 * d + t]) : 0.f;
            vs[t] = in ? LD(V[kv + (long long)j0 * d + t]) : 0.f;
        }
        __syncthreads();
        unsigned mask = __activemask();
        for (int j = 0; j < BC; ++j) {
            float s = 0.f;
            for (int c = part; c < d; c += 4) s += qs[r * (d + 1) + c] * ks[j * d + c];
            s += __shfl_xor_sync(mask, s, 1);
            s += __shfl_xor_sync(mask, s, 2);
            s *= tau;
            if (live && j0 + j < end) {
                if (s > m) {
                    float a = expf(m - s);
                    l *= a;
                    #pragma unroll
                    for (int t = 0; t < 64; ++t) acc[t] *= a;
                    m = s;
                }
                float p = expf(s - m);
                l += p;
                #pragma unroll
                for (int t = 0; t < 64; ++t)
                    if (part + 4 * t < d) acc[t] += p * vs[j * d + part + 4 * t];
            }
        }
    }
    if (live) {
        #pragma unroll
        for (int t = 0; t < 64; ++t)
            if (part + 4 * t < d) O[row * d + part + 4 * t] = ST(end > 0 ? acc[t] / l : 0.f);
    }
}
"""
KERNELS = {n: cupy.RawKernel(t + CODE, "gqa_pack") for n, t in TYPES.items()}


def plan(p):
    sizes = [np.int32(x) for x in (p.group, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(p.causal))
    shared = 4 * (2 * 16 * p.head_dim + 32 * (p.head_dim + 1))
    grid = (-(-p.q_len * p.group // 32), p.kv_heads, p.batch)
    return Plan((Launch(KERNELS[p.dtype], grid, (128,), args, shared_bytes=shared),))


def supports(p):
    return None if p.head_dim <= 256 else "head_dim up to 256"


def register(registry):
    registry.add(Variant(name="u-gqa-pack", plan=plan, supports=supports, idea="packed grouped heads",
                         numerics=Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest")))
