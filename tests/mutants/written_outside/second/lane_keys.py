"""Persistent blocks over tiles, the heaviest causal ones first; a lane per key for the scores, per column for O."""

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

constexpr int WARPS = 4, OWN = 4, ROWS = WARPS * OWN;  // each warp owns four rows of a tile
constexpr int COLUMNS = (D + 31) / 32;
#define FULL 0xffffffffu

__device__ float warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(FULL, x, step));
    return x;
}
__device__ float warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL, x, step);
    return x;
}

extern "C" __global__ __launch_bounds__(128) void lane_keys(
    const elem *__restrict__ Q, const elem *__restrict__ K, const elem *__restrict__ V, elem *__restrict__ O,
    float *__restrict__ lse, int heads, int batch, int q_len, int kv_len, int group, int causal, float tau)
{
    __shared__ float q_s[ROWS][D], k_s[32][D + 1], v_s[32][D];
    const float lowest = __int_as_float(0xff800000);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int row_tiles = (q_len + ROWS - 1) / ROWS;
    const long long tiles = (long long)row_tiles * heads * batch;

    for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int all_heads = heads * batch;
        const int row_tile = row_tiles - 1 - (int)(tile / all_heads), head = (int)(tile % all_heads);
        const int row0 = row_tile * ROWS;
        const size_t q_from = ((size_t)head * q_len + row0) * D, kv_from = (size_t)(head / group) * kv_len * D;
        const int rows = min(ROWS, q_len - row0);
        __syncthreads();
        for (int i = threadIdx.x; i < ROWS * D; i += 128) q_s[i / D][i % D] = i < rows * D ? widen(Q[q_from + i]) : 0.0f;

        float o[OWN][COLUMNS], m[OWN], l[OWN];
        for (int r = 0; r < OWN; ++r) {
            m[r] = lowest;
            l[r] = 0.0f;
            for (int c = 0; c < COLUMNS; ++c) o[r][c] = 0.0f;
        }
        const int needed = causal ? min(kv_len, row0 + rows + kv_len - q_len) : kv_len;
        for (int k0 = 0; k0 < needed; k0 += 32) {
            const int present = min(32, kv_len - k0);
            __syncthreads();
            for (int i = threadIdx.x; i < 32 * D; i += 128) {
                const bool there = i < present * D;
                k_s[i / D][i % D] = there ? widen(K[kv_from + (size_t)k0 * D + i]) : 0.0f;
                v_s[i / D][i % D] = there ? widen(V[kv_from + (size_t)k0 * D + i]) : 0.0f;
            }
            __syncthreads();
            for (int r = 0; r < OWN; ++r) {
                const int own = warp * OWN + r;
                const int visible = causal ? min(kv_len, row0 + own + kv_len - q_len + 1) : kv_len;
                const int count = min(32, visible - k0);
                if (count <= 0) continue;
                float s = 0.0f;
                for (int e = 0; e < D; ++e) s += q_s[own][e] * k_s[lane][e];
                s = lane < count ? s * tau : lowest;
                const float m_new = fmaxf(m[r], warp_max(s));
                const float zero_point = m_new == lowest ? 0.0f : m_new;
                const float alpha = expf(m[r] - zero_point), p = expf(s - zero_point);
                l[r] = l[r] * alpha + warp_sum(p);
                m[r] = m_new;
                for (int c = 0; c < COLUMNS; ++c) o[r][c] *= alpha;
                for (int j = 0; j < count; ++j) {
                    const float p_j = __shfl_sync(FULL, p, j);
                    for (int c = 0; c < COLUMNS; ++c) {
                        if (lane + 32 * c < D) o[r][c] += p_j * v_s[j][lane + 32 * c];
                    }
                }
            }
        }
        for (int r = 0; r < OWN; ++r) {
            const int row = row0 + warp * OWN + r;
            if (row >= q_len) break;
            const size_t to = (size_t)head * q_len + row;
            for (int c = 0; c < COLUMNS; ++c) {
                if (lane + 32 * c < D) narrow(l[r] == 0.0f ? 0.0f : o[r][c] / l[r], &O[to * D + lane + 32 * c]);
            }
            if (lane == 0) lse[to] = m[r] + logf(l[r]);
        }
    }
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
MOST_BLOCKS = 264
"""Two for each multiprocessor of an H100."""


@functools.cache
def kernel(head_dim: int, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, "lane_keys", options=(f"-DD={head_dim}", f"-Delem={STORED[dtype]}"))


def plan(p: Problem) -> Plan:
    tiles = -(-p.q_len // 16) * p.heads * p.batch
    sizes = [np.int32(n) for n in (p.heads, p.batch, p.q_len, p.kv_len, p.group, p.causal)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau))
    launch = Launch(kernel(p.head_dim, p.dtype), grid=(min(tiles, MOST_BLOCKS),), block=(128,), args=args)
    return Plan((launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def supports(p: Problem) -> str | None:
    return None if p.head_dim <= 128 else "tiles of more than 128 elements a row do not fit shared memory"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-lane-keys",
            plan=plan,
            supports=supports,
            idea="persistent blocks, a lane per key",
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
