"""A warp per query row: lanes share the columns, shuffles sum the dot product."""
import cupy
import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant

TYPES = {
    "float32": "#define T float\n#define LD(x) (x)\n#define ST(x) (x)\n",
    "float16": "#include <cuda_fp16.h>\n#define T __half\n#define LD(x) __half2float(x)\n#define ST(x) __float2half_rn(x)\n",
    "bfloat16": "#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define LD(x) __bfloat162float(x)\n#define ST(x) __float2bfloat16_rn(x)\n",
}
CODE = r"""
#define WARPS 4
#define PER_LANE 8
extern "C" __global__ void warp_row(const T* __restrict__ Q, const T* __restrict__ K, const T* __restrict__ V, T* O,
                                    float* lse, int heads, int kv_heads, int q_len, int kv_len, int d, float tau, int causal)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int i = blockIdx.x * WARPS + warp;
    int h = blockIdx.y, b = blockIdx.z;
    if (i >= q_len) return;
    int kvh = h / (heads / kv_heads);
    size_t row = ((size_t)b * heads + h) * q_len + i;
    const T* q = Q + row * d;
    const T* k = K + ((size_t)b * kv_heads + kvh) * kv_len * d;
    const T* v = V + ((size_t)b * kv_heads + kvh) * kv_len * d;
    float qr[PER_LANE], acc[PER_LANE];
    #pragma unroll
    for (int t = 0; t < PER_LANE; ++t) {
        int c = lane + 32 * t;
        qr[t] = c < d ? LD(q[c]) : 0.f;
        acc[t] = 0.f;
    }
    int end = causal ? min(kv_len, i + 1 + kv_len - q_len) : kv_len;
    float m = -INFINITY, l = 0.f;
    for (int j = 0; j < end; ++j) {
        float s = 0.f;
        #pragma unroll
        for (int t = 0; t < PER_LANE; ++t) {
            int c = lane + 32 * t;
            if (c < d) s += qr[t] * LD(k[(size_t)j * d + c]);
        }
        for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
        s *= tau;
        float mn = fmaxf(m, s);
        float a = expf(m - mn), p = expf(s - mn);
        l = l * a + p;
        #pragma unroll
        for (int t = 0; t < PER_LANE; ++t) {
            int c = lane + 32 * t;
            acc[t] *= a;
            if (c < d) acc[t] += p * LD(v[(size_t)j * d + c]);
        }
        m = mn;
    }
    float inv = end > 0 ? 1.f / l : 0.f;
    #pragma unroll
    for (int t = 0; t < PER_LANE; ++t) {
        int c = lane + 32 * t;
        if (c < d) O[row * d + c] = ST(acc[t] * inv);
    }
    if (lane == 0) lse[row] = m + logf(l);
}
"""
KERNELS = {name: cupy.RawKernel(head + "#define INFINITY __int_as_float(0x7f800000)\n" + CODE, "warp_row") for name, head in TYPES.items()}


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(p.causal))
    grid = (-(-p.q_len // 4), p.heads, p.batch)
    return Plan((Launch(KERNELS[p.dtype], grid, (128,), args),), (Buffer("lse", (p.batch, p.heads, p.q_len), "float32"),))


def supports(p):
    if p.head_dim > 256:
        return "head_dim up to 256"
    if max(p.heads, p.batch) > 65535:
        return "grid too large"


def register(registry):
    registry.add(Variant(name="u-warp-row", plan=plan, supports=supports, idea="warp per row",
                         numerics=Numerics(scores="float32", weights="float32", sums="nearest")))
