// What comes before and after gradients on tensor cores: sums over rows, and dQ in 16 bits. mma.cuh, tiles.cuh and
// dq_fragments.cuh are put before this text.
//
// Compile-time parameters: D (elements per row), BR (rows per block), WARPS, and SUMS_DQ where dQ is summed in memory.

constexpr int LANES = 8;  // that share a row: each phase of a warp's loads has all chunks of one line

__device__ __forceinline__ size_t head_index() { return (size_t)blockIdx.z * gridDim.y + blockIdx.y; }

// Dao 2023, arXiv 2307.08691, algorithm 2, line 3: dQ = 0. Line 4: D = rowsum(dO o O). And L = log2(e) lse.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_mma_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, const float *__restrict__ lse, float *__restrict__ L,
    float *__restrict__ delta,
#ifdef SUMS_DQ
    float *__restrict__ dQ,
#endif
    int q_len)
{
    extern __shared__ __align__(128) unsigned char O_tile[];
    unsigned char *const dO_tile = O_tile + BR * ROW_BYTES;
    const int first_row = blockIdx.x * BR, rows = min(BR, q_len - first_row);
    const size_t first = head_index() * q_len + first_row;
    if constexpr (D % CHUNK != 0) {
        for (int i = threadIdx.x * 16; i < 2 * BR * ROW_BYTES; i += THREADS * 16) {
            *reinterpret_cast<uint4 *>(O_tile + i) = make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
    }
    copy_tile<BR>(O_tile, O + first * D, rows);
    copy_tile<BR>(dO_tile, dO + first * D, rows);
    commit_copies();
#ifdef SUMS_DQ
    const size_t first_fragment = (head_index() * ((q_len + 15) / 16) + first_row / 16) * DQ_TILES;
    for (int e = threadIdx.x * 4; e < (rows + 15) / 16 * DQ_TILES * FRAGMENT; e += THREADS * 4) {
        *reinterpret_cast<float4 *>(dQ + first_fragment * FRAGMENT + e) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#endif
    for (int r = threadIdx.x; r < rows; r += THREADS) L[first + r] = 1.44269504f * lse[first + r];
    wait_for_copies<0>();
    __syncthreads();

    float *const sums = reinterpret_cast<float *>(O_tile + 2 * BR * ROW_BYTES);
    for (int r = threadIdx.x / LANES; r < BR; r += THREADS / LANES) {
        float sum = 0.0f;
#pragma unroll
        for (int start = 0; start < (D + CHUNK - 1) / CHUNK; start += LANES) {
            const int chunk = start + threadIdx.x % LANES;
            if (chunk * CHUNK >= D) break;
            const unsigned at = swizzled<ROW_BYTES>(r, chunk);
            const uint4 o = *reinterpret_cast<const uint4 *>(O_tile + at);
            const uint4 g = *reinterpret_cast<const uint4 *>(dO_tile + at);
            const unsigned os[4] = {o.x, o.y, o.z, o.w}, gs[4] = {g.x, g.y, g.z, g.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum = fmaf(unpacked(os[i]).x, unpacked(gs[i]).x, sum);
                sum = fmaf(unpacked(os[i]).y, unpacked(gs[i]).y, sum);
            }
        }
#pragma unroll
        for (int other = LANES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
        if (threadIdx.x % LANES == 0) sums[r] = sum;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += THREADS) delta[first + r] = sums[r];
}

#ifdef SUMS_DQ
// Line 20: return dQ, which is times tau, in the problem's own dtype and order.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_mma_round(
    const float *__restrict__ dQ_running, stored *__restrict__ dQ, int q_len, float tau)
{
    extern __shared__ __align__(128) unsigned char dQ_tile[];
    const int lane = threadIdx.x % 32, first_row = blockIdx.x * BR, rows = min(BR, q_len - first_row);
    const size_t first_fragment = (head_index() * ((q_len + 15) / 16) + first_row / 16) * DQ_TILES;
    for (int f = threadIdx.x / 32; f < (rows + 15) / 16 * DQ_TILES; f += WARPS) {
        float c[4];
        load_fragment(c, dQ_running + (first_fragment + f) * FRAGMENT + LANE_STRIDE * lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned at = swizzled<ROW_BYTES>(f / DQ_TILES * 16 + 8 * h + lane / 4, f % DQ_TILES);
            *reinterpret_cast<unsigned *>(dQ_tile + at + lane % 4 * 4) = packed(tau * c[2 * h], tau * c[2 * h + 1]);
        }
    }
    __syncthreads();
    store_tile<BR>(dQ + (head_index() * q_len + first_row) * D, dQ_tile, rows);
}
#endif
