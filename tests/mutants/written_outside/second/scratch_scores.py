"""Two kernels: a tiled product writes S to memory, then a block per row takes its softmax and multiplies by V."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ float widen(float x) { return x; }
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float x, float *to) { *to = x; }
__device__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
__device__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

constexpr int TILE = 16, WARPS = 4;

// Block (16 keys, 16 rows, head of all sequences).
extern "C" __global__ void scores(const elem *__restrict__ Q, const elem *__restrict__ K, float *__restrict__ S, int q_len,
                                  int kv_len, int d, int heads, int kv_heads, float tau, int before, int after)
{
    __shared__ float A[TILE][TILE + 1], B[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty, key = blockIdx.x * TILE + tx;
    const int b = blockIdx.z / heads, h = blockIdx.z % heads;
    const elem *q = Q + (size_t)blockIdx.z * q_len * d;
    const elem *k = K + ((size_t)b * kv_heads + h * kv_heads / heads) * kv_len * d;
    const int key_row = blockIdx.x * TILE + ty;  // the row of K that this thread brings
    float sum = 0.0f;
    for (int start = 0; start < d; start += TILE) {
        const int e = start + tx;
        A[ty][tx] = row < q_len && e < d ? widen(q[(size_t)row * d + e]) : 0.0f;
        B[ty][tx] = key_row < kv_len && e < d ? widen(k[(size_t)key_row * d + e]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += A[ty][i] * B[tx][i];
        __syncthreads();
    }
    const int place = row + kv_len - q_len;
    if (row < q_len && key < kv_len && key >= place - before && key <= place + after) {
        S[((size_t)blockIdx.z * q_len + row) * kv_len + key] = tau * sum;
    }
}

__device__ float over_block(float x, bool is_sum, float *parts)
{
    for (int step = 16; step > 0; step >>= 1) {
        const float y = __shfl_down_sync(0xffffffff, x, step);
        x = is_sum ? x + y : fmaxf(x, y);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int w = 1; w < WARPS; ++w) x = is_sum ? x + parts[w] : fmaxf(x, parts[w]);
    return x;
}

// Block (row, head of all sequences).
extern "C" __global__ __launch_bounds__(128) void softmax_times_v(
    float *S, const elem *__restrict__ V, elem *__restrict__ O, float *__restrict__ lse, int q_len, int kv_len, int d,
    int heads, int kv_heads, int before, int after)
{
    __shared__ float parts[WARPS];
    const int row = blockIdx.x, b = blockIdx.y / heads, h = blockIdx.y % heads;
    const int first = max(0, row + kv_len - q_len - before), end = min(kv_len, row + kv_len - q_len + after + 1);
    const size_t stat = (size_t)blockIdx.y * q_len + row;
    float *s = S + stat * kv_len;
    const elem *v = V + ((size_t)b * kv_heads + h * kv_heads / heads) * kv_len * d;

    float m = __int_as_float(0xff800000), l = 0.0f;
    for (int j = first + threadIdx.x; j < end; j += 128) m = fmaxf(m, s[j]);
    m = over_block(m, false, parts);
    const float reference = m == __int_as_float(0xff800000) ? 0.0f : m;
    for (int j = first + threadIdx.x; j < end; j += 128) {
        const float p = expf(s[j] - reference);
        s[j] = p;
        l += p;
    }
    l = over_block(l, true, parts);
    __syncthreads();
    for (int e = threadIdx.x; e < d; e += 128) {
        float sum = 0.0f;
        for (int j = first; j < end; ++j) sum += s[j] * widen(v[(size_t)j * d + e]);
        narrow(first < end ? sum / l : 0.0f, &O[stat * d + e]);
    }
    if (threadIdx.x == 0) lse[stat] = m + logf(l);
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


@functools.cache
def kernel(name: str, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, name, options=(f"-Delem={STORED[dtype]}",))


def band(p: Problem) -> tuple[np.int32, np.int32]:
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    lefts = [left for left, _ in limits if left is not None]
    rights = [right for _, right in limits if right is not None]
    return np.int32(min([beyond, *lefts])), np.int32(min([beyond, *rights]))


def plan(p: Problem) -> Plan:
    lens = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.head_dim), np.int32(p.heads), np.int32(p.kv_heads_count))
    buffers = (
        Buffer("S", (p.batch, p.heads, p.q_len, p.kv_len), "float32"),
        Buffer("lse", p.lse_shape, "float32"),
    )
    every = p.batch * p.heads
    tiles = (-(-p.kv_len // 16), -(-p.q_len // 16), every)
    first = Launch(
        kernel("scores", p.dtype),
        grid=tiles,
        block=(16, 16),
        args=("Q", "K", "S", *lens, np.float32(p.tau), *band(p)),
    )
    second = Launch(
        kernel("softmax_times_v", p.dtype),
        grid=(p.q_len, every),
        block=(128,),
        args=("S", "V", "O", "lse", *lens, *band(p)),
    )
    return Plan((first, second), buffers=buffers)


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-scratch-scores",
            plan=plan,
            takes=("causal", "window"),
            idea="scores in memory, two kernels",
            numerics=Numerics(
                scores="float32",
                weights="float32",
                functions="accurate",
                sums="nearest",
                one_score=True,
                divides_last=True,
            ),
        )
    )
