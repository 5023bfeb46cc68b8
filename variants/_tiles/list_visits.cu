// Which tiles of keys each block of rows visits under a mask that is no run of keys: those of which some row sees a key, as
// FlexAttention lists them (Dong et al. 2024, arXiv 2412.05496). visits.cuh and tiles.cuh are put before this text. The
// Numba twin is in numba_visits.py.

constexpr int WARPS = 32;
constexpr int LOOKS = 8;  // at so many tiles each, one after the other, before the first warp puts them into the list
constexpr int CHUNK = WARPS * LOOKS;

// The grid is (blocks of rows, lists of a sequence, sequences that differ).
extern "C" __global__ __launch_bounds__(32 * WARPS) void list_visits(int *__restrict__ visits, int q_len, int kv_len, LIMITS,
                                                                  RULE_PARAMETERS)
{
    __shared__ bool seen[CHUNK], seen_whole[CHUNK];
    const Rule rule = RULE(blockIdx.y);
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int first_row = blockIdx.x * BR, rows = min(BR, q_len - first_row);
    LIMITS_IN_MEMORY
    const int first_tile = first_seen(first_row, q_len, kv_len, before) / BC;
    const int end_tile = (end_seen(first_row + rows - 1, q_len, kv_len, after) + BC - 1) / BC;
    const size_t number = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    int *const list = visits + number * (1 + (kv_len + BC - 1) / BC);

    int count = 0;
    for (int first = first_tile; first < end_tile; first += CHUNK) {
        for (int at = warp; at < min(CHUNK, end_tile - first); at += WARPS) {
            const int first_key = (first + at) * BC;
            bool any, all;
            rule.look_at_tile(any, all, first + at, first_row, rows, first_key, min(BC, kv_len - first_key));
            if (lane == 0) {
                seen[at] = any;
                seen_whole[at] = all;
            }
        }
        __syncthreads();
        for (int at = lane; warp == 0 && at - lane < min(CHUNK, end_tile - first); at += WARPS) {
            const bool visited = at < end_tile - first && seen[at];  // a lane puts each into the list
            const unsigned all_visited = __ballot_sync(ALL_LANES, visited);
            const int before_this = __popc(all_visited & ((1u << lane) - 1));
            if (visited) list[1 + count + before_this] = 2 * (first + at) + !seen_whole[at];
            count += __popc(all_visited);
        }
        __syncthreads();
    }
    if (thread_index() == 0) list[0] = count;
}
