"""FlashAttention-2 on tensor cores: mma.sync m16n8k16 and ldmatrix, four warps of 16 rows. float16, bfloat16."""
import cupy
import numpy as np
from harness import Buffer, Launch, Numerics, Plan, Variant

TYPES = {
    "float16": '#include <cuda_fp16.h>\n#define T __half\n#define ST(x) __float2half_rn(x)\n#define NAME "f16"\n',
    "bfloat16": '#include <cuda_bf16.h>\n#define T __nv_bfloat16\n#define ST(x) __float2bfloat16_rn(x)\n#define NAME "bf16"\n',
}
CODE = r"""
#define INF __int_as_float(0x7f800000)
#define BR 64
#define BC 32
#define NT 128
#define PAD 8
typedef unsigned int u32;
__device__ __forceinline__ u32 pack(float lo, float hi)
{
    T a = ST(lo), b = ST(hi);
    return (u32)*(unsigned short*)&a | ((u32)*(unsigned short*)&b << 16);
}
__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldsm4(u32* r, const T* p)
{
    u32 s = (u32)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(s));
}
__device__ __forceinline__ void ldsm2(u32* r, const T* p)
{
    u32 s = (u32)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(s));
}
__device__ __forceinline__ void ldsm2t(u32* r, const T* p)
{
    u32 s = (u32)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(s));
}
__device__ __forceinline__ void load_rows(T* dst, const T* src, int rows, int have)
{
    const int C = D / 8;
    for (int t = threadIdx.x; t < rows * C; t += NT) {
        int r = t / C, c = t % C * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (r < have) x = *(const uint4*)(src + (long long)r * D + c);
        *(uint4*)(dst + r * (D + PAD) + c) = x;
    }
}
extern "C" __global__ void mma16(const T* Q, const T* K, const T* V, T* O, float* lse, int H, int HK, int N, int M, float tau, int causal)
{
    __shared__ __align__(16) T qs[BR * (D + PAD)];
    __shared__ __align__(16) T ks[BC * (D + PAD)];
    __shared__ __align__(16) T vs[BC * (D + PAD)];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, tig = lane % 4;
    int i0 = blockIdx.x * BR, h = blockIdx.y, b = blockIdx.z;
    long long qrow = (long long)(b * H + h) * N;
    long long kvrow = (long long)(b * HK + h / (H / HK)) * M;
    load_rows(qs, Q + (qrow + i0) * D, BR, N - i0);
    __syncthreads();
    u32 qf[D / 16][4];
    for (int kk = 0; kk < D / 16; ++kk)
        ldsm4(qf[kk], qs + (warp * 16 + lane % 16) * (D + PAD) + kk * 16 + lane / 16 * 8);
    float o[D / 8][4];
    for (int t = 0; t < D / 8; ++t) o[t][0] = o[t][1] = o[t][2] = o[t][3] = 0.f;
    float m[2] = {-INF, -INF}, l[2] = {0.f, 0.f};
    int row[2] = {i0 + warp * 16 + g, i0 + warp * 16 + g + 8};
    int end[2];
    for (int r = 0; r < 2; ++r) end[r] = causal ? min(M, row[r] + M - N + 1) : M;
    int last = causal ? min(M, min(N, i0 + BR) + M - N) : M;
    float scale = tau * 1.44269504f;
    for (int j0 = 0; j0 < last; j0 += BC) {
        __syncthreads();
        load_rows(ks, K + (kvrow + j0) * D, BC, M - j0);
        load_rows(vs, V + (kvrow + j0) * D, BC, M - j0);
        __syncthreads();
        float s[BC / 8][4];
        for (int n = 0; n < BC / 8; ++n) {
            s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.f;
            for (int kk = 0; kk < D / 16; ++kk) {
                u32 kf[2];
                ldsm2(kf, ks + (n * 8 + lane % 8) * (D + PAD) + kk * 16 + lane / 8 % 2 * 8);
                mma(s[n], qf[kk], kf[0], kf[1]);
            }
        }
        float mx[2] = {m[0], m[1]};
        for (int n = 0; n < BC / 8; ++n)
            for (int e = 0; e < 4; ++e) {
                int j = j0 + n * 8 + tig * 2 + e % 2;
                s[n][e] = j < end[e / 2] ? s[n][e] * scale : -INF;
                mx[e / 2] = fmaxf(mx[e / 2], s[n][e]);
            }
        for (int r = 0; r < 2; ++r) {
            mx[r] = fmaxf(mx[r], __shfl_xor_sync(~0u, mx[r], 1));
            mx[r] = fmaxf(mx[r], __shfl_xor_sync(~0u, mx[r], 2));
            float base = mx[r] == -INF ? 0.f : mx[r];
            float a = exp2f(m[r] - base);
            m[r] = mx[r];
            mx[r] = base;
            l[r] *= a;
            for (int t = 0; t < D / 8; ++t) {
                o[t][2 * r] *= a;
                o[t][2 * r + 1] *= a;
            }
        }
        for (int n = 0; n < BC / 8; ++n)
            for (int e = 0; e < 4; ++e) {
                s[n][e] = exp2f(s[n][e] - mx[e / 2]);
                l[e / 2] += s[n][e];
            }
        if (causal && j0 + BC > i0 + warp * 16 + M - N + 1) {  // what a row does not see may be NaN: no 0 * V here
            for (int j = 0; j < BC; ++j)
                for (int r = 0; r < 2; ++r) {
                    float even = s[j / 8][2 * r], odd = s[j / 8][2 * r + 1];
                    float p = __shfl_sync(~0u, j % 2 ? odd : even, g * 4 + j % 8 / 2);
                    p = (float)ST(p);
                    if (j0 + j < end[r])
                        for (int t = 0; t < D / 8; ++t) {
                            o[t][2 * r] += p * (float)vs[j * (D + PAD) + t * 8 + tig * 2];
                            o[t][2 * r + 1] += p * (float)vs[j * (D + PAD) + t * 8 + tig * 2 + 1];
                        }
                }
            continue;
        }
        for (int kk = 0; kk < BC / 16; ++kk) {
            u32 pf[4] = {pack(s[2 * kk][0], s[2 * kk][1]), pack(s[2 * kk][2], s[2 * kk][3]),
                         pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack(s[2 * kk + 1][2], s[2 * kk + 1][3])};
            for (int t = 0; t < D / 8; ++t) {
                u32 vf[2];
                ldsm2t(vf, vs + (kk * 16 + lane % 16) * (D + PAD) + t * 8);
                mma(o[t], pf, vf[0], vf[1]);
            }
        }
    }
    for (int r = 0; r < 2; ++r) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        if (row[r] < N) {
            float inv = end[r] > 0 ? 1.f / l[r] : 0.f;
            T* out = O + (qrow + row[r]) * D;
            for (int t = 0; t < D / 8; ++t)
                *(u32*)(out + t * 8 + tig * 2) = pack(o[t][2 * r] * inv, o[t][2 * r + 1] * inv);
            if (tig == 0) lse[qrow + row[r]] = end[r] > 0 ? m[r] * 0.69314718f + logf(l[r]) : -INF;
        }
    }
}
"""
KERNELS = {}


def kernel(dtype, d):
    if (dtype, d) not in KERNELS:
        KERNELS[dtype, d] = cupy.RawKernel(TYPES[dtype] + f"#define D {d}\n" + CODE, "mma16")
    return KERNELS[dtype, d]


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(p.causal))
    grid = (-(-p.q_len // 64), p.heads, p.batch)
    return Plan((Launch(kernel(p.dtype, p.head_dim), grid, (128,), args),), (Buffer("lse", (p.batch, p.heads, p.q_len), "float32"),))


def supports(p):
    if p.dtype not in TYPES:
        return "16-bit only"
    return None if p.head_dim in (16, 32, 48, 64, 96, 128) else "head_dim 16, 32, 48, 64, 96 or 128"


def register(registry):
    registry.add(Variant(name="u-mma16", plan=plan, supports=supports, idea="mma.sync and ldmatrix",
                         numerics=Numerics(scores="float32")))
