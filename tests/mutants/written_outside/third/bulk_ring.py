"""w-bulk-ring: a producer lane brings tiles of K and V by cp.async.bulk into a ring of three; four warps consume them."""

import functools

import cupy
import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Variant

CODE = r"""
#if defined(STORED_HALF)
#include <cuda_fp16.h>
typedef __half T;
__device__ float wide(T x) { return __half2float(x); }
__device__ T narrow(float x) { return __float2half_rn(x); }
#elif defined(STORED_BF16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 T;
__device__ float wide(T x) { return __bfloat162float(x); }
__device__ T narrow(float x) { return __float2bfloat16_rn(x); }
#else
typedef float T;
__device__ float wide(T x) { return x; }
__device__ T narrow(float x) { return x; }
#endif
#define BC 32
#define STAGES 3
#define CONSUMERS 4
#define ROWS_A_WARP 4
#define ROWS 16
#define NEG __int_as_float(0xff800000)

__device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(unsigned long long* b, unsigned n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned long long* b, unsigned parity)
{
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}"
        ::"r"(address(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned long long* b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(b)) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned long long* b, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, unsigned bytes, unsigned long long* b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(address(to)), "l"(from), "r"(bytes), "r"(address(b)) : "memory");
}

extern "C" __global__ void __launch_bounds__(160) bulk_ring(
    const T* Q, const T* K, const T* V, T* O, float* lse,
    int q_len, int kv_len, int D, int group, float tau, int causal)
{
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ __align__(8) unsigned long long full[STAGES], empty[STAGES];
    T* tiles = reinterpret_cast<T*>(smem);
    float* q_s = reinterpret_cast<float*>(smem + STAGES * 2 * BC * D * sizeof(T));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, q_len - first_row);
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t kv_head = head / group;
    const int end = causal ? min(kv_len, first_row + rows + kv_len - q_len) : kv_len;
    const int tile_count = end > 0 ? (end + BC - 1) / BC : 0;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(&full[s], 1);
            barrier_init(&empty[s], CONSUMERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    for (int e = threadIdx.x; e < ROWS * D; e += 160)
        q_s[e] = e / D < rows ? wide(Q[(head * q_len + first_row) * D + e]) : 0.0f;
    __syncthreads();

    if (warp == CONSUMERS) {
        if (lane == 0) {
            for (int t = 0; t < tile_count; ++t) {
                const int s = t % STAGES;
                if (t >= STAGES) barrier_wait(&empty[s], (t / STAGES - 1) & 1);
                const unsigned bytes = min(BC, kv_len - t * BC) * D * sizeof(T);
                T* k = tiles + s * 2 * BC * D;
                T* v = k + BC * D;
                const size_t from = (kv_head * kv_len + t * BC) * D;
                barrier_expect(&full[s], 2 * bytes);
                bulk_copy(k, K + from, bytes, &full[s]);
                bulk_copy(v, V + from, bytes, &full[s]);
            }
        }
        return;
    }

    float m[ROWS_A_WARP], l[ROWS_A_WARP], acc[ROWS_A_WARP][4];
    int hi[ROWS_A_WARP];
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
        const int row = first_row + warp * ROWS_A_WARP + r;
        m[r] = NEG;
        l[r] = 0.0f;
        hi[r] = row >= q_len ? 0 : causal ? min(kv_len, row + 1 + kv_len - q_len) : kv_len;
#pragma unroll
        for (int n = 0; n < 4; ++n) acc[r][n] = 0.0f;
    }
    for (int t = 0; t < tile_count; ++t) {
        const int s = t % STAGES, keys = min(BC, kv_len - t * BC);
        const T* k = tiles + s * 2 * BC * D;
        const T* v = k + BC * D;
        barrier_wait(&full[s], (t / STAGES) & 1);
#pragma unroll
        for (int r = 0; r < ROWS_A_WARP; ++r) {
            const float* q = q_s + (warp * ROWS_A_WARP + r) * D;
            const int seen = min(keys, hi[r] - t * BC);
            if (seen <= 0) continue;
            float score = NEG;
            if (lane < seen) {
                score = 0.0f;
                for (int x = 0; x < D; ++x) score += q[x] * wide(k[lane * D + x]);
                score *= tau;
            }
            __syncwarp();
            float top = score;
#pragma unroll
            for (int w = 16; w > 0; w /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, w));
            const float m_new = fmaxf(m[r], top);
            const float base = m_new == NEG ? 0.0f : m_new;
            const float alpha = expf(m[r] - base), p = expf(score - base);
            m[r] = m_new;
            l[r] = l[r] * alpha + p;
#pragma unroll
            for (int n = 0; n < 4; ++n) acc[r][n] *= alpha;
            for (int j = 0; j < seen; ++j) {
                const float weight = __shfl_sync(0xffffffff, p, j);
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    if (lane + 32 * n < D) acc[r][n] += weight * wide(v[j * D + lane + 32 * n]);
            }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&empty[s]);
    }
#pragma unroll
    for (int r = 0; r < ROWS_A_WARP; ++r) {
        float sum = l[r];
#pragma unroll
        for (int w = 16; w > 0; w /= 2) sum += __shfl_xor_sync(0xffffffff, sum, w);
        const int row = first_row + warp * ROWS_A_WARP + r;
        if (row >= q_len) continue;
        const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int n = 0; n < 4; ++n)
            if (lane + 32 * n < D)
                O[(head * q_len + row) * D + lane + 32 * n] = narrow(sum == 0.0f ? 0.0f : acc[r][n] * inverse);
        if (lane == 0) lse[head * q_len + row] = m[r] + logf(sum);
    }
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernel(dtype):
    return cupy.RawKernel(CODE, "bulk_ring", options=(*STORED[dtype], "-arch=sm_90a"))


def plan(p):
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.group)]
    args = ("Q", "K", "V", "O", "lse", *sizes, np.float32(p.tau), np.int32(p.causal))
    shared = 3 * 2 * 32 * p.head_dim * p.itemsize_bytes + 16 * p.head_dim * 4
    grid = (-(-p.q_len // 16), p.heads, p.batch)
    launch = Launch(kernel(p.dtype), grid, (160,), args, shared_bytes=shared)
    return Plan((launch,), (Buffer("lse", p.lse_shape, "float32"),))


def supports(p):
    if p.head_dim > 128:
        return "head_dim up to 128"
    if p.head_dim * p.itemsize_bytes % 16:
        return "rows of whole 16 bytes"
    return "a grid has at most 65,535 blocks along y and z" if max(p.heads, p.batch) > 65_535 else None


def register(registry):
    registry.add(
        Variant(
            name="w-bulk-ring",
            plan=plan,
            supports=supports,
            idea="bulk copies, mbarriers, a producer and four consuming warps",
            numerics=Numerics(scores="float32", weights="float32", sums="nearest", one_score=True, divides_last=True),
        )
    )
