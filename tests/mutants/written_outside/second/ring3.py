"""K and V come by cp.async into a ring of three stages: one barrier a tile, four lanes a row, vectors of four elements."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
#include <cuda_fp16.h>
constexpr int STAGES = 3, BC = 16, ROWS = 32, THREADS = 128;
constexpr int PER_COPY = 16 / sizeof(elem), COPIES = BC * D / PER_COPY;
constexpr int CHUNKS = (D + 15) / 16;  // of four elements, per lane

__device__ float4 four(const float *x) { return *reinterpret_cast<const float4 *>(x); }
__device__ float4 four(const __half *x)
{
    const uint2 bits = *reinterpret_cast<const uint2 *>(x);
    const float2 a = __half22float2(*reinterpret_cast<const __half2 *>(&bits.x));
    const float2 b = __half22float2(*reinterpret_cast<const __half2 *>(&bits.y));
    return make_float4(a.x, a.y, b.x, b.y);
}
__device__ void store_four(float *to, float4 x) { *reinterpret_cast<float4 *>(to) = x; }
__device__ void store_four(__half *to, float4 x)
{
    reinterpret_cast<__half2 *>(to)[0] = __floats2half2_rn(x.x, x.y);
    reinterpret_cast<__half2 *>(to)[1] = __floats2half2_rn(x.z, x.w);
}
__device__ void copy16(void *to, const void *from, int bytes)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

extern "C" __global__ __launch_bounds__(THREADS) void ring3(
    const elem *__restrict__ Q, const elem *__restrict__ K, const elem *__restrict__ V, elem *__restrict__ O, int q_len,
    int kv_len, int group, int causal, float tau)
{
    __shared__ __align__(16) elem K_ring[STAGES][BC * D];
    __shared__ __align__(16) elem V_ring[STAGES][BC * D];
    const float none = __int_as_float(0xff800000);
    const int lane = threadIdx.x % 4, row = blockIdx.x * ROWS + threadIdx.x / 4;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t kv_head = (size_t)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
    const elem *K_head = K + kv_head * kv_len * D, *V_head = V + kv_head * kv_len * D;

    float4 q[CHUNKS], o[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int e = (c * 4 + lane) * 4;
        q[c] = o[c] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < q_len && e < D) q[c] = four(Q + (head * q_len + row) * D + e);
    }
    const int shift = kv_len - q_len;
    const int seen = causal ? min(kv_len, row + shift + 1) : kv_len;
    const int last_row = min((int)(blockIdx.x + 1) * ROWS, q_len) - 1;
    const int needed = causal ? min(kv_len, last_row + shift + 1) : kv_len;
    const int tiles = max(needed + BC - 1, 0) / BC;

    auto fetch = [&](int tile) {
        if (tile < tiles) {
            const int stage = tile % STAGES;
            for (int i = threadIdx.x; i < COPIES; i += THREADS) {
                const int key = tile * BC + i * PER_COPY / D;
                const size_t from = key < kv_len ? (size_t)tile * BC * D + i * PER_COPY : 0;
                const int bytes = key < kv_len ? 16 : 0;
                copy16(&K_ring[stage][i * PER_COPY], K_head + from, bytes);
                copy16(&V_ring[stage][i * PER_COPY], V_head + from, bytes);
            }
        }
        commit();
    };
    fetch(0);
    fetch(1);

    float m = none, l = 0.0f;
    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        fetch(tile + 2);
        const elem *k_tile = K_ring[tile % STAGES], *v_tile = V_ring[tile % STAGES];
        float s[BC], top = m;
#pragma unroll
        for (int j = 0; j < BC; ++j) {
            float sum = 0.0f;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int e = (c * 4 + lane) * 4;
                if (e < D) {
                    const float4 k = four(k_tile + j * D + e);
                    sum += q[c].x * k.x + q[c].y * k.y + q[c].z * k.z + q[c].w * k.w;
                }
            }
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            s[j] = tile * BC + j < seen ? sum * tau : none;
            top = fmaxf(top, s[j]);
        }
        const float reference = top == none ? 0.0f : top, alpha = expf(m - reference);
        m = top;
        l *= alpha;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            o[c] = make_float4(o[c].x * alpha, o[c].y * alpha, o[c].z * alpha, o[c].w * alpha);
        }
#pragma unroll
        for (int j = 0; j < BC; ++j) {
            if (tile * BC + j >= seen) continue;
            const float p = expf(s[j] - reference);
            l += p;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int e = (c * 4 + lane) * 4;
                if (e < D) {
                    const float4 v = four(v_tile + j * D + e);
                    o[c].x += p * v.x;
                    o[c].y += p * v.y;
                    o[c].z += p * v.z;
                    o[c].w += p * v.w;
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (row >= q_len) return;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int e = (c * 4 + lane) * 4;
        float4 x = make_float4(o[c].x / l, o[c].y / l, o[c].z / l, o[c].w / l);
        if (l == 0.0f) x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (e < D) store_four(O + (head * q_len + row) * D + e, x);
    }
}
"""


@functools.cache
def kernel(head_dim: int, dtype: str) -> Any:
    stored = {"float32": "float", "float16": "__half"}[dtype]
    return cupy.RawKernel(SOURCE, "ring3", options=(f"-DD={head_dim}", f"-Delem={stored}"))


def plan(p: Problem) -> Plan:
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.group, p.causal)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau))
    grid = (-(-p.q_len // 32), p.heads, p.batch)
    return Plan((Launch(kernel(p.head_dim, p.dtype), grid=grid, block=(128,), args=args),))


def supports(p: Problem) -> str | None:
    if p.dtype == "bfloat16":
        return "this kernel knows float32 and float16"
    if p.head_dim * p.itemsize_bytes % 16:
        return "rows have to be whole copies of 16 bytes"
    return None if 3 * 2 * 16 * p.head_dim * p.itemsize_bytes <= 48 * 1024 else "the ring does not fit 48 KiB"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-ring3",
            plan=plan,
            supports=supports,
            idea="cp.async into three stages",
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
