"""Four query rows a warp: eight lanes share a row, each with every eighth element of Q and O in registers."""

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

constexpr int ROWS = 16;            // per block of 128 threads
constexpr int KEYS = 32;            // per tile
constexpr int PARTS = (D + 7) / 8;  // elements per lane

extern "C" __global__ __launch_bounds__(128) void eight_lanes(
    const elem *__restrict__ Q, const elem *__restrict__ K, const elem *__restrict__ V, elem *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, int before, int after)
{
    __shared__ float K_tile[KEYS][D + 1], V_tile[KEYS][D + 1];
    const float minus_infinity = __int_as_float(0xff800000);
    const int lane = threadIdx.x % 8, slot = threadIdx.x / 8;
    const int first_row = blockIdx.x * ROWS, row = first_row + slot;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t kv_head = (size_t)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
    const elem *K_head = K + kv_head * kv_len * D, *V_head = V + kv_head * kv_len * D;

    float q[PARTS], o[PARTS];
#pragma unroll
    for (int c = 0; c < PARTS; ++c) {
        const int e = lane + 8 * c;
        q[c] = row < q_len && e < D ? widen(Q[(head * q_len + row) * D + e]) : 0.0f;
        o[c] = 0.0f;
    }
    const int shift = kv_len - q_len;
    const int first = row + shift - before, last = row + shift + after;  // the keys that this row sees
    const int last_row = min(first_row + ROWS, q_len) - 1;
    const int begin = max(first_row + shift - before, 0) / KEYS * KEYS;
    const int end = min(last_row + shift + after + 1, kv_len);

    float m = minus_infinity, l = 0.0f;
    for (int base = begin; base < end; base += KEYS) {
        const int keys = min(KEYS, kv_len - base);
        __syncthreads();
        for (int i = threadIdx.x; i < keys * D; i += 128) {
            K_tile[i / D][i % D] = widen(K_head[(size_t)base * D + i]);
            V_tile[i / D][i % D] = widen(V_head[(size_t)base * D + i]);
        }
        __syncthreads();
        for (int j = 0; j < keys; ++j) {
            float s = 0.0f;
#pragma unroll
            for (int c = 0; c < PARTS; ++c) {
                if (lane + 8 * c < D) s += q[c] * K_tile[j][lane + 8 * c];
            }
            s += __shfl_xor_sync(0xffffffff, s, 4);
            s += __shfl_xor_sync(0xffffffff, s, 2);
            s += __shfl_xor_sync(0xffffffff, s, 1);
            if (base + j < first || base + j > last) continue;
            s *= tau;
            const float m_new = fmaxf(m, s);
            const float reference = m_new == minus_infinity ? 0.0f : m_new;
            const float correction = expf(m - reference), p = expf(s - reference);
            l = l * correction + p;
#pragma unroll
            for (int c = 0; c < PARTS; ++c) {
                if (lane + 8 * c < D) o[c] = o[c] * correction + p * V_tile[j][lane + 8 * c];
            }
            m = m_new;
        }
    }
    if (row >= q_len) return;
#pragma unroll
    for (int c = 0; c < PARTS; ++c) {
        const int e = lane + 8 * c;
        if (e < D) narrow(l == 0.0f ? 0.0f : o[c] / l, &O[(head * q_len + row) * D + e]);
    }
    if (lane == 0) lse[head * q_len + row] = m + logf(l);
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


@functools.cache
def kernel(head_dim: int, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, "eight_lanes", options=(f"-DD={head_dim}", f"-Delem={STORED[dtype]}"))


def plan(p: Problem) -> Plan:
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group))
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(before), np.int32(after))
    launch = Launch(kernel(p.head_dim, p.dtype), grid=(-(-p.q_len // 16), p.heads, p.batch), block=(128,), args=args)
    return Plan((launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def supports(p: Problem) -> str | None:
    return None if p.head_dim <= 128 else "more than 128 elements a row do not fit the registers"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-eight-lanes",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="four rows a warp",
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
