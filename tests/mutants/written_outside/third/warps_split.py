"""w-warps-split: a block for each query row; its four warps take every fourth key and merge (m, l, O) in a tree."""

import functools

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Variant

CODE = r"""
#if defined(STORED_HALF)
#include <cuda_fp16.h>
typedef __half T;
__device__ float wide(T x) { return __half2float(x); }
__device__ T narrow(float x) { return __float2half_rn(x); }
#elif defined(STORED_BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ float wide(T x) { return __bfloat162float(x); }
__device__ T narrow(float x) { return __float2bfloat16_rn(x); }
#else
typedef float T;
__device__ float wide(T x) { return x; }
__device__ T narrow(float x) { return x; }
#endif
#define WARPS 4
#define CHUNKS 2
#define NEG __int_as_float(0xff800000)
struct __align__(4 * sizeof(T)) Four { T at[4]; };

extern "C" __global__ void __launch_bounds__(128) warps_split(
    const T* __restrict__ Q, const T* __restrict__ K, const T* __restrict__ V, T* O, float* lse,
    int q_len, int kv_len, int D, int heads, int kv_heads, float tau, int before, int after)
{
    __shared__ float m_s[WARPS], l_s[WARPS], o_s[WARPS][CHUNKS * 128];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = blockIdx.x % q_len;
    const long long head = blockIdx.x / q_len;
    const long long kv_head = head / heads * kv_heads + head % heads / (heads / kv_heads);
    const int diagonal = row + kv_len - q_len;
    const int lo = max(0, diagonal - before), hi = min(kv_len, diagonal + after + 1);
    const T* q = Q + (head * q_len + row) * D;
    const T* k = K + kv_head * kv_len * D;
    const T* v = V + kv_head * kv_len * D;

    float query[4 * CHUNKS], acc[4 * CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int x = c * 128 + lane * 4;
        Four four = {};
        if (x < D) four = *reinterpret_cast<const Four*>(q + x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            query[c * 4 + e] = x < D ? wide(four.at[e]) : 0.0f;
            acc[c * 4 + e] = 0.0f;
        }
    }
    float m = NEG, l = 0.0f;
    for (int j = lo + warp; j < hi; j += WARPS) {
        float s = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int x = c * 128 + lane * 4;
            if (x < D) {
                const Four four = *reinterpret_cast<const Four*>(k + (long long)j * D + x);
#pragma unroll
                for (int e = 0; e < 4; ++e) s += query[c * 4 + e] * wide(four.at[e]);
            }
        }
        __syncwarp();
#pragma unroll
        for (int w = 16; w > 0; w /= 2) s += __shfl_xor_sync(0xffffffff, s, w);
        s *= tau;
        const float m_new = fmaxf(m, s), base = m_new == NEG ? 0.0f : m_new;
        const float alpha = expf(m - base), p = expf(s - base);
        m = m_new;
        l = l * alpha + p;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const int x = c * 128 + lane * 4;
            if (x < D) {
                const Four four = *reinterpret_cast<const Four*>(v + (long long)j * D + x);
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[c * 4 + e] = acc[c * 4 + e] * alpha + p * wide(four.at[e]);
            }
        }
    }

    if (lane == 0) {
        m_s[warp] = m;
        l_s[warp] = l;
    }
#pragma unroll
    for (int i = 0; i < 4 * CHUNKS; ++i) o_s[warp][i / 4 * 128 + lane * 4 + i % 4] = acc[i];
    __syncthreads();
    for (int half = WARPS / 2; half > 0; half /= 2) {
        if (warp < half) {
            const float m_a = m_s[warp], m_b = m_s[warp + half], m_both = fmaxf(m_a, m_b);
            const float base = m_both == NEG ? 0.0f : m_both;
            const float a = expf(m_a - base), b = expf(m_b - base);
            const bool any_a = l_s[warp] != 0.0f, any_b = l_s[warp + half] != 0.0f;
            __syncwarp();
            for (int x = lane; x < D; x += 32)
                o_s[warp][x] = (any_a ? a * o_s[warp][x] : 0.0f) + (any_b ? b * o_s[warp + half][x] : 0.0f);
            if (lane == 0) {
                l_s[warp] = a * l_s[warp] + b * l_s[warp + half];
                m_s[warp] = m_both;
            }
        }
        __syncthreads();
    }
    const float sum = l_s[0];
    for (int x = threadIdx.x; x < D; x += 128)
        O[(head * q_len + row) * D + x] = narrow(sum == 0.0f ? 0.0f : o_s[0][x] / sum);
    if (threadIdx.x == 0) lse[head * q_len + row] = m_s[0] + logf(sum);
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernel(dtype):
    return cupy.RawKernel(CODE, "warps_split", options=STORED[dtype])


def band(p):
    """How many keys before and behind its place a row sees."""
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)


def plan(p):
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.heads, p.heads // p.group)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), *band(p))
    launch = Launch(kernel(p.dtype), (p.batch * p.heads * p.q_len,), (128,), args)
    return Plan((launch,), (Buffer("lse", p.lse_shape, "float32"),))


def supports(p):
    if p.head_dim % 4 or p.head_dim > 256:
        return "head_dim up to 256, a multiple of 4"
    return None


def register(registry):
    registry.add(
        Variant(
            name="w-warps-split",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="keys dealt to four warps, merged in shared memory",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
