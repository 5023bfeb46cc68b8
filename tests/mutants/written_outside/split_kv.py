"""Split-kv (flash decoding): each block takes a run of keys for one row, a second kernel combines."""
import cupy
import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant

TYPES = {
    "float32": "#define T float\n#define LD(x) (x)\n#define ST(x) (x)\n",
    "float16": "#include <cuda_fp16.h>\n#define T __half\n#define LD(x) __half2float(x)\n#define ST(x) __float2half_rn(x)\n",
    "bfloat16": "#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define LD(x) __bfloat162float(x)\n#define ST(x) __float2bfloat16_rn(x)\n",
}
PER_SPLIT = 64
MAX_SPLITS = 128
CODE = r"""
#define INF __int_as_float(0x7f800000)
#define NT 64
extern "C" __global__ void split_part(const T* Q, const T* K, const T* V, float* part_o, float* part_ml,
                                      int H, int HK, int N, int M, int d, int splits, int per_split, float tau, int causal)
{
    __shared__ float sc[NT], red[2], qs[256];
    int i = blockIdx.x / splits, split = blockIdx.x % splits, h = blockIdx.y, b = blockIdx.z;
    int tid = threadIdx.x;
    long long row = (long long)(b * H + h) * N + i;
    long long kv = (long long)(b * HK + h / (H / HK)) * M * d;
    for (int c = tid; c < d; c += NT) qs[c] = LD(Q[row * d + c]) * tau;
    int end = causal ? min(M, i + M - N + 1) : M;
    int lo = split * per_split, hi = min(end, lo + per_split);
    float acc[4] = {0.f, 0.f, 0.f, 0.f};
    float m = -INF, l = 0.f;
    for (int j0 = lo; j0 < hi; j0 += NT) {
        __syncthreads();
        float s = -INF;
        if (j0 + tid < hi) {
            s = 0.f;
            const T* k = K + kv + (long long)(j0 + tid) * d;
            for (int c = 0; c < d; ++c) s += qs[c] * LD(k[c]);
        }
        sc[tid] = s;
        float mx = s;
        for (int o = 16; o; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, o));
        if (tid % 32 == 0) red[tid / 32] = mx;
        __syncthreads();
        float mn = fmaxf(m, fmaxf(red[0], red[1]));
        float a = exp2f((m - mn) * 1.4426950408889634f);
        l *= a;
        for (int t = 0; t < 4; ++t) acc[t] *= a;
        int count = min(NT, hi - j0);
        for (int j = 0; j < count; ++j) {
            float p = exp2f((sc[j] - mn) * 1.4426950408889634f);
            l += p;
            for (int t = 0; t < 4; ++t) {
                int c = tid + t * NT;
                if (c < d) acc[t] += p * LD(V[kv + (long long)(j0 + j) * d + c]);
            }
        }
        m = mn;
    }
    long long at = row * splits + split;
    for (int t = 0; t < 4; ++t) {
        int c = tid + t * NT;
        if (c < d) part_o[at * d + c] = acc[t];
    }
    if (tid == 0) {
        part_ml[at * 2] = m;
        part_ml[at * 2 + 1] = l;
    }
}
extern "C" __global__ void split_combine(const float* part_o, const float* part_ml, T* O, float* lse, int d, int splits)
{
    __shared__ float w[128];
    long long row = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    const float* ml = part_ml + row * splits * 2;
    float m = -INF, l = 0.f;
    for (int s = 0; s < splits; ++s) m = fmaxf(m, ml[2 * s]);
    for (int s = threadIdx.x; s < splits; s += blockDim.x) w[s] = ml[2 * s + 1] != 0.f ? expf(ml[2 * s] - m) : 0.f;
    __syncthreads();
    for (int s = 0; s < splits; ++s) l += w[s] * ml[2 * s + 1];
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
        float o = 0.f;
        for (int s = 0; s < splits; ++s)
            if (ml[2 * s + 1] != 0.f) o += w[s] * part_o[(row * splits + s) * d + c];
        O[row * d + c] = ST(l != 0.f ? o / l : 0.f);
    }
    if (threadIdx.x == 0) lse[row] = l != 0.f ? m + logf(l) : -INF;
}
"""
PART = {n: cupy.RawKernel(t + CODE, "split_part") for n, t in TYPES.items()}
COMBINE = {n: cupy.RawKernel(t + CODE, "split_combine") for n, t in TYPES.items()}


def plan(p):
    splits = max(1, min(MAX_SPLITS, -(-p.kv_len // PER_SPLIT)))
    per_split = -(-p.kv_len // splits)
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim, splits, per_split)]
    rows = p.batch * p.heads * p.q_len
    buffers = (Buffer("po", (rows * splits * p.head_dim,), "float32"), Buffer("ml", (rows * splits * 2,), "float32"),
               Buffer("lse", (p.batch, p.heads, p.q_len), "float32"))
    part = Launch(PART[p.dtype], (p.q_len * splits, p.heads, p.batch), (64,),
                  ("Q", "K", "V", "po", "ml", *sizes, np.float32(p.tau), np.int32(p.causal)))
    combine = Launch(COMBINE[p.dtype], (p.q_len, p.heads * p.batch), (64,),
                     ("po", "ml", "O", "lse", np.int32(p.head_dim), np.int32(splits)))
    return Plan((part, combine), buffers)


def supports(p):
    if p.batch * p.heads > 65535:
        return "grid too large"
    return None if p.head_dim <= 256 else "head_dim up to 256"


def register(registry):
    registry.add(Variant(name="u-split-kv", plan=plan, supports=supports, idea="split-kv with a combine kernel",
                         numerics=Numerics(scores="float32", weights="float32", sums="nearest")))
