// Which tiles of keys each block of rows visits under a mask that is no run of keys: those of which some row sees a key, as
// FlexAttention lists them (Dong et al. 2024, arXiv 2412.05496). _features/limits.cuh and a mask's rule, as `Rule`, are put
// before this text; of blocks that own keys and visit rows both are mirrored. The Numba twin is in numba_visits.py.
//
// Compile-time parameters: BR and BC (rows and keys per tile).

constexpr int WARPS = 32;
constexpr int LOOKS = 8;  // tiles that each warp looks at before the first warp puts them into the list
constexpr int CHUNK = WARPS * LOOKS;

// The grid is (blocks of rows, lists of a sequence, sequences that differ).
extern "C" __global__ __launch_bounds__(32 * WARPS) void list_visits(int *__restrict__ visits, int q_len, int kv_len,
                                                                     Limits limits, Rule rules)
{
    __shared__ bool seen[CHUNK], seen_whole[CHUNK];
    const auto rule = rules.of_head(blockIdx.y, q_len, kv_len);
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, warp = thread / 32, lane = thread % 32;
    const int first_row = blockIdx.x * BR, rows = min(BR, q_len - first_row);
    const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
    const int first_key_seen = run.first(first_row), end_key_seen = run.end(first_row + rows - 1);
    const int first_tile = first_key_seen / BC;
    const int end_tile = first_key_seen < end_key_seen ? (end_key_seen + BC - 1) / BC : 0;
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
            const bool visited = at < end_tile - first && seen[at];  // each lane puts one tile into the list
            const unsigned all_visited = __ballot_sync(0xffffffff, visited);
            const int before_this = __popc(all_visited & ((1u << lane) - 1));
            if (visited) list[1 + count + before_this] = 2 * (first + at) + !seen_whole[at];
            count += __popc(all_visited);
        }
        __syncthreads();
    }
    if (thread == 0) list[0] = count;
}
