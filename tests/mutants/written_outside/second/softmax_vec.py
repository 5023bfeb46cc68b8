"""Softmax of a row by one block: vectors of 16 bytes from the first aligned element on, single ones before and after."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Launch, Numerics, Plan, Registry, SoftmaxProblem, Variant

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ float widen(float x) { return x; }
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float x, float *to) { *to = x; }
__device__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
__device__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

constexpr int THREADS = 256, WARPS = THREADS / 32, WIDTH = 16 / sizeof(elem);
#define NONE __int_as_float(0xff800000)
struct __align__(16) vector { elem x[WIDTH]; };
struct largest { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
struct total { __device__ float operator()(float a, float b) const { return a + b; } };

template <typename operation>
__device__ float over_block(float x, float start, float *parts)
{
    const operation combine;
    for (int step = 16; step > 0; step >>= 1) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = threadIdx.x < WARPS ? parts[threadIdx.x] : start;
        for (int step = WARPS / 2; step > 0; step >>= 1) x = combine(x, __shfl_xor_sync(0xffffffff, x, step));
        if (threadIdx.x == 0) parts[0] = x;
    }
    __syncthreads();
    x = parts[0];
    __syncthreads();
    return x;
}

extern "C" __global__ __launch_bounds__(THREADS) void softmax_vec(const elem *X, elem *Y, int columns)
{
    __shared__ float parts[WARPS];
    const elem *x = X + (size_t)blockIdx.x * columns;
    elem *y = Y + (size_t)blockIdx.x * columns;
    // Elements before the first aligned one; whole vectors from there; elements behind them.
    const int off = (int)((size_t)blockIdx.x * columns % WIDTH);
    const int head = min(columns, off == 0 ? 0 : WIDTH - off);
    const int vectors = (columns - head) / WIDTH, tail = head + vectors * WIDTH;
    const vector *x_vectors = reinterpret_cast<const vector *>(x + head);
    vector *y_vectors = reinterpret_cast<vector *>(y + head);
    const int t = threadIdx.x;

    float m = NONE;
    if (t < head) m = widen(x[t]);
    for (int i = t; i < vectors; i += THREADS) {
        const vector v = x_vectors[i];
        for (int c = 0; c < WIDTH; ++c) m = fmaxf(m, widen(v.x[c]));
    }
    if (tail + t < columns) m = fmaxf(m, widen(x[tail + t]));
    m = over_block<largest>(m, NONE, parts);
    const float reference = m == NONE ? 0.0f : m;

    float d = 0.0f;
    if (t < head) d = expf(widen(x[t]) - reference);
    for (int i = t; i < vectors; i += THREADS) {
        const vector v = x_vectors[i];
        for (int c = 0; c < WIDTH; ++c) d += expf(widen(v.x[c]) - reference);
    }
    if (tail + t < columns) d += expf(widen(x[tail + t]) - reference);
    d = over_block<total>(d, 0.0f, parts);

    if (t < head) narrow(expf(widen(x[t]) - reference) / d, &y[t]);
    for (int i = t; i < vectors; i += THREADS) {
        const vector v = x_vectors[i];
        vector w;
        for (int c = 0; c < WIDTH; ++c) narrow(expf(widen(v.x[c]) - reference) / d, &w.x[c]);
        y_vectors[i] = w;
    }
    if (tail + t < columns) narrow(expf(widen(x[tail + t]) - reference) / d, &y[tail + t]);
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


@functools.cache
def kernel(dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, "softmax_vec", options=(f"-Delem={STORED[dtype]}",))


def plan(p: SoftmaxProblem) -> Plan:
    return Plan((Launch(kernel(p.dtype), grid=(p.rows,), block=(256,), args=("X", "Y", np.int32(p.columns))),))


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-softmax-vec",
            operation="softmax",
            plan=plan,
            idea="16-byte vectors, reduced over the block",
            numerics=Numerics(functions="accurate", sums="nearest"),
        )
    )
