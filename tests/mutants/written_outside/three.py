"""Three kernels: S = tau Q K^T into scratch, softmax of its rows in place, O = P V."""
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
#define TS 16
extern "C" __global__ void scores(const T* Q, const T* K, float* S, int H, int HK, int N, int M, int d, float tau, int causal)
{
    __shared__ float qs[TS][TS + 1], ks[TS][TS + 1];
    int tx = threadIdx.x, ty = threadIdx.y, bh = blockIdx.z, b = bh / H, h = bh % H;
    int i = blockIdx.y * TS + ty, j = blockIdx.x * TS + tx;
    const T* q = Q + (long long)bh * N * d;
    const T* k = K + (long long)(b * HK + h / (H / HK)) * M * d;
    float s = 0.f;
    for (int c0 = 0; c0 < d; c0 += TS) {
        int kr = blockIdx.x * TS + ty;
        qs[ty][tx] = i < N && c0 + tx < d ? LD(q[(long long)i * d + c0 + tx]) : 0.f;
        ks[ty][tx] = kr < M && c0 + tx < d ? LD(k[(long long)kr * d + c0 + tx]) : 0.f;
        __syncthreads();
        for (int c = 0; c < TS; ++c) s += qs[ty][c] * ks[tx][c];
        __syncthreads();
    }
    if (i < N && j < M) {
        bool seen = !causal || j <= i + M - N;
        S[((long long)bh * N + i) * M + j] = seen ? s * tau : -INF;
    }
}
extern "C" __global__ void softmax(float* S, float* lse, int M)
{
    __shared__ float red[8];
    long long row = (long long)blockIdx.y * gridDim.x + blockIdx.x;
    float* s = S + row * M;
    int tid = threadIdx.x, warp = tid / 32;
    float m = -INF;
    for (int j = tid; j < M; j += 256) m = fmaxf(m, s[j]);
    for (int o = 16; o; o /= 2) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (tid % 32 == 0) red[warp] = m;
    __syncthreads();
    for (int w = 0; w < 8; ++w) m = fmaxf(m, red[w]);
    __syncthreads();
    float l = 0.f;
    for (int j = tid; j < M; j += 256) {
        float p = s[j] == -INF ? 0.f : expf(s[j] - m);
        s[j] = p;
        l += p;
    }
    for (int o = 16; o; o /= 2) l += __shfl_xor_sync(~0u, l, o);
    if (tid % 32 == 0) red[warp] = l;
    __syncthreads();
    l = 0.f;
    for (int w = 0; w < 8; ++w) l += red[w];
    if (tid == 0) lse[row] = m + logf(l);
    if (l > 0.f)
        for (int j = tid; j < M; j += 256) s[j] /= l;
}
extern "C" __global__ void pv(const float* S, const T* V, T* O, int H, int HK, int N, int M, int d, int causal)
{
    int bh = blockIdx.z, b = bh / H, h = bh % H;
    int i = blockIdx.y * 4 + threadIdx.y, c = blockIdx.x * 32 + threadIdx.x;
    if (i >= N || c >= d) return;
    const float* p = S + ((long long)bh * N + i) * M;
    const T* v = V + (long long)(b * HK + h / (H / HK)) * M * d;
    int end = causal ? min(M, i + M - N + 1) : M;
    float o = 0.f;
    for (int j = 0; j < end; ++j) o += p[j] * LD(v[(long long)j * d + c]);
    O[((long long)bh * N + i) * d + c] = ST(o);
}
"""
KERNELS = {n: [cupy.RawKernel(t + CODE, k) for k in ("scores", "softmax", "pv")] for n, t in TYPES.items()}


def plan(p):
    H, HK, N, M, d = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    scores, softmax, pv = KERNELS[p.dtype]
    causal = np.int32(p.causal)
    bh = p.batch * p.heads
    return Plan(
        (
            Launch(scores, (-(-p.kv_len // 16), -(-p.q_len // 16), bh), (16, 16), ("Q", "K", "S", H, HK, N, M, d, np.float32(p.tau), causal)),
            Launch(softmax, (p.q_len, bh), (256,), ("S", "lse", M)),
            Launch(pv, (-(-p.head_dim // 32), -(-p.q_len // 4), bh), (32, 4), ("S", "V", "O", H, HK, N, M, d, causal)),
        ),
        (Buffer("S", (p.batch, p.heads, p.q_len, p.kv_len), "float32"), Buffer("lse", (p.batch, p.heads, p.q_len), "float32")),
    )


def supports(p):
    return "grid too large" if p.batch * p.heads > 65535 or p.q_len > 4 * 65535 else None


def register(registry):
    registry.add(Variant(name="u-three", plan=plan, supports=supports, idea="scores, softmax, PV",
                         numerics=Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest",
                                           one_score=True, divides_last=True)))
