"""w-softmax-split: rows cut into chunks of 1,024 columns, a block for each; their maxima and sums meet in a second launch."""

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
#define CHUNK 1024
#define THREADS 128
#define EACH 8
#define NEG __int_as_float(0xff800000)
struct __align__(4 * sizeof(T)) Four { T at[4]; };

__device__ float below(float x, float m) { return expf(x - (m == NEG ? 0.0f : m)); }

// Eight columns a thread: two vectors of four, 512 columns apart, where the row starts at a whole vector.
__device__ void load(float (&x)[EACH], const T* row, int first, int columns)
{
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = first + half * 512 + threadIdx.x * 4;
        if (columns % 4 == 0 && at + 4 <= columns) {
            const Four four = *reinterpret_cast<const Four*>(row + at);
#pragma unroll
            for (int e = 0; e < 4; ++e) x[half * 4 + e] = wide(four.at[e]);
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) x[half * 4 + e] = at + e < columns ? wide(row[at + e]) : NEG;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) chunk_stats(const T* X, float* tops, float* sums, int columns)
{
    __shared__ float m_s[4], d_s[4];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T* row = X + (size_t)blockIdx.x * columns;
    float x[EACH];
    load(x, row, blockIdx.y * CHUNK, columns);
    float m = NEG, d = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) m = fmaxf(m, x[i]);
#pragma unroll
    for (int w = 16; w > 0; w /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, w));
    if (lane == 0) m_s[warp] = m;
    __syncthreads();
    m = fmaxf(fmaxf(m_s[0], m_s[1]), fmaxf(m_s[2], m_s[3]));
#pragma unroll
    for (int i = 0; i < EACH; ++i) d += below(x[i], m);
#pragma unroll
    for (int w = 16; w > 0; w /= 2) d += __shfl_xor_sync(0xffffffff, d, w);
    if (lane == 0) d_s[warp] = d;
    __syncthreads();
    if (threadIdx.x == 0) {
        const size_t at = (size_t)blockIdx.x * gridDim.y + blockIdx.y;
        tops[at] = m;
        sums[at] = d_s[0] + d_s[1] + d_s[2] + d_s[3];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) chunk_write(const T* X, const float* tops, const float* sums, T* Y, int columns)
{
    __shared__ float m_all, d_all;
    const int chunks = gridDim.y;
    const size_t first_stat = (size_t)blockIdx.x * chunks;
    if (threadIdx.x < 32) {
        float m = NEG, d = 0.0f;
        for (int c = threadIdx.x; c < chunks; c += 32) m = fmaxf(m, tops[first_stat + c]);
        __syncwarp();
#pragma unroll
        for (int w = 16; w > 0; w /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, w));
        for (int c = threadIdx.x; c < chunks; c += 32) d += sums[first_stat + c] * below(tops[first_stat + c], m);
        __syncwarp();
#pragma unroll
        for (int w = 16; w > 0; w /= 2) d += __shfl_xor_sync(0xffffffff, d, w);
        if (threadIdx.x == 0) {
            m_all = m;
            d_all = d;
        }
    }
    __syncthreads();
    const T* row = X + (size_t)blockIdx.x * columns;
    T* out = Y + (size_t)blockIdx.x * columns;
    float x[EACH];
    load(x, row, blockIdx.y * CHUNK, columns);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int at = blockIdx.y * CHUNK + half * 512 + threadIdx.x * 4;
        Four four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.at[e] = narrow(below(x[half * 4 + e], m_all) / d_all);
        if (columns % 4 == 0 && at + 4 <= columns) {
            *reinterpret_cast<Four*>(out + at) = four;
        } else {
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (at + e < columns) out[at + e] = four.at[e];
        }
    }
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernels(dtype):
    return [cupy.RawKernel(CODE, name, options=STORED[dtype]) for name in ("chunk_stats", "chunk_write")]


def plan(p):
    stats, write = kernels(p.dtype)
    chunks = -(-p.columns // 1024)
    columns = np.int32(p.columns)
    launches = (
        Launch(stats, (p.rows, chunks), (128,), ("X", "tops", "sums", columns)),
        Launch(write, (p.rows, chunks), (128,), ("X", "tops", "sums", "Y", columns)),
    )
    shape = (p.rows, chunks)
    return Plan(launches, (Buffer("tops", shape, "float32"), Buffer("sums", shape, "float32")))


def supports(p):
    return "a grid has at most 65,535 blocks along y" if -(-p.columns // 1024) > 65_535 else None


def register(registry):
    registry.add(
        Variant(
            name="w-softmax-split",
            operation="softmax",
            plan=plan,
            supports=supports,
            idea="a block per 1,024 columns, statistics in memory",
            numerics=Numerics(functions="accurate", sums="nearest"),
        )
    )
