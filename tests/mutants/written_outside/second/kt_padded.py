"""K transposed in shared memory, padded against bank conflicts; 32 x 32 scores, 2 x 2 of them a thread."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
__device__ float widen(float x) { return x; }
__device__ float widen(__half x) { return __half2float(x); }
__device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void narrow(float x, float *to) { *to = x; }
__device__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
__device__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }

constexpr int BR = 32, BC = 32, PAD = BC + 1, COLUMNS = (D + 15) / 16;

__device__ float row_max(float x)
{
    for (int step = 8; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
    return x;
}
__device__ float row_sum(float x)
{
    for (int step = 8; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffff, x, step);
    return x;
}

extern "C" __global__ __launch_bounds__(256) void kt_padded(
    const elem *__restrict__ Q, const elem *__restrict__ K, const elem *__restrict__ V, elem *__restrict__ O, int heads,
    int kv_heads, int q_len, int kv_len, float tau, int left, int right)
{
    __shared__ float Qs[BR][D + 1];
    __shared__ float KV[D * PAD > BC * D ? D * PAD : BC * D];  // K transposed, D x PAD; then V, BC x D
    __shared__ float P[BR][PAD];
    const float NEG_INF = __int_as_float(0xff800000);
    const int tx = threadIdx.x, ty = threadIdx.y, tid = ty * 16 + tx;
    const int row0 = blockIdx.x * BR, h = blockIdx.y, b = blockIdx.z;
    const int kvh = h / (heads / kv_heads);
    const size_t q_base = ((size_t)b * heads + h) * q_len * D;
    const size_t kv_base = ((size_t)b * kv_heads + kvh) * kv_len * D;
    const int offset = kv_len - q_len;

    for (int i = tid; i < BR * D; i += 256) {
        const int r = row0 + i / D;
        Qs[i / D][i % D] = r < q_len ? widen(Q[q_base + (size_t)row0 * D + i]) : 0.0f;
    }
    float o[2][COLUMNS] = {}, m[2] = {NEG_INF, NEG_INF}, l[2] = {0.0f, 0.0f};

    int begin = row0 + offset - left;
    begin = begin > 0 ? begin / BC * BC : 0;
    const int stop = min(kv_len, min(row0 + BR, q_len) + offset + right);
    for (int k0 = begin; k0 < stop; k0 += BC) {
        const int live = min(BC, kv_len - k0);
        __syncthreads();
        for (int i = tid; i < BC * D; i += 256) {
            const int key = i / D, e = i % D;
            KV[e * PAD + key] = key < live ? widen(K[kv_base + (size_t)k0 * D + i]) : 0.0f;
        }
        __syncthreads();
        float s[2][2] = {};
        for (int e = 0; e < D; ++e) {
            const float q0 = Qs[ty][e], q1 = Qs[ty + 16][e];
            const float k_0 = KV[e * PAD + tx], k_1 = KV[e * PAD + tx + 16];
            s[0][0] += q0 * k_0;
            s[0][1] += q0 * k_1;
            s[1][0] += q1 * k_0;
            s[1][1] += q1 * k_1;
        }
        __syncthreads();
        for (int i = tid; i < live * D; i += 256) KV[i] = widen(V[kv_base + (size_t)k0 * D + i]);
        for (int i = 0; i < 2; ++i) {
            const int place = row0 + ty + 16 * i + offset;
            float top = NEG_INF;
            for (int j = 0; j < 2; ++j) {
                const int key = k0 + tx + 16 * j;
                const bool sees = key < kv_len && key >= place - left && key <= place + right;
                s[i][j] = sees ? s[i][j] * tau : NEG_INF;
                top = fmaxf(top, s[i][j]);
            }
            const float m_new = fmaxf(m[i], row_max(top));
            const float reference = m_new == NEG_INF ? 0.0f : m_new;
            const float alpha = expf(m[i] - reference);
            float sum = 0.0f;
            for (int j = 0; j < 2; ++j) {
                const float p = expf(s[i][j] - reference);
                P[ty + 16 * i][tx + 16 * j] = p;
                sum += p;
            }
            l[i] = l[i] * alpha + row_sum(sum);
            m[i] = m_new;
            for (int c = 0; c < COLUMNS; ++c) o[i][c] *= alpha;
        }
        __syncthreads();
        for (int i = 0; i < 2; ++i) {
            const int place = row0 + ty + 16 * i + offset;
            const int from = max(0, place - left - k0), to = min(live, place + right + 1 - k0);
            for (int j = from; j < to; ++j) {
                const float p = P[ty + 16 * i][j];
                for (int c = 0; c < COLUMNS; ++c) {
                    if (tx + 16 * c < D) o[i][c] += p * KV[j * D + tx + 16 * c];
                }
            }
        }
    }
    for (int i = 0; i < 2; ++i) {
        const int r = row0 + ty + 16 * i;
        if (r >= q_len) continue;
        for (int c = 0; c < COLUMNS; ++c) {
            const int e = tx + 16 * c;
            if (e < D) narrow(l[i] > 0.0f || l[i] != l[i] ? o[i][c] / l[i] : 0.0f, &O[q_base + (size_t)r * D + e]);
        }
    }
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}


@functools.cache
def kernel(head_dim: int, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, "kt_padded", options=(f"-DD={head_dim}", f"-Delem={STORED[dtype]}"))


def plan(p: Problem) -> Plan:
    left = right = p.q_len + p.kv_len
    for part in p.mask.parts:
        before, after = part.limits
        left = left if before is None else min(left, before)
        right = right if after is None else min(right, after)
    sizes = [np.int32(n) for n in (p.heads, p.kv_heads_count, p.q_len, p.kv_len)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), np.int32(left), np.int32(right))
    grid = (-(-p.q_len // 32), p.heads, p.batch)
    return Plan((Launch(kernel(p.head_dim, p.dtype), grid=grid, block=(16, 16), args=args),))


def supports(p: Problem) -> str | None:
    return None if p.head_dim <= 128 else "tiles of more than 128 elements a row do not fit shared memory"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-kt-padded",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="K transposed in shared memory",
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
