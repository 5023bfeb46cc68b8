"""Tensor cores, raw mma.sync m16n8k16: the four warps of a block share 16 query rows and split their keys."""

from __future__ import annotations

import functools
from typing import Any

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Variant

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
constexpr int WARPS = 4, LD = D + 8, TILE = 16 * LD;  // elements of a tile of 16 rows in shared memory
#define NONE __int_as_float(0xff800000)
typedef unsigned short bits16;

__device__ unsigned address(const bits16 *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void matrices(unsigned (&x)[4], const bits16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address(p)) : "memory");
}
__device__ void matrices_transposed(unsigned (&x)[4], const bits16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address(p)) : "memory");
}
__device__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ unsigned pack(float low, float high)
{
    unsigned x;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
__device__ bool wild(bits16 x) { return (x & EXPONENT) == EXPONENT; }  // infinity or NaN
__device__ float widen(bits16 x)
{
    return EXPONENT == 0x7c00 ? __half2float(__ushort_as_half(x)) : __uint_as_float((unsigned)x << 16);
}
__device__ float weight(float s, float m) { return expf(s - (m == NONE ? 0.0f : m)); }

// 16 rows from `from` on, of which `there` exist; zeros below.
__device__ void load(bits16 *tile, const bits16 *from, int there, int thread, int threads)
{
    for (int i = thread; i < 16 * D / 8; i += threads) {
        const int r = i / (D / 8), e = i % (D / 8) * 8;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (r < there) x = *reinterpret_cast<const uint4 *>(from + (size_t)r * D + e);
        *reinterpret_cast<uint4 *>(tile + r * LD + e) = x;
    }
}

extern "C" __global__ __launch_bounds__(128) void mma_keys(
    const bits16 *__restrict__ Q, const bits16 *__restrict__ K, const bits16 *__restrict__ V, bits16 *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, int causal, float tau)
{
    __shared__ __align__(16) bits16 q_tile[TILE];
    __shared__ __align__(16) bits16 pool[2 * WARPS * TILE];  // K and V of each warp; then O of each warp, in float32
    __shared__ float all_m[WARPS][16], all_l[WARPS][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * 16;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t kv_from = ((size_t)blockIdx.z * (gridDim.y / group) + blockIdx.y / group) * kv_len * D;
    bits16 *k_tile = pool + 2 * warp * TILE, *v_tile = k_tile + TILE;

    load(q_tile, Q + (head * q_len + row0) * D, q_len - row0, threadIdx.x, 128);
    __syncthreads();
    unsigned q[D / 16][4];
#pragma unroll
    for (int k = 0; k < D / 16; ++k) matrices(q[k], q_tile + lane % 16 * LD + k * 16 + lane / 16 * 8);

    int seen[2];
    for (int i = 0; i < 2; ++i) seen[i] = causal ? min(kv_len, row0 + g + 8 * i + kv_len - q_len + 1) : kv_len;
    const int fewest = causal ? min(kv_len, row0 + kv_len - q_len + 1) : kv_len;
    const int most = causal ? min(kv_len, min(row0 + 16, q_len) + kv_len - q_len) : kv_len;

    float o[D / 8][4] = {}, m[2] = {NONE, NONE}, l[2] = {0.0f, 0.0f};
    for (int base = warp * 16; base < most; base += WARPS * 16) {
        __syncwarp();
        load(k_tile, K + kv_from + (size_t)base * D, kv_len - base, lane, 32);
        load(v_tile, V + kv_from + (size_t)base * D, kv_len - base, lane, 32);
        __syncwarp();

        float s[2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            unsigned b[4];
            matrices(b, k_tile + (lane % 8 + lane / 16 * 8) * LD + k * 16 + lane / 8 % 2 * 8);
            mma(s[0], q[k], b[0], b[1]);
            mma(s[1], q[k], b[2], b[3]);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float top = m[i];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &x = s[n][2 * i + c];
                    x = base + n * 8 + t * 2 + c < seen[i] ? x * tau : NONE;
                    top = fmaxf(top, x);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
            const float alpha = weight(m[i], top);
            float sum = 0.0f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &x = s[n][2 * i + c];
                    x = weight(x, top);
                    sum += x;
                }
            }
            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            l[i] = l[i] * alpha + sum;
            m[i] = top;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                o[n][2 * i] *= alpha;
                o[n][2 * i + 1] *= alpha;
            }
        }
        // Where some rows see a key and others do not, 0 times what is not finite would reach those that do not.
        if (base + 16 > fewest) {
            bool any = false;
            for (int i = lane; i < 16 * D; i += 32) any |= wild(v_tile[i / D * LD + i % D]);
            if (__any_sync(0xffffffff, any)) {
#pragma unroll
                for (int n = 0; n < D / 8; ++n) {
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        for (int key = 0; key < 16; ++key) {
                            const bits16 v = v_tile[key * LD + n * 8 + t * 2 + c % 2];
                            if (wild(v) && base + key < seen[c / 2]) o[n][c] += widen(v);
                        }
                    }
                }
                __syncwarp();
                for (int i = lane; i < 16 * D; i += 32) {
                    bits16 &v = v_tile[i / D * LD + i % D];
                    if (wild(v)) v = 0;
                }
                __syncwarp();
            }
        }
        const unsigned p[4] = {pack(s[0][0], s[0][1]), pack(s[0][2], s[0][3]), pack(s[1][0], s[1][1]),
                               pack(s[1][2], s[1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            unsigned b[4];
            matrices_transposed(b, v_tile + lane % 16 * LD + n * 16 + lane / 16 * 8);
            mma(o[2 * n], p, b[0], b[1]);
            mma(o[2 * n + 1], p, b[2], b[3]);
        }
    }

    if (t == 0) {
        for (int i = 0; i < 2; ++i) {
            all_m[warp][g + 8 * i] = m[i];
            all_l[warp][g + 8 * i] = l[i];
        }
    }
    __syncthreads();
    float *parts = reinterpret_cast<float *>(pool);  // WARPS x 16 x D
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) parts[(warp * 16 + g + c / 2 * 8) * D + n * 8 + t * 2 + c % 2] = o[n][c];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 16 * D / 2; i += 128) {
        const int r = i / (D / 2), e = i % (D / 2) * 2;
        if (row0 + r >= q_len) break;
        float top = NONE, sum = 0.0f, x = 0.0f, y = 0.0f;
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, all_m[w][r]);
        for (int w = 0; w < WARPS; ++w) {
            const float part = weight(all_m[w][r], top);
            sum += part * all_l[w][r];
            x += part * parts[(w * 16 + r) * D + e];
            y += part * parts[(w * 16 + r) * D + e + 1];
        }
        const bool empty = sum == 0.0f;
        *reinterpret_cast<unsigned *>(O + (head * q_len + row0 + r) * D + e) =
            pack(empty ? 0.0f : x / sum, empty ? 0.0f : y / sum);
        if (e == 0) lse[head * q_len + row0 + r] = top + logf(sum);
    }
}
"""
TYPES = {"float16": ("f16", "0x7c00"), "bfloat16": ("bf16", "0x7f80")}


@functools.cache
def kernel(head_dim: int, dtype: str) -> Any:
    name, exponent = TYPES[dtype]
    return cupy.RawKernel(
        SOURCE, "mma_keys", options=(f"-DD={head_dim}", f'-DTYPE="{name}"', f"-DEXPONENT={exponent}")
    )


def plan(p: Problem) -> Plan:
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.group, p.causal)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau))
    launch = Launch(kernel(p.head_dim, p.dtype), grid=(-(-p.q_len // 16), p.heads, p.batch), block=(128,), args=args)
    return Plan((launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def supports(p: Problem) -> str | None:
    if p.dtype == "float32":
        return "tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    if p.head_dim % 16:
        return "head_dim has to be a multiple of 16"
    return None if p.head_dim <= 128 else "more than 128 elements a row do not fit shared memory"


def register(registry: Registry) -> None:
    registry.add(
        Variant(
            name="v-mma-keys",
            plan=plan,
            supports=supports,
            idea="mma.sync, warps split the keys",
            numerics=Numerics(scores="float32", functions="accurate", one_score=True, divides_last=True),
        )
    )
