// What the softmax kernels have in common: how X and Y are stored, and sums and maxima over a block of threads. The
// Numba twin of this text is numba_rows.py: same names, same order.
//
// Compile-time parameters: THREADS (per block, whole warps) and how X and Y are stored.

#if defined(STORED_AS_float16)
#include <cuda_fp16.h>
typedef __half stored;
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ void narrow(float x, __half *to) { *to = __float2half_rn(x); }
#elif defined(STORED_AS_bfloat16)
#include <cuda_bf16.h>
typedef __nv_bfloat16 stored;
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16 *to) { *to = __float2bfloat16_rn(x); }
#else
typedef float stored;
__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ void narrow(float x, float *to) { *to = x; }
#endif

constexpr int WARPS = THREADS / 32;

#define MINUS_INFINITY __int_as_float(0xff800000)

// Where the block's row begins: beyond 2^31 elements, too.
__device__ __forceinline__ size_t row_start(int columns) { return (size_t)blockIdx.x * columns; }

// x_j, and -inf beyond the row, whose weight is 0. All threads go round a loop over columns equally often and ask here:
// else an unrolled loop would let the lanes of a warp that stands at the end of the row get out of step.
__device__ __forceinline__ float element(const stored *x, int j, int columns)
{
    return j < columns ? widen(x[j]) : MINUS_INFINITY;
}

// exp(x - m), and 0 for x = -inf even where nothing else was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
__device__ __forceinline__ float exp_below(float x, float m) { return expf(x - (m == MINUS_INFINITY ? 0.0f : m)); }

// The largest x of the block, or the sum of all, for every thread. Each warp leaves its own in shared memory, and all
// threads put these together in the same order. A kernel calls either once: nobody writes `parts` a second time.
__device__ __forceinline__ float block_max(float x)
{
    __shared__ float parts[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) x = fmaxf(x, parts[warp]);
    return x;
}

__device__ __forceinline__ float block_sum(float x)
{
    __shared__ float parts[WARPS];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
#pragma unroll
    for (int warp = 1; warp < WARPS; ++warp) x += parts[warp];
    return x;
}
