"""w-micro-tile: a block of 64 threads owns 32 rows; each thread keeps 4 x 4 scores, and 4 x (D / 8) of O, in registers."""

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
#define BR 32
#define BC 32
#define NEG __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(64) micro_tile(
    const T* Q, const T* K, const T* V, T* O, float* lse,
    int q_len, int kv_len, int D, int group, float tau, int before, int after)
{
    extern __shared__ float smem[];
    const int ld = D + 1;
    float* q_s = smem;
    float* k_s = q_s + BR * ld;
    float* v_s = k_s + BC * ld;
    float* p_s = v_s + BC * ld;
    const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    const int head = blockIdx.z * gridDim.y + blockIdx.y;
    const int kv_head = blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
    const int first_row = blockIdx.x * BR;
    const int last_row = min(first_row + BR, q_len) - 1;
    const T* q = Q + ((size_t)head * q_len + first_row) * D;
    const T* k = K + (size_t)kv_head * kv_len * D;
    const T* v = V + (size_t)kv_head * kv_len * D;

    for (int e = threadIdx.x; e < BR * D; e += 64)
        q_s[e / D * ld + e % D] = first_row + e / D < q_len ? wide(q[e]) : 0.0f;

    int lo[4], hi[4];
    float m[4], l[4], acc[4][16];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const int row = first_row + ty + 8 * r, diagonal = row + kv_len - q_len;
        lo[r] = row < q_len ? max(0, diagonal - before) : 0;
        hi[r] = row < q_len ? min(kv_len, diagonal + after + 1) : 0;
        m[r] = NEG;
        l[r] = 0.0f;
#pragma unroll
        for (int n = 0; n < 16; ++n) acc[r][n] = 0.0f;
    }
    const int begin = max(0, first_row + kv_len - q_len - before) / BC * BC;
    const int end = min(kv_len, last_row + kv_len - q_len + after + 1);

    for (int j0 = begin; j0 < end; j0 += BC) {
        const int keys = min(BC, kv_len - j0);
        __syncthreads();
        for (int e = threadIdx.x; e < BC * D; e += 64) {
            const bool there = e / D < keys;
            k_s[e / D * ld + e % D] = there ? wide(k[(size_t)j0 * D + e]) : 0.0f;
            v_s[e / D * ld + e % D] = there ? wide(v[(size_t)j0 * D + e]) : 0.0f;
        }
        __syncthreads();

        float s[4][4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int c = 0; c < 4; ++c) s[r][c] = 0.0f;
        for (int x = 0; x < D; ++x) {
            float a[4], b[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) a[r] = q_s[(ty + 8 * r) * ld + x];
#pragma unroll
            for (int c = 0; c < 4; ++c) b[c] = k_s[(tx + 8 * c) * ld + x];
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int c = 0; c < 4; ++c) s[r][c] += a[r] * b[c];
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            float top = NEG;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const int key = j0 + tx + 8 * c;
                s[r][c] = key >= lo[r] && key < hi[r] ? s[r][c] * tau : NEG;
                top = fmaxf(top, s[r][c]);
            }
#pragma unroll
            for (int w = 4; w > 0; w /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, w));
            const float m_new = fmaxf(m[r], top);
            const float base = m_new == NEG ? 0.0f : m_new;
            const float alpha = expf(m[r] - base);
            m[r] = m_new;
            l[r] *= alpha;
#pragma unroll
            for (int n = 0; n < 16; ++n) acc[r][n] *= alpha;
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float p = expf(s[r][c] - base);
                l[r] += p;
                p_s[(ty + 8 * r) * (BC + 1) + tx + 8 * c] = p;
            }
        }
        __syncwarp();
        for (int j = 0; j < keys; ++j) {
            float p[4];
            bool seen[4];
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                p[r] = p_s[(ty + 8 * r) * (BC + 1) + j];
                seen[r] = j0 + j >= lo[r] && j0 + j < hi[r];
            }
#pragma unroll
            for (int n = 0; n < 16; ++n) {
                const int x = tx + 8 * n;
                if (x >= D) break;
                const float value = v_s[j * ld + x];
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    if (seen[r]) acc[r][n] += p[r] * value;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        float sum = l[r];
#pragma unroll
        for (int w = 4; w > 0; w /= 2) sum += __shfl_xor_sync(0xffffffff, sum, w);
        const int row = first_row + ty + 8 * r;
        if (row < q_len) {
            T* o = O + ((size_t)head * q_len + row) * D;
#pragma unroll
            for (int n = 0; n < 16; ++n) {
                const int x = tx + 8 * n;
                if (x < D) o[x] = narrow(sum == 0.0f ? 0.0f : acc[r][n] / sum);
            }
            if (tx == 0) lse[(size_t)head * q_len + row] = m[r] + logf(sum);
        }
    }
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernel(dtype):
    return cupy.RawKernel(CODE, "micro_tile", options=STORED[dtype])


def band(p):
    """How many keys before and behind its place a row sees."""
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)


def plan(p):
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.group)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), *band(p))
    floats = 3 * 32 * (p.head_dim + 1) + 32 * 33
    grid = (-(-p.q_len // 32), p.heads, p.batch)
    launch = Launch(kernel(p.dtype), grid, (64,), args, shared_bytes=4 * floats)
    return Plan((launch,), (Buffer("lse", p.lse_shape, "float32"),))


def supports(p):
    if p.head_dim > 128:
        return "head_dim up to 128"
    return "a grid has at most 65,535 blocks along y and z" if max(p.heads, p.batch) > 65_535 else None


def register(registry):
    registry.add(
        Variant(
            name="w-micro-tile",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="4 x 4 scores a thread, in registers",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
