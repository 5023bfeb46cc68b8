"""w-atomic-sums: keys split over blocks that meet in memory by atomicMax on ordered bits, then by float atomicAdd."""

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
#define SPLIT 64
#define WARPS 4
#define NEG __int_as_float(0xff800000)

// Unsigned numbers in the order of the floats.
__device__ unsigned ordered(float x)
{
    const unsigned u = __float_as_uint(x);
    return u >> 31 ? ~u : u | 0x80000000u;
}
__device__ float from_ordered(unsigned u)
{
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

extern "C" __global__ void prepare(unsigned* top, float* sum, float* acc, long long rows, int D)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < rows; i += stride) {
        top[i] = ordered(NEG);
        sum[i] = 0.0f;
    }
    for (long long i = first; i < rows * D; i += stride) acc[i] = 0.0f;
}

struct Place { int row, lo, hi; size_t head, kv_head; };

// The keys of this block that the warp's row sees.
__device__ Place place(int q_len, int kv_len, int heads, int group, int before, int after)
{
    Place p;
    p.row = blockIdx.y * WARPS + threadIdx.x / 32;
    p.head = blockIdx.z;
    p.kv_head = (p.head / heads) * (heads / group) + p.head % heads / group;
    const int diagonal = p.row + kv_len - q_len, first = blockIdx.x * SPLIT;
    p.lo = max(first, diagonal - before);
    p.hi = min(min(first + SPLIT, kv_len), diagonal + after + 1);
    if (p.row >= q_len) p.hi = p.lo;
    return p;
}

__device__ float score(const T* q, const T* k, int D, float tau)
{
    float s = 0.0f;
    for (int x = 0; x < D; ++x) s += wide(q[x]) * wide(k[x]);
    return s * tau;
}

extern "C" __global__ void __launch_bounds__(128) row_top(
    const T* Q, const T* K, unsigned* top, int q_len, int kv_len, int D, int heads, int group, float tau, int before, int after)
{
    const Place p = place(q_len, kv_len, heads, group, before, after);
    const int lane = threadIdx.x % 32;
    if (p.hi <= p.lo) return;
    const T* q = Q + (p.head * q_len + p.row) * D;
    float m = NEG;
    for (int j = p.lo + lane; j < p.hi; j += 32)
        m = fmaxf(m, score(q, K + (p.kv_head * kv_len + j) * D, D, tau));
    __syncwarp();
#pragma unroll
    for (int w = 16; w > 0; w /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, w));
    if (lane == 0) atomicMax(&top[p.head * q_len + p.row], ordered(m));
}

extern "C" __global__ void __launch_bounds__(128) add_weights(
    const T* Q, const T* K, const T* V, const unsigned* top, float* sum, float* acc,
    int q_len, int kv_len, int D, int heads, int group, float tau, int before, int after)
{
    __shared__ float weights[WARPS][SPLIT];
    const Place p = place(q_len, kv_len, heads, group, before, after);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (p.hi <= p.lo) return;
    const T* q = Q + (p.head * q_len + p.row) * D;
    const float m = from_ordered(top[p.head * q_len + p.row]);
    float part = 0.0f;
    for (int j = p.lo + lane; j < p.hi; j += 32) {
        const float w = expf(score(q, K + (p.kv_head * kv_len + j) * D, D, tau) - m);
        weights[warp][j - p.lo] = w;
        part += w;
    }
    __syncwarp();
#pragma unroll
    for (int w = 16; w > 0; w /= 2) part += __shfl_xor_sync(0xffffffff, part, w);
    if (lane == 0) atomicAdd(&sum[p.head * q_len + p.row], part);
    for (int x = lane; x < D; x += 32) {
        float o = 0.0f;
        for (int j = p.lo; j < p.hi; ++j) o += weights[warp][j - p.lo] * wide(V[(p.kv_head * kv_len + j) * D + x]);
        atomicAdd(&acc[(p.head * q_len + p.row) * D + x], o);
    }
}

extern "C" __global__ void finish(
    const unsigned* top, const float* sum, const float* acc, T* O, float* lse, long long rows, int D)
{
    const long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < rows * D; i += stride) {
        const long long row = i / D;
        const float l = sum[row];
        O[i] = narrow(l == 0.0f ? 0.0f : acc[i] / l);
        if (i % D == 0) lse[row] = from_ordered(top[row]) + logf(l);
    }
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernels(dtype):
    names = ("prepare", "row_top", "add_weights", "finish")
    return [cupy.RawKernel(CODE, name, options=STORED[dtype]) for name in names]


def band(p):
    """How many keys before and behind its place a row sees."""
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)


def plan(p):
    prepare, row_top, add_weights, finish = kernels(p.dtype)
    rows = p.batch * p.heads * p.q_len
    total = (np.int64(rows), np.int32(p.head_dim))
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.heads, p.group)]
    rest = (*sizes, np.float32(p.tau), *band(p))
    flat = (min(1024, -(-rows * p.head_dim // 256)),)
    grid = (-(-p.kv_len // 64), -(-p.q_len // 4), p.batch * p.heads)
    launches = (
        Launch(prepare, flat, (256,), ("top", "sum", "acc", *total)),
        Launch(row_top, grid, (128,), ("Q", "K", "top", *rest)),
        Launch(add_weights, grid, (128,), ("Q", "K", "V", "top", "sum", "acc", *rest)),
        Launch(finish, flat, (256,), ("top", "sum", "acc", "O", "lse", *total)),
    )
    buffers = (
        Buffer("top", (rows,), "int32"),
        Buffer("sum", (rows,), "float32"),
        Buffer("acc", (rows, p.head_dim), "float32"),
        Buffer("lse", p.lse_shape, "float32"),
    )
    return Plan(launches, buffers)


def supports(p):
    return "a grid has at most 65,535 blocks along y and z" if max(p.batch * p.heads, p.q_len // 4 + 1) > 65_535 else None


def register(registry):
    registry.add(
        Variant(
            name="w-atomic-sums",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            deterministic=False,
            idea="row maximum by atomicMax, then sums by atomicAdd",
            numerics=Numerics(
                scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
