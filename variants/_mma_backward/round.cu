// What comes after gradients on tensor cores whose dQ is added in memory: Dao 2023, arXiv 2307.08691, algorithm 2, line 20.
// mma.cuh, tiles.cuh, and those of the types DQ, Sequences and GradientLayout are put before this text. The Numba twin is in
// numba_ends.py.
//
// Compile-time parameters: D (elements per row), BR (rows per block), WARPS.

// Return dQ, which is times tau, in the problem's own dtype and order. The grid is (blocks of rows, heads, sequences).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_mma_round(stored *__restrict__ dQ, int q_len, float tau, DQ running,
                                                                  Sequences sequences, GradientLayout gradients)
{
    extern __shared__ __align__(128) unsigned char dQ_tile[];
    const int lane = threadIdx.x % 32, first_row = blockIdx.x * BR;
    const auto own = sequences.rows_at(blockIdx.z, first_row, q_len);
    if (!own.has_rows()) return;
    const int rows = min(BR, own.q_len - first_row);
    const size_t head = own.number((size_t)blockIdx.z * gridDim.y + blockIdx.y, blockIdx.y);
    const float *const dQ_i = running.of_head(head, q_len, own.row(0)) + (size_t)(first_row / 16) * DQ_TILES * FRAGMENT;
    for (int f = threadIdx.x / 32; f < (rows + 15) / 16 * DQ_TILES; f += WARPS) {
        float c[4];
        load_fragment(c, dQ_i + (size_t)f * FRAGMENT + LANE_STRIDE * lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned at = swizzled<ROW_BYTES>(f / DQ_TILES * 16 + 8 * h + lane / 4, f % DQ_TILES);
            *reinterpret_cast<unsigned *>(dQ_tile + at + lane % 4 * 4) = packed(tau * c[2 * h], tau * c[2 * h + 1]);
        }
    }
    __syncthreads();
    const size_t first = head * q_len + own.row(first_row);
    store_tile<BR>(gradients.Q_rows(dQ, first, own.batch, blockIdx.y, own.row(first_row)), dQ_tile, rows);
}
