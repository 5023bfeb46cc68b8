"""A block per query row, the whole row of scores in shared memory: kv_len up to 10,000."""
import cupy
import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant

TYPES = {
    "float32": "#define T float\n#define LD(x) (x)\n#define ST(x) (x)\n",
    "float16": "#include <cuda_fp16.h>\n#define T __half\n#define LD(x) __half2float(x)\n#define ST(x) __float2half_rn(x)\n",
    "bfloat16": "#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define LD(x) __bfloat162float(x)\n#define ST(x) __float2bfloat16_rn(x)\n",
}
CODE = r"""
#define INF __int_as_float(0x7f800000)
#define NT 128
__device__ float block_max(float x, float* red)
{
    for (int o = 16; o; o /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = x;
    __syncthreads();
    x = fmaxf(fmaxf(red[0], red[1]), fmaxf(red[2], red[3]));
    __syncthreads();
    return x;
}
__device__ float block_sum(float x, float* red)
{
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    if (threadIdx.x % 32 == 0) red[threadIdx.x / 32] = x;
    __syncthreads();
    x = red[0] + red[1] + red[2] + red[3];
    __syncthreads();
    return x;
}
extern "C" __global__ void row_smem(const T* Q, const T* K, const T* V, T* O, float* lse,
                                    int H, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float sc[];
    __shared__ float red[NT / 32];
    int i = blockIdx.x, h = blockIdx.y, b = blockIdx.z, tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    size_t row = ((size_t)b * H + h) * N + i;
    size_t kv = ((size_t)b * HK + h / (H / HK)) * M * d;
    int end = causal ? min(M, i + M - N + 1) : M;
    float mx = -INF;
    for (int j = warp; j < end; j += NT / 32) {
        float s = 0.f;
        for (int c = lane; c < d; c += 32) s += LD(Q[row * d + c]) * LD(K[kv + (size_t)j * d + c]);
        for (int o = 16; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
        s *= tau;
        if (lane == 0) sc[j] = s;
        mx = fmaxf(mx, s);
    }
    float m = block_max(mx, red);
    float sum = 0.f;
    for (int j = tid; j < end; j += NT) {
        float p = expf(sc[j] - m);
        sc[j] = p;
        sum += p;
    }
    float l = block_sum(sum, red);
    for (int c = tid; c < d; c += NT) {
        float o = 0.f;
        for (int j = 0; j < end; ++j) o += sc[j] * LD(V[kv + (size_t)j * d + c]);
        O[row * d + c] = ST(end > 0 ? o / l : 0.f);
    }
    if (tid == 0) lse[row] = end > 0 ? m + logf(l) : -INF;
}
"""
KERNELS = {n: cupy.RawKernel(t + CODE, "row_smem") for n, t in TYPES.items()}


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(p.causal))
    launch = Launch(KERNELS[p.dtype], (p.q_len, p.heads, p.batch), (128,), args, shared_bytes=4 * p.kv_len)
    return Plan((launch,), (Buffer("lse", (p.batch, p.heads, p.q_len), "float32"),))


def supports(p):
    return None if p.kv_len <= 10000 else "kv_len up to 10,000: the row of scores is in shared memory"


def register(registry):
    registry.add(Variant(name="u-row-smem", plan=plan, supports=supports, idea="score row in shared memory",
                         numerics=Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest",
                                           one_score=True, divides_last=True)))
