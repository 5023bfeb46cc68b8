"""FlashAttention-2 on tensor cores in six steps, each with the optimization that published kernels add next."""

import cupy
import numpy as np

from harness import Launch, Plan, Variant

CODE = r"""
#include <cuda_fp16.h>
typedef unsigned int u32;
constexpr int D = 128, BR = 64, WARPS = 4, CHUNKS = D / 8;  // a chunk is 16 bytes
constexpr float LOG2E = 1.4426950408889634f;

__device__ __forceinline__ u32 place(u32 tile, int row, int chunk) {
    return tile + (row * CHUNKS + (SWIZZLE ? chunk ^ row % 8 : chunk)) * 16;
}
template <int ROWS> __device__ __forceinline__ void load(u32 tile, const half* from) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += WARPS * 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                     "r"(place(tile, i / CHUNKS, i % CHUNKS)), "l"(from + i * 8));
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int LEFT> __device__ __forceinline__ void wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT));
    __syncthreads();
}
__device__ __forceinline__ void matrices_4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void matrices_2(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
__device__ __forceinline__ void transposed_4(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
__device__ __forceinline__ void transposed_2(u32* r, u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(at));
}
__device__ __forceinline__ void multiply(float* c, const u32* a, const u32* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ float exp2_fast(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) ladder(
    const half* Q, const half* K, const half* V, half* O, int q_len, int kv_len, float tau)
{
    extern __shared__ __align__(256) char shared[];
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16;
    const size_t head = blockIdx.y, q0 = (head * q_len + blockIdx.x * BR) * D;
    const half *K_head = K + head * kv_len * D, *V_head = V + head * kv_len * D;
    const u32 Q_tile = __cvta_generic_to_shared(shared), K_tiles = Q_tile;  // Q moves to registers
    const u32 V_tiles = K_tiles + K_STAGES * BC * D * 2;
    const int tiles = kv_len / BC;
    auto load_K = [&](int j) {
        if (j < tiles) load<BC>(K_tiles + j % K_STAGES * (BC * D * 2), K_head + j * BC * D);
        commit();
    };
    auto load_V = [&](int j) {
        if (j < tiles) load<BC>(V_tiles + j % V_STAGES * (BC * D * 2), V_head + j * BC * D);
        commit();
    };

    const u32 K_lane = place(0, lane % 8, lane / 8 % (WIDE ? 4 : 2));
    const u32 V_lane = place(0, lane % 16, WIDE ? lane / 16 : 0);
    u32 q[D / 16][4];
    load<BR>(Q_tile, Q + q0);
    commit();
    wait<0>();
    for (int k = 0; k < D / 16; ++k) matrices_4(q[k], place(Q_tile, first + lane % 16, 2 * k + lane / 16));
    __syncthreads();
    float o[D / 8][4] = {}, m[2] = {-1e30f, -1e30f}, l[2] = {};
    if (K_STAGES == 2) load_K(0);
    if (V_STAGES == 2) load_V(0);
    for (int j = 0; j < tiles; ++j) {
        if (V_STAGES == 2) {  // K_(j+1) and V_(j+1) load while tile j is multiplied
            load_K(j + 1);
            wait<2>();
        } else if (K_STAGES == 2) {  // V_j loads during Q K_j^T, K_(j+1) during P V_j
            __syncthreads();
            load_V(j);
            wait<1>();
        } else {
            __syncthreads();
            load_K(j);
            wait<0>();
        }
        const u32 K_tile = K_tiles + j % K_STAGES * (BC * D * 2), V_tile = V_tiles + j % V_STAGES * (BC * D * 2);
        float s[BC / 8][4] = {};
#pragma unroll
        for (int n = 0; n < BC / 8; ++n)
#pragma unroll
            for (int k = 0; k < D / 16; k += 2) {
                u32 b[4];
                const u32 row = K_tile + K_lane + n * 8 * D * 2;  // ^ moves by chunks, swizzled or not
                if (WIDE) matrices_4(b, row ^ k * 32);
                else for (int h = 0; h < 2; ++h) matrices_2(b + 2 * h, row ^ (k + h) * 32);
                multiply(s[n], q[k], b);
                multiply(s[n], q[k + 1], b + 2);
            }
        if (V_STAGES == 2) load_V(j + 1);
        else if (K_STAGES == 2) load_K(j + 1);

        float most[2] = {m[0], m[1]}, shrink[2], sum[2] = {};
#pragma unroll
        for (int n = 0; n < BC / 8; ++n)
            for (int i = 0; i < 4; ++i) {
                if (!FUSED) s[n][i] *= tau;
                most[i / 2] = fmaxf(most[i / 2], s[n][i]);
            }
        for (int i = 0; i < 2; ++i) {
            for (int x = 1; x < 4; x *= 2) most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], x));
            shrink[i] = exp2_fast((m[i] - most[i]) * (FUSED ? tau * LOG2E : LOG2E));
            m[i] = most[i];
        }
        u32 p[BC / 16][4];
#pragma unroll
        for (int n = 0; n < BC / 8; ++n) {
            for (int i = 0; i < 4; ++i) {
                s[n][i] = FUSED ? exp2_fast(fmaf(s[n][i], tau * LOG2E, -m[i / 2] * (tau * LOG2E)))
                                : exp2_fast((s[n][i] - m[i / 2]) * LOG2E);
                sum[i / 2] += s[n][i];
            }
            for (int i = 0; i < 2; ++i) {
                const half2 two = __floats2half2_rn(s[n][2 * i], s[n][2 * i + 1]);
                p[n / 2][n % 2 * 2 + i] = *(const u32*)&two;
            }
        }
        for (int i = 0; i < 2; ++i) {
            for (int x = 1; x < 4; x *= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], x);
            l[i] = l[i] * shrink[i] + sum[i];
        }
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
            for (int i = 0; i < 4; ++i) o[n][i] *= shrink[i / 2];

        if (K_STAGES == 1) {
            load_V(j);
            wait<0>();
        } else if (V_STAGES == 1) wait<1>();
        else wait<2>();
#pragma unroll
        for (int k = 0; k < BC / 16; ++k)
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                u32 b[4];
                const u32 row = V_tile + V_lane + k * 16 * D * 2;
                if (WIDE) transposed_4(b, row ^ n * 16);
                else for (int h = 0; h < 2; ++h) transposed_2(b + 2 * h, row ^ (n + h) * 16);
                multiply(o[n], p[k], b);
                multiply(o[n + 1], p[k], b + 2);
            }
    }
    for (int n = 0; n < D / 8; ++n)
        for (int i = 0; i < 2; ++i)
            *(half2*)(O + q0 + (first + lane / 4 + 8 * i) * D + n * 8 + lane % 4 * 2) =
                __floats2half2_rn(o[n][2 * i] / l[i], o[n][2 * i + 1] / l[i]);
}
"""

FIRST = {"SWIZZLE": 0, "K_STAGES": 1, "V_STAGES": 1, "WIDE": 0, "BC": 64, "FUSED": 0}
STEPS = {
    "plain-cupy": {},
    "swizzled-cupy": {"SWIZZLE": 1},
    "two-stages-cupy": {"K_STAGES": 2, "V_STAGES": 2, "BC": 32},
    "four-matrices-cupy": {"WIDE": 1},
    "larger-tiles-cupy": {"V_STAGES": 1, "BC": 64},
    "fused-scale-cupy": {"FUSED": 1},
}
"""Name -> the options that the step changes; all earlier changes stay."""


SHARED_BYTES = 48 * 1024
"""What the largest step needs, in all steps, so that two blocks share a multiprocessor."""


def plan_of(chosen):
    """A plan with these options, for whole tiles and head_dim 128."""
    options = (*(f"-D{name}={value}" for name, value in chosen.items()), "--std=c++17")
    kernel = cupy.RawKernel(CODE, "ladder", options=options)

    def plan(problem):
        numbers = (np.int32(problem.q_len), np.int32(problem.kv_len), np.float32(problem.tau))
        grid = (problem.q_len // 64, problem.batch * problem.heads)
        return Plan((Launch(kernel, grid, (128,), ("Q", "K", "V", "O", *numbers), shared_bytes=SHARED_BYTES),))

    return plan


def supports(problem):
    if problem.dtype != "float16" or problem.head_dim != 128 or problem.q_len % 64 or problem.kv_len % 64:
        return "float16, head_dim 128, whole tiles"
    return None


def register(registry):
    chosen = FIRST
    for name, changes in STEPS.items():
        chosen = {**chosen, **changes}
        registry.add(Variant(name=name, plan=plan_of(chosen), supports=supports, idea="a step of a ladder"))
