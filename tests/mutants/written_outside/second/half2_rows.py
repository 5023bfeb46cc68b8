"""A thread per query row, pairs of halves: Q and O in registers, sixteen keys at a time from shared memory."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
#include <cuda_fp16.h>
constexpr int THREADS = 64, CHUNK = 16, PAIRS = D / 2;

extern "C" __global__ __launch_bounds__(THREADS) void half2_rows(
    const __half2 *__restrict__ Q, const __half2 *__restrict__ K, const __half2 *__restrict__ V,
    __half2 *__restrict__ O, float *__restrict__ lse, int q_len, int kv_len, int group, int causal, float tau)
{
    __shared__ __half2 K_s[CHUNK * PAIRS], V_s[CHUNK * PAIRS];
    const float none = __int_as_float(0xff800000);
    const int row = blockIdx.x * THREADS + threadIdx.x;
    const unsigned head = blockIdx.z * gridDim.y + blockIdx.y, kv_head = head / group;
    const __half2 *k_from = K + (size_t)kv_head * kv_len * PAIRS, *v_from = V + (size_t)kv_head * kv_len * PAIRS;
    const size_t place = ((size_t)head * q_len + min(row, q_len - 1)) * PAIRS;

    __half2 q[PAIRS];
    float2 o[PAIRS];
#pragma unroll
    for (int e = 0; e < PAIRS; ++e) {
        q[e] = Q[place + e];
        o[e] = make_float2(0.0f, 0.0f);
    }
    const int keys = causal ? min(kv_len, row + kv_len - q_len + 1) : kv_len;
    const int last = min(q_len, (int)(blockIdx.x + 1) * THREADS) - 1;
    const int all = causal ? min(kv_len, last + kv_len - q_len + 1) : kv_len;  // what the block's last row sees

    float m = none, l = 0.0f;
    for (int base = 0; base < all; base += CHUNK) {
        const int present = min(CHUNK, kv_len - base) * PAIRS;
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * PAIRS; i += THREADS) {
            K_s[i] = i < present ? k_from[(size_t)base * PAIRS + i] : __half2half2(__float2half(0.0f));
            V_s[i] = i < present ? v_from[(size_t)base * PAIRS + i] : __half2half2(__float2half(0.0f));
        }
        __syncthreads();
        float s[CHUNK], top = m;
#pragma unroll
        for (int j = 0; j < CHUNK; ++j) {
            float sum = 0.0f;
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) {
                const float2 a = __half22float2(q[e]), b = __half22float2(K_s[j * PAIRS + e]);
                sum = fmaf(a.x, b.x, sum);
                sum = fmaf(a.y, b.y, sum);
            }
            s[j] = base + j < keys ? sum * tau : none;
            top = fmaxf(top, s[j]);
        }
        const float shift = top == none ? 0.0f : top, scale = expf(m - shift);
        m = top;
        l *= scale;
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) o[e] = make_float2(o[e].x * scale, o[e].y * scale);
#pragma unroll
        for (int j = 0; j < CHUNK; ++j) {
            if (base + j >= keys) continue;
            const float p = expf(s[j] - shift);
            l += p;
#pragma unroll
            for (int e = 0; e < PAIRS; ++e) {
                const float2 v = __half22float2(V_s[j * PAIRS + e]);
                o[e].x = fmaf(p, v.x, o[e].x);
                o[e].y = fmaf(p, v.y, o[e].y);
            }
        }
    }
    if (row < q_len) {
#pragma unroll
        for (int e = 0; e < PAIRS; ++e) {
            const float2 x = l == 0.0f ? make_float2(0.0f, 0.0f) : make_float2(o[e].x / l, o[e].y / l);
            O[place + e] = __float22half2_rn(x);
        }
        lse[(size_t)head * q_len + row] = l == 0.0f ? none : m + logf(l);
    }
}
"""


@functools.cache
def kernel(head_dim: int) -> Any:
    return cupy.RawKernel(SOURCE, "half2_rows", options=(f"-DD={head_dim}",))


def plan(p: Problem) -> Plan:
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.group, p.causal)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau))
    launch = Launch(kernel(p.head_dim), grid=(-(-p.q_len // 64), p.heads, p.batch), block=(64,), args=args)
    return Plan((launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def supports(p: Problem) -> str | None:
    if p.dtype != "float16":
        return "this kernel knows only pairs of halves: choose float16"
    if p.head_dim % 2:
        return "an odd head_dim has half a pair"
    return None if p.head_dim <= 128 else "more than 128 elements a row do not fit the registers"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-half2-rows",
            plan=plan,
            supports=supports,
            idea="a thread per row, half2 loads",
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
