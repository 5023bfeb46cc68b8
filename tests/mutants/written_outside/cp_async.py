"""A ring of three stages of K and V tiles, filled by cp.async. float32, head_dim a multiple of 4."""
import cupy
import numpy as np
from harness import Launch, Numerics, Plan, Variant

CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 16
#define BC 16
#define NT 64
#define STAGES 3
#define MAXC 32
__device__ __forceinline__ void cp16(float* dst, const float* src, bool in)
{
    unsigned s = (unsigned)__cvta_generic_to_shared(dst);
    int bytes = in ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(s), "l"(src), "r"(bytes));
}
#define COMMIT() asm volatile("cp.async.commit_group;")
#define WAIT(n) asm volatile("cp.async.wait_group %0;" :: "n"(n))

__device__ __forceinline__ void load_stage(float* ks, float* vs, const float* K, const float* V, int j0, int M, int d)
{
    int chunks = d / 4;
    for (int t = threadIdx.x; t < BC * chunks; t += NT) {
        int r = t / chunks, c = t % chunks * 4;
        bool in = j0 + r < M;
        long long at = in ? (long long)(j0 + r) * d + c : 0;
        cp16(ks + r * d + c, K + at, in);
        cp16(vs + r * d + c, V + at, in);
    }
}
extern "C" __global__ void cp_ring(const float* Q, const float* K, const float* V, float* O,
                                   int H, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float4 smem4[];
    float* ring = (float*)smem4;
    int tile = BC * d;
    float* ss = ring + 2 * STAGES * tile;
    int row = threadIdx.x / 4, part = threadIdx.x % 4;
    int i = blockIdx.x * BR + row, h = blockIdx.y, b = blockIdx.z;
    const float* q = Q + ((long long)(b * H + h) * N + min(i, N - 1)) * d;
    long long kv = (long long)(b * HK + h / (H / HK)) * M * d;
    K += kv;
    V += kv;
    int last_row = min(N, (int)(blockIdx.x + 1) * BR) - 1;
    int end = causal ? min(M, i + M - N + 1) : M;
    int all = causal ? max(0, min(M, last_row + M - N + 1)) : M;
    int tiles = (all + BC - 1) / BC;
    float acc[MAXC];
    #pragma unroll
    for (int t = 0; t < MAXC; ++t) acc[t] = 0.f;
    float m = -INF, l = 0.f;
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < tiles) load_stage(ring + 2 * s * tile, ring + (2 * s + 1) * tile, K, V, s * BC, M, d);
        COMMIT();
    }
    for (int n = 0; n < tiles; ++n) {
        WAIT(STAGES - 2);
        __syncthreads();
        int next = n + STAGES - 1;
        if (next < tiles) {
            int at = next % STAGES;
            load_stage(ring + 2 * at * tile, ring + (2 * at + 1) * tile, K, V, next * BC, M, d);
        }
        COMMIT();
        const float* ks = ring + 2 * (n % STAGES) * tile;
        const float* vs = ks + tile;
        int j0 = n * BC;
        for (int j = part; j < BC; j += 4) {
            float s = 0.f;
            for (int c = 0; c < d; ++c) s = fmaf(q[c], ks[j * d + c], s);
            ss[row * BC + j] = j0 + j < end ? s * tau : -INF;
        }
        __syncwarp();
        float mt = m;
        for (int j = 0; j < BC; ++j) mt = fmaxf(mt, ss[row * BC + j]);
        if (mt > -INF) {
            float a = expf(m - mt);
            l *= a;
            #pragma unroll
            for (int t = 0; t < MAXC; ++t) acc[t] *= a;
            for (int j = 0; j < BC; ++j) {
                if (j0 + j >= end) break;
                float p = expf(ss[row * BC + j] - mt);
                l += p;
                #pragma unroll
                for (int t = 0; t < MAXC; ++t)
                    if (part + 4 * t < d) acc[t] += p * vs[j * d + part + 4 * t];
            }
            m = mt;
        }
        __syncwarp();
    }
    WAIT(0);
    if (i < N) {
        float* o = O + ((long long)(b * H + h) * N + i) * d;
        #pragma unroll
        for (int t = 0; t < MAXC; ++t)
            if (part + 4 * t < d) o[part + 4 * t] = end > 0 ? acc[t] / l : 0.f;
    }
}
"""
KERNEL = cupy.RawKernel(CODE, "cp_ring")


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(p.causal))
    shared = 4 * (2 * 3 * 16 * p.head_dim + 16 * 16)
    return Plan((Launch(KERNEL, (-(-p.q_len // 16), p.heads, p.batch), (64,), args, shared_bytes=shared),))


def supports(p):
    if p.dtype != "float32" or p.head_dim % 4:
        return "float32, head_dim a multiple of 4"
    return None if p.head_dim <= 128 else "head_dim up to 128"


def register(registry):
    registry.add(Variant(name="u-cp-async", plan=plan, supports=supports, idea="cp.async ring of three stages",
                         numerics=Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest")))
