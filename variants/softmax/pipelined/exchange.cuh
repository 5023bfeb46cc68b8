// What warps that share a row give each other, in a block or in the blocks of a cluster (Hopper). _rows/rows.cuh is put before this
// text. The Numba twin is numba_exchange.py.
//
// Compile-time parameters: THREADS (of a block), CLUSTER (blocks that share a row).

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

// exp(x - m) of an element, and 0 for x = -inf. Where quotients are rounded to 16 bits, ex2.approx is close enough, and a third of
// expf's instructions: with those, short rows take up to 9 % longer than their copies (H200).
__device__ __forceinline__ float weight(float x, float m)
{
    if constexpr (sizeof(stored) == 4) {
        return exp_below(x, m);
    } else {
        constexpr float LOG2_E = 1.44269504088896340736f;
        float y;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"((x - (m == MINUS_INFINITY ? 0.0f : m)) * LOG2_E));
        return y;
    }
}

// Until all threads of the cluster have come.
__device__ __forceinline__ void cluster_sync()
{
    if constexpr (CLUSTER > 1) {
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
    } else {
        __syncthreads();
    }
}

// The calling lane's value, to the same place in the shared memory of block `lane` of the cluster.
template <class T> __device__ __forceinline__ void give_to_blocks(T *place, T value)
{
    const int lane = threadIdx.x % 32;
    if (lane < CLUSTER) *(CLUSTER > 1 ? static_cast<T *>(__cluster_map_shared_rank(place, lane)) : place) = value;
}

// Equation 4: m and d of the row from those of its warps.
__device__ __forceinline__ void combine(const float2 *pairs, float &m, float &d)
{
    const int lane = threadIdx.x % 32;
    m = MINUS_INFINITY;
#pragma unroll 1
    for (int warp = lane; warp < CLUSTER * WARPS; warp += 32) m = fmaxf(m, pairs[warp].x);
    m = warp_max(m);
    d = 0.0f;
#pragma unroll 1
    for (int warp = lane; warp < CLUSTER * WARPS; warp += 32) d += pairs[warp].y * exp_below(pairs[warp].x, m);
    d = warp_sum(d);
}
