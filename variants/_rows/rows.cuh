// What the softmax kernels have in common: sums and maxima over a block of threads. _features/stored_*.cuh is put before this
// text. The Numba twin of this text is numba_rows.py: same names, same order.
//
// Compile-time parameters: THREADS (per block, whole warps).

constexpr int WARPS = THREADS / 32;
constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);

// Where the block's row begins. It may be beyond 2^31 elements.
__device__ __forceinline__ size_t row_start(int columns) { return (size_t)blockIdx.x * columns; }

// x_j, and -inf beyond the row, whose weight is 0. All threads take as many steps of a loop over columns: otherwise an unrolled
// loop would let the lanes of a warp at the end of the row get out of step.
__device__ __forceinline__ float element(const stored *x, int j, int columns)
{
    return j < columns ? widen(x[j]) : MINUS_INFINITY;
}

// exp(x - m), and 0 for x = -inf even while nothing else has been seen (m = -inf), since (-inf) - (-inf) is NaN.
__device__ __forceinline__ float exp_below(float x, float m) { return expf(x - (m == MINUS_INFINITY ? 0.0f : m)); }

// The largest x of the block, or the sum of all, for every thread. Each warp writes its own to shared memory, and all threads
// combine these in the same order. A kernel calls each function at most once, so no thread writes `parts` a second time.
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
