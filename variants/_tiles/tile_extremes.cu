// The least and the largest start, and the least and the largest end, of FlashMask's spans over each tile of keys: what tells
// which tiles are hidden whole (Wang et al. 2024, arXiv 2410.01359, section 4.2). The Numba twin is in numba_flashmask_rule.py.
//
// Compile-time parameters: BC (keys per tile) and SPANS_PER_KEY.

// A warp for each tile.
extern "C" __global__ __launch_bounds__(32) void tile_extremes(int *__restrict__ extremes,
                                                               const int *__restrict__ hidden_rows, int kv_len)
{
    const int lane = threadIdx.x, first_key = blockIdx.x * BC, end_key = min(first_key + BC, kv_len);
    int own = 0;
#pragma unroll
    for (int line = 0; line < 2 * SPANS_PER_KEY; ++line) {
        const int *const of_keys = hidden_rows + (size_t)line * kv_len;
        int least = 0x7fffffff, largest = -0x7fffffff - 1;
        // All lanes go round equally often: no unrolling then lets them get out of step.
        for (int first = first_key; first < end_key; first += 32) {
            const int bound = of_keys[min(first + lane, end_key - 1)];
            least = min(least, bound);
            largest = max(largest, bound);
        }
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            least = min(least, __shfl_xor_sync(0xffffffff, least, distance));
            largest = max(largest, __shfl_xor_sync(0xffffffff, largest, distance));
        }
        own = lane == 2 * line ? least : lane == 2 * line + 1 ? largest : own;
    }
    if (lane < 4 * SPANS_PER_KEY) extremes[(size_t)blockIdx.x * 4 * SPANS_PER_KEY + lane] = own;
}
