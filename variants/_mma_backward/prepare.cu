// What comes before gradients on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 3 and 4. mma.cuh and tiles.cuh,
// and those of the types DQ, Stats, Order, Sequences, Layout and GradientLayout, are put before this text. The Numba twin is in numba_ends.py.
//
// Compile-time parameters: D (elements per row), BR (rows per block), WARPS.

constexpr int LANES = 8;  // that share a row: each phase of a warp's loads has all chunks of one line

// The rowsum(dO o O) of row r, in one of the lanes that share it.
__device__ __forceinline__ float product_of_row(const unsigned char *O_tile, const unsigned char *dO_tile, int r)
{
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
    return sum;
}

// The grid is (blocks of rows, heads, sequences).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_mma_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, const float *__restrict__ lse, float *__restrict__ L,
    float *__restrict__ delta, int q_len, DQ dQ, Order order, Sequences sequences, Layout layout,
    GradientLayout gradients)
{
    extern __shared__ __align__(128) unsigned char O_tile[];
    unsigned char *const dO_tile = O_tile + BR * ROW_BYTES;
    const int first_row = blockIdx.x * BR;
    const auto own = sequences.rows_at(blockIdx.z, first_row, q_len);
    if (!own.has_rows()) return;
    const int rows = min(BR, own.q_len - first_row);
    const size_t head = own.number((size_t)blockIdx.z * gridDim.y + blockIdx.y, blockIdx.y);
    const size_t first = head * q_len + own.row(first_row);
    if constexpr (D % CHUNK != 0) {
        clear_tiles(O_tile, 2 * BR * ROW_BYTES);
        __syncthreads();
    }
    copy_tile<BR>(O_tile, layout.O_rows(O, first, own.batch, blockIdx.y, own.row(first_row)), rows);
    copy_tile<BR>(dO_tile, gradients.O_rows(dO, first, own.batch, blockIdx.y, own.row(first_row)), rows);
    commit_copies();

    // Line 3: dQ = 0.
    if constexpr (DQ::IS_ADDED) {
        float *const dQ_i = dQ.of_head(head, q_len, own.row(0)) + (size_t)(first_row / 16) * DQ_TILES * FRAGMENT;
        for (int e = threadIdx.x * 4; e < (rows + 15) / 16 * DQ_TILES * FRAGMENT; e += THREADS * 4) {
            *reinterpret_cast<float4 *>(dQ_i + e) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    if constexpr (Order::IS_FIXED) {
        if (threadIdx.x == 0) *order.turn(head, first_row, q_len) = 0;
    }

    // Line 4: D = rowsum(dO o O). And L = log2(e) lse.
    const size_t first_stat = head * Stats::rows(q_len) + own.row(first_row);
    for (int r = threadIdx.x; r < rows; r += THREADS) L[first_stat + r] = 1.44269504f * lse[first + r];
    if (first_row + BR >= own.q_len) {
        for (int r = rows + threadIdx.x; r < Stats::rows(own.q_len) - first_row; r += THREADS) {
            L[first_stat + r] = __int_as_float(0x7f800000);  // infinity: P = 0
            delta[first_stat + r] = 0.0f;
        }
    }
    wait_for_copies<0>();
    __syncthreads();
    float *const sums = reinterpret_cast<float *>(O_tile + 2 * BR * ROW_BYTES);
    for (int r = threadIdx.x / LANES; r < BR; r += THREADS / LANES) {
        const float sum = product_of_row(O_tile, dO_tile, r);
        if (threadIdx.x % LANES == 0) sums[r] = sum;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < rows; r += THREADS) delta[first_stat + r] = sums[r];
}
