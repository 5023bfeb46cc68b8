"""The wmma API: one warp per 16 query rows, scores and O in shared memory. float16."""
import cupy
import numpy as np
from harness import Launch, Numerics, Plan, Variant

CODE = r"""
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
#define INF __int_as_float(0x7f800000)
#define BC 32
extern "C" __global__ void wmma_attn(const __half* Q, const __half* K, const __half* V, __half* O,
                                     int H, int HK, int N, int M, int d, float tau, int causal)
{
    extern __shared__ float4 smem4[];
    int dp = (d + 15) / 16 * 16;
    float* os = (float*)smem4;
    float* ss = os + 16 * dp;
    __half* qs = (__half*)(ss + 16 * BC);
    __half* ks = qs + 16 * dp;
    __half* vs = ks + BC * dp;
    __half* ps = vs + BC * dp;
    int lane = threadIdx.x;
    int i0 = blockIdx.x * 16, h = blockIdx.y, b = blockIdx.z;
    Q += (size_t)(b * H + h) * N * d;
    O += (size_t)(b * H + h) * N * d;
    K += (size_t)(b * HK + h / (H / HK)) * M * d;
    V += (size_t)(b * HK + h / (H / HK)) * M * d;
    for (int t = lane; t < 16 * dp; t += 32) {
        int r = t / dp, c = t % dp;
        qs[t] = i0 + r < N && c < d ? Q[(size_t)(i0 + r) * d + c] : __float2half(0.f);
        os[t] = 0.f;
    }
    int r = lane / 2, half = lane % 2;
    int i = i0 + r;
    int end = causal ? min(M, i + M - N + 1) : M;
    int last = causal ? min(M, min(i0 + 16, N) + M - N) : M;
    float m = -INF, l = 0.f;
    for (int j0 = 0; j0 < last; j0 += BC) {
        for (int t = lane; t < BC * dp; t += 32) {
            int rr = t / dp, c = t % dp;
            bool in = j0 + rr < M && c < d;
            ks[t] = in ? K[(size_t)(j0 + rr) * d + c] : __float2half(0.f);
            vs[t] = in ? V[(size_t)(j0 + rr) * d + c] : __float2half(0.f);
        }
        __syncwarp();
        for (int n = 0; n < BC; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> s;
            wmma::fill_fragment(s, 0.f);
            for (int c = 0; c < dp; c += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> bt;
                wmma::load_matrix_sync(a, qs + c, dp);
                wmma::load_matrix_sync(bt, ks + n * dp + c, dp);
                wmma::mma_sync(s, a, bt, s);
            }
            wmma::store_matrix_sync(ss + n, s, BC, wmma::mem_row_major);
        }
        __syncwarp();
        float mt = -INF;
        for (int j = half; j < BC; j += 2) {
            float x = j0 + j < end ? ss[r * BC + j] * tau : -INF;
            ss[r * BC + j] = x;
            mt = fmaxf(mt, x);
        }
        mt = fmaxf(mt, __shfl_xor_sync(0xffffffff, mt, 1));
        float mn = fmaxf(m, mt);
        float base = mn == -INF ? 0.f : mn;
        float a = __expf(m - base), lt = 0.f;
        for (int j = half; j < BC; j += 2) {
            float p = __expf(ss[r * BC + j] - base);
            ps[r * BC + j] = __float2half_rn(p);
            lt += p;
        }
        lt += __shfl_xor_sync(0xffffffff, lt, 1);
        l = l * a + lt;
        m = mn;
        for (int c = half; c < dp; c += 2) os[r * dp + c] *= a;
        __syncwarp();
        bool masked = causal && j0 + BC > i0 + M - N + 1;
        if (masked) {  // what a row does not see may be NaN: no 0 * V here
            for (int c = half; c < d; c += 2) {
                float x = os[r * dp + c];
                for (int j = 0; j < BC && j0 + j < end; ++j)
                    x += __half2float(ps[r * BC + j]) * __half2float(vs[j * dp + c]);
                os[r * dp + c] = x;
            }
            __syncwarp();
            continue;
        }
        for (int c = 0; c < dp; c += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
            wmma::load_matrix_sync(acc, os + c, dp, wmma::mem_row_major);
            for (int n = 0; n < BC; n += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> pa;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> vb;
                wmma::load_matrix_sync(pa, ps + n, BC);
                wmma::load_matrix_sync(vb, vs + n * dp + c, dp);
                wmma::mma_sync(acc, pa, vb, acc);
            }
            wmma::store_matrix_sync(os + c, acc, dp, wmma::mem_row_major);
        }
        __syncwarp();
    }
    if (i < N)
        for (int c = half; c < d; c += 2)
            O[(size_t)i * d + c] = __float2half_rn(end > 0 ? os[r * dp + c] / l : 0.f);
}
"""
KERNEL = cupy.RawKernel(CODE, "wmma_attn")


def plan(p):
    sizes = [np.int32(x) for x in (p.heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(p.causal))
    dp = -(-p.head_dim // 16) * 16
    shared = 4 * 16 * (dp + 32) + 2 * (16 * dp + 2 * 32 * dp + 16 * 32)
    return Plan((Launch(KERNEL, (-(-p.q_len // 16), p.heads, p.batch), (32,), args, shared_bytes=shared),))


def supports(p):
    if p.dtype != "float16":
        return "float16 only"
    return None if p.head_dim <= 256 else "head_dim up to 256"


def register(registry):
    registry.add(Variant(name="u-wmma", plan=plan, supports=supports, idea="wmma API, one warp per 16 rows",
                         numerics=Numerics(scores="float32", functions="__expf")))
