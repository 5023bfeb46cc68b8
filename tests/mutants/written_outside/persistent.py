"""A persistent grid: at most 132 blocks, each loops over (batch, head, row block)."""
import cupy
import numpy as np
from harness import Launch, Numerics, Plan, Variant

TYPES = {
    "float32": "#define T float\n#define LD(x) (x)\n#define ST(x) (x)\n",
    "float16": "#include <cuda_fp16.h>\n#define T __half\n#define LD(x) __half2float(x)\n#define ST(x) __float2half_rn(x)\n",
    "bfloat16": "#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define LD(x) __bfloat162float(x)\n#define ST(x) __float2bfloat16_rn(x)\n",
}
CAP = 132
CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 16
#define BC 32
#define NT 128
extern "C" __global__ void persistent(const T* Q, const T* K, const T* V, T* O,
                                      int B, int H, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float smem[];
    float* qs = smem;
    float* kt = qs + BR * d;
    float* os = kt + BC * (d + 1);
    float* ss = os + BR * d;
    float* mm = ss + BR * BC;
    float* ll = mm + BR;
    float* aa = ll + BR;
    int blocks = (N + BR - 1) / BR;
    long long work = (long long)B * H * blocks;
    int tid = threadIdx.x;
    for (long long w = blockIdx.x; w < work; w += gridDim.x) {
        int i0 = (int)(w % blocks) * BR;
        long long bh = w / blocks;
        int h = (int)(bh % H), b = (int)(bh / H);
        const T* q = Q + (bh * N + i0) * d;
        long long kv = ((long long)b * HK + h / (H / HK)) * M;
        int rows = min(BR, N - i0);
        __syncthreads();
        for (int t = tid; t < BR * d; t += NT) {
            qs[t] = t < rows * d ? LD(q[t]) * tau : 0.f;
            os[t] = 0.f;
        }
        if (tid < BR) {
            mm[tid] = -INF;
            ll[tid] = 0.f;
        }
        int last = causal ? min(M, i0 + rows + M - N) : M;
        for (int j0 = 0; j0 < last; j0 += BC) {
            int cols = min(BC, last - j0);
            __syncthreads();
            for (int t = tid; t < cols * d; t += NT) kt[t / d * (d + 1) + t % d] = LD(K[(kv + j0) * d + t]);
            __syncthreads();
            for (int t = tid; t < BR * BC; t += NT) {
                int r = t / BC, j = t % BC;
                float s = -INF;
                if (j < cols && (!causal || j0 + j <= i0 + r + M - N)) {
                    s = 0.f;
                    for (int c = 0; c < d; ++c) s += qs[r * d + c] * kt[j * (d + 1) + c];
                }
                ss[t] = s;
            }
            __syncthreads();
            if (tid < BR) {
                float mo = mm[tid], mx = mo, sum = 0.f;
                for (int j = 0; j < BC; ++j) mx = fmaxf(mx, ss[tid * BC + j]);
                float base = mx == -INF ? 0.f : mx;
                for (int j = 0; j < BC; ++j) {
                    float p = __expf(ss[tid * BC + j] - base);
                    ss[tid * BC + j] = p;
                    sum += p;
                }
                aa[tid] = __expf(mo - base);
                ll[tid] = ll[tid] * aa[tid] + sum;
                mm[tid] = mx;
            }
            __syncthreads();
            for (int t = tid; t < BR * d; t += NT) {
                int r = t / d, c = t % d;
                int see = causal ? min(cols, i0 + r + M - N + 1 - j0) : cols;
                float o = os[t] * aa[r];
                for (int j = 0; j < see; ++j) o += ss[r * BC + j] * LD(V[(kv + j0 + j) * d + c]);
                os[t] = o;
            }
        }
        __syncthreads();
        for (int t = tid; t < rows * d; t += NT) {
            float l = ll[t / d];
            O[(bh * N + i0) * d + t] = ST(l == 0.f ? 0.f : os[t] / l);
        }
    }
}
"""
KERNELS = {n: cupy.RawKernel(t + CODE, "persistent") for n, t in TYPES.items()}


def plan(p):
    sizes = [np.int32(x) for x in (p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(p.causal))
    work = p.batch * p.heads * -(-p.q_len // 16)
    shared = 4 * (2 * 16 * p.head_dim + 32 * (p.head_dim + 1) + 16 * 32 + 3 * 16)
    return Plan((Launch(KERNELS[p.dtype], (min(work, CAP),), (128,), args, shared_bytes=shared),))


def supports(p):
    return None if p.head_dim <= 256 else "head_dim up to 256"


def register(registry):
    registry.add(Variant(name="u-persistent", plan=plan, supports=supports, idea="persistent grid",
                         numerics=Numerics(scores="float32", weights="float32", functions="__expf", sums="nearest")))
