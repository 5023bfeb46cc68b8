"""w-key-ring: a block walks down 64 rows in steps of 16 and keeps the keys in sight in a ring of 128 in shared memory."""

import functools

import cupy
import numpy as np

from harness import Launch, Numerics, Plan, Variant

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
#define STRIP 64
#define STEP 16
#define RING 128
#define NEG __int_as_float(0xff800000)

extern "C" __global__ void __launch_bounds__(128) key_ring(
    const T* Q, const T* K, const T* V, T* O,
    int q_len, int kv_len, int D, int group, float tau, int before, int after)
{
    extern __shared__ float smem[];
    const int ld = D + 1;
    float* k_s = smem;
    float* v_s = k_s + RING * ld;
    float* q_s = v_s + RING * ld;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const T* k = K + head / group * kv_len * D;
    const T* v = V + head / group * kv_len * D;
    const int shift = kv_len - q_len;
    const int strip_end = min(q_len, (int)(blockIdx.x + 1) * STRIP);
    int loaded = 0;

    for (int r0 = blockIdx.x * STRIP; r0 < strip_end; r0 += STEP) {
        const int r_end = min(r0 + STEP, strip_end);
        const int need = max(0, r0 + shift - before) / STEP * STEP;
        const int end = min(kv_len, r_end + shift + after);
        __syncthreads();
        for (int e = threadIdx.x; e < (r_end - r0) * D; e += 128)
            q_s[e] = wide(Q[(head * q_len + r0) * D + e]);
        loaded = max(loaded, need);
        for (int j = loaded + warp; j < end; j += 4) {
            const int slot = j % RING;
            for (int x = lane; x < D; x += 32) {
                k_s[slot * ld + x] = wide(k[(size_t)j * D + x]);
                v_s[slot * ld + x] = wide(v[(size_t)j * D + x]);
            }
        }
        loaded = max(loaded, end);
        __syncthreads();

        for (int row = r0 + warp; row < r_end; row += 4) {
            const float* q = q_s + (row - r0) * D;
            const int lo = max(0, row + shift - before), hi = min(kv_len, row + shift + after + 1);
            float m = NEG, l = 0.0f, acc[2] = {0.0f, 0.0f};
            for (int j0 = lo; j0 < hi; j0 += 32) {
                float s = NEG;
                if (j0 + lane < hi) {
                    const float* key = k_s + (j0 + lane) % RING * ld;
                    s = 0.0f;
                    for (int x = 0; x < D; ++x) s += q[x] * key[x];
                    s *= tau;
                }
                __syncwarp();
                float top = s;
#pragma unroll
                for (int w = 16; w > 0; w /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, w));
                const float m_new = fmaxf(m, top), base = m_new == NEG ? 0.0f : m_new;
                const float alpha = __expf(m - base), p = __expf(s - base);
                float sum = p;
#pragma unroll
                for (int w = 16; w > 0; w /= 2) sum += __shfl_xor_sync(0xffffffff, sum, w);
                l = l * alpha + sum;
                m = m_new;
                acc[0] *= alpha;
                acc[1] *= alpha;
                const int count = min(32, hi - j0);
                for (int j = 0; j < count; ++j) {
                    const float weight = __shfl_sync(0xffffffff, p, j);
                    const float* value = v_s + (j0 + j) % RING * ld;
                    if (lane < D) acc[0] += weight * value[lane];
                    if (lane + 32 < D) acc[1] += weight * value[lane + 32];
                }
            }
            T* o = O + (head * q_len + row) * D;
            if (lane < D) o[lane] = narrow(hi > lo ? acc[0] / l : 0.0f);
            if (lane + 32 < D) o[lane + 32] = narrow(hi > lo ? acc[1] / l : 0.0f);
        }
    }
}
"""
STORED = {"float32": (), "float16": ("-DSTORED_HALF",), "bfloat16": ("-DSTORED_BF16",)}


@functools.cache
def kernel(dtype):
    return cupy.RawKernel(CODE, "key_ring", options=STORED[dtype])


def band(p):
    """How many keys before and behind its place a row sees."""
    beyond = p.q_len + p.kv_len
    limits = [part.limits for part in p.mask.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return before, after


def plan(p):
    sizes = [np.int32(n) for n in (p.q_len, p.kv_len, p.head_dim, p.group)]
    args = ("Q", "K", "V", "O", *sizes, np.float32(p.tau), *map(np.int32, band(p)))
    floats = 2 * 128 * (p.head_dim + 1) + 16 * p.head_dim
    grid = (-(-p.q_len // 64), p.heads, p.batch)
    return Plan((Launch(kernel(p.dtype), grid, (128,), args, shared_bytes=4 * floats),))


def supports(p):
    if p.head_dim > 64:
        return "head_dim up to 64"
    if max(p.heads, p.batch) > 65_535:
        return "a grid has at most 65,535 blocks along y and z"
    before, after = band(p)
    return None if min(p.kv_len, before + after + 31) <= 128 else "16 rows must see at most 128 keys: a narrower window"


def register(registry):
    registry.add(
        Variant(
            name="w-key-ring",
            plan=plan,
            supports=supports,
            takes=("causal", "window"),
            idea="rows in turn, the keys in sight in a ring",
            numerics=Numerics(
                scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=True
            ),
        )
    )
