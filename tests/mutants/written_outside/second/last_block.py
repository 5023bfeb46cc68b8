"""Keys split over blocks; the last block of a row to finish, found by an atomic ticket, combines the parts."""

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

constexpr int WARPS = 4, PER_LANE = (D + 31) / 32;
#define NONE __int_as_float(0xff800000)
__device__ float weight(float x, float m) { return expf(x - (m == NONE ? 0.0f : m)); }

extern "C" __global__ void clear(int *tickets, int rows)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) tickets[i] = 0;
}

// Block (split, row of all heads and sequences).
extern "C" __global__ __launch_bounds__(128) void last_block(
    const elem *__restrict__ Q, const elem *__restrict__ K, const elem *__restrict__ V, elem *__restrict__ O,
    float *__restrict__ lse, float *part_o, float *part_m, float *part_l, int *tickets, int q_len, int kv_len,
    int heads, int kv_heads, int chunk, int causal, float tau)
{
    __shared__ float warp_m[WARPS], warp_l[WARPS], warp_o[WARPS][D];
    __shared__ bool is_last;
    const int splits = gridDim.y, split = blockIdx.y;
    const int row = blockIdx.x % q_len, head = blockIdx.x / q_len % heads, batch = blockIdx.x / q_len / heads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const elem *q_row = Q + (size_t)blockIdx.x * D;
    const size_t kv_head = (size_t)batch * kv_heads + head / (heads / kv_heads);
    const elem *K_head = K + kv_head * kv_len * D, *V_head = V + kv_head * kv_len * D;

    float q[PER_LANE], o[PER_LANE], m = NONE, l = 0.0f;
    for (int c = 0; c < PER_LANE; ++c) {
        const int e = lane + 32 * c;
        q[c] = e < D ? widen(q_row[e]) : 0.0f;
        o[c] = 0.0f;
    }
    const int seen = causal ? min(kv_len, row + kv_len - q_len + 1) : kv_len;
    const int end = min(seen, (split + 1) * chunk);
    for (int key = split * chunk + warp; key < end; key += WARPS) {
        float s = 0.0f;
        for (int c = 0; c < PER_LANE; ++c) {
            const int e = lane + 32 * c;
            if (e < D) s += q[c] * widen(K_head[(size_t)key * D + e]);
        }
        for (int step = 16; step > 0; step /= 2) s += __shfl_xor_sync(0xffffffff, s, step);
        s *= tau;
        const float m_new = fmaxf(m, s), correction = weight(m, m_new), p = weight(s, m_new);
        l = l * correction + p;
        for (int c = 0; c < PER_LANE; ++c) {
            const int e = lane + 32 * c;
            if (e < D) o[c] = o[c] * correction + p * widen(V_head[(size_t)key * D + e]);
        }
        m = m_new;
    }
    if (lane == 0) {
        warp_m[warp] = m;
        warp_l[warp] = l;
    }
    for (int c = 0; c < PER_LANE; ++c) {
        if (lane + 32 * c < D) warp_o[warp][lane + 32 * c] = o[c];
    }
    __syncthreads();
    float block_m = warp_m[0];
    for (int w = 1; w < WARPS; ++w) block_m = fmaxf(block_m, warp_m[w]);
    const size_t part = (size_t)blockIdx.x * splits + split;
    for (int e = threadIdx.x; e < D; e += 128) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += weight(warp_m[w], block_m) * warp_o[w][e];
        part_o[part * D + e] = sum;
    }
    if (threadIdx.x == 0) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += weight(warp_m[w], block_m) * warp_l[w];
        part_m[part] = block_m;
        part_l[part] = sum;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(&tickets[blockIdx.x], 1) == splits - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();

    const size_t first = (size_t)blockIdx.x * splits;
    float top = NONE, sum = 0.0f;
    for (int i = 0; i < splits; ++i) top = fmaxf(top, part_m[first + i]);
    for (int i = 0; i < splits; ++i) sum += weight(part_m[first + i], top) * part_l[first + i];
    for (int e = threadIdx.x; e < D; e += 128) {
        float x = 0.0f;
        for (int i = 0; i < splits; ++i) x += weight(part_m[first + i], top) * part_o[(first + i) * D + e];
        narrow(sum == 0.0f ? 0.0f : x / sum, &O[(size_t)blockIdx.x * D + e]);
    }
    if (threadIdx.x == 0) lse[blockIdx.x] = top + logf(sum);
}
"""
STORED = {"float32": "float", "float16": "__half", "bfloat16": "__nv_bfloat16"}
MOST_SPLITS = 16
FEWEST_KEYS = 32
"""Keys of a split at least, as far as there are so many."""


@functools.cache
def kernel(name: str, head_dim: int, dtype: str) -> Any:
    return cupy.RawKernel(SOURCE, name, options=(f"-DD={head_dim}", f"-Delem={STORED[dtype]}"))


def plan(p: Problem) -> Plan:
    rows = p.batch * p.heads * p.q_len
    chunk = max(FEWEST_KEYS, -(-p.kv_len // MOST_SPLITS))
    splits = -(-p.kv_len // chunk)
    buffers = (
        Buffer("lse", p.lse_shape, "float32"),
        Buffer("part_o", (rows, splits, p.head_dim), "float32"),
        Buffer("part_m", (rows, splits), "float32"),
        Buffer("part_l", (rows, splits), "float32"),
        Buffer("tickets", (rows,), "int32"),
    )
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.heads, p.kv_heads_count, chunk, p.causal)]
    args = ("Q", "K", "V", "O", "lse", "part_o", "part_m", "part_l", "tickets", *sizes, np.float32(p.tau))
    clear, attend = (kernel(name, p.head_dim, p.dtype) for name in ("clear", "last_block"))
    return Plan(
        (
            Launch(clear, grid=(-(-rows // 128),), block=(128,), args=("tickets", np.int32(rows))),
            Launch(attend, grid=(rows, splits), block=(128,), args=args),
        ),
        buffers=buffers,
    )


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-last-block",
            plan=plan,
            idea="split keys, the last block combines",
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
