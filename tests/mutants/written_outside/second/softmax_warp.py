"""Softmax of a row by one warp: rows of up to 1,024 columns stay in registers, longer ones are read again."""

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
#define NONE __int_as_float(0xff800000)
#define FULL 0xffffffffu
constexpr int KEPT = 32;  // columns of a lane that stay in registers

__device__ float below(float x, float m) { return expf(x - (m == NONE ? 0.0f : m)); }

extern "C" __global__ void short_rows(const elem *__restrict__ X, elem *__restrict__ Y, int rows, int columns)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;
    const elem *x = X + (size_t)row * columns;
    float kept[KEPT], m = NONE, d = 0.0f;
#pragma unroll
    for (int c = 0; c < KEPT; ++c) {
        kept[c] = lane + 32 * c < columns ? widen(x[lane + 32 * c]) : NONE;
        m = fmaxf(m, kept[c]);
    }
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(FULL, m, step));
#pragma unroll
    for (int c = 0; c < KEPT; ++c) {
        kept[c] = below(kept[c], m);
        d += kept[c];
    }
    for (int step = 16; step > 0; step /= 2) d += __shfl_xor_sync(FULL, d, step);
#pragma unroll
    for (int c = 0; c < KEPT; ++c) {
        if (lane + 32 * c < columns) narrow(kept[c] / d, &Y[(size_t)row * columns + lane + 32 * c]);
    }
}

extern "C" __global__ void long_rows(const elem *__restrict__ X, elem *__restrict__ Y, int rows, int columns)
{
    const int lane = threadIdx.x;
    for (int row = blockIdx.x * blockDim.y + threadIdx.y; row < rows; row += gridDim.x * blockDim.y) {
        const elem *x = X + (size_t)row * columns;
        float m = NONE, d = 0.0f;
        for (int j = lane; j < columns; j += 32) {
            const float x_j = widen(x[j]), m_new = fmaxf(m, x_j);
            d = d * below(m, m_new) + below(x_j, m_new);
            m = m_new;
        }
        __syncwarp();
        for (int step = 16; step > 0; step /= 2) {
            const float m_other = __shfl_xor_sync(FULL, m, step), d_other = __shfl_xor_sync(FULL, d, step);
            const float m_new = fmaxf(m, m_other);
            d = d * below(m, m_new) + d_other * below(m_other, m_new);
            m = m_new;
        }
        for (int j = lane; j < columns; j += 32) {
            narrow(below(widen(x[j]), m) / d, &Y[(size_t)row * columns + j]);
        }
    }
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
WARPS = 4
MOST_BLOCKS = 512


@functools.cache
def kernel(name: str, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, name, options=(f"-Delem={STORED[dtype]}",))


def plan(p: SoftmaxProblem) -> Plan:
    blocks = -(-p.rows // WARPS)
    fits = p.columns <= 32 * 32
    grid = blocks if fits else min(blocks, MOST_BLOCKS)
    args = ("X", "Y", np.int32(p.rows), np.int32(p.columns))
    name = "short_rows" if fits else "long_rows"
    return Plan((Launch(kernel(name, p.dtype), grid=(grid,), block=(32, WARPS), args=args),))


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-softmax-warp",
            operation="softmax",
            plan=plan,
            idea="a warp per row, in registers where it fits",
            numerics=Numerics(functions="accurate", sums="nearest"),
        )
    )
