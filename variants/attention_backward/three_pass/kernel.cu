// Standard attention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 3, with S, P, dP and dS in memory: its
// products; weights.cu has what is between them. What is loaded, multiplied and reduced is in _tiles/tiles.cuh, lanes.cuh and
// backward.cuh; Limits, a type that the plan chooses, is in _features/. The Numba twin is numba_kernel.py.
//
// A row of S, P, dP and dS is the keys that it sees: what lies before and after them is neither written nor read.

constexpr int ROWS_PER_WARP = P_ROWS / WARPS;  // of a tile with a row of scores per row
constexpr int COLUMNS_PER_LANE = (BC + 31) / 32;

// Whether a row sees a key.
template <class Run> __device__ __forceinline__ bool sees(const Run &run, int row, int key)
{
    return run.first(row) <= key && key < run.end(row);
}

// S = tau Q K^T, which the forward pass does not store, and, line 2, dP = dO V^T: load X and Y by blocks, write S.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_three_pass_product(
    const stored *__restrict__ X, const stored *__restrict__ Y, stored *__restrict__ S, int q_len, int kv_len,
    int group, float factor, Limits limits)
{
    __shared__ __align__(16) float X_tile[BR * LD], Y_tile[BC * LD], S_tile[P_ROWS * LP];
    const RowBlock block = own_rows(q_len);
    const size_t first_stat = head_index() * q_len + block.first_row;
    const stored *const Y_head = Y + kv_head_index(group) * kv_len * D;
    load_tile<BR>(X_tile, X + first_stat * D, block.rows);

    // For all Y_j with a key that some row sees.
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    for (int first_key = seen.first_key / BC * BC; first_key < seen.end_key; first_key += BC) {
        // Load Y_j, once no thread reads Y_(j-1) any more.
        __syncthreads();
        load_tile<BC>(Y_tile, Y_head + (size_t)first_key * D, min(BC, kv_len - first_key));
        __syncthreads();

        float S_acc[TM][TN];
        multiply_Q_Kt(S_acc, X_tile, Y_tile);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) S_tile[row_of(i) * LP + key_of(j)] = factor * S_acc[i][j];

        // A warp writes a row at a time: 32 consecutive elements.
        __syncthreads();
        for (int start = 0; start < BC; start += 32) {
            const int c = start + lane_index();
            stored *S_row = S + (first_stat + warp_index()) * kv_len + first_key + c;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, S_row += WARPS * (size_t)kv_len) {
                const int r = warp_index() + WARPS * i;
                const bool in_tile = r < block.rows && c < BC;
                if (in_tile && sees(seen.run, block.first_row + r, first_key + c)) narrow(S_tile[r * LP + c], S_row);
            }
        }
    }
}

// Line 1: dV = P^T dO, and line 5: dK = tau dS^T Q: load W and X by blocks, write Y. A block owns a tile of keys of one head,
// and the query heads that share it; `limits` are mirrored, see backward.cuh.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_three_pass_of_keys(
    const stored *__restrict__ W, const stored *__restrict__ X, stored *__restrict__ Y, int q_len, int kv_len,
    int group, float factor, Limits limits)
{
    __shared__ __align__(16) float X_tile[(ROWS > KEYS ? ROWS : KEYS) * LD], W_tile[P_ROWS * LP];
    const RowBlock block = own_rows(kv_len);
    const int first_key = block.first_row, keys = block.rows;
    float Y_acc[TM][TD] = {};

    // For all X_i with a row that sees some key of the tile, of all heads that share it.
    const auto seeing = rows_seeing(limits, block, q_len, kv_len);
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (head_index() * group + member) * q_len;
        for (int first_row = seeing.start_row; first_row < seeing.end_row; first_row += ROWS) {
            // Load X_i and the tile of W, a row per warp, once no thread reads the last ones any more; zeros for rows that do
            // not see the key.
            const int rows = min(ROWS, q_len - first_row);
            __syncthreads();
            load_tile<ROWS>(X_tile, X + (first_q + first_row) * D, rows);
            for (int start = 0; start < KEYS; start += 32) {
                const int c = start + lane_index(), key = min(first_key + c, block.last_row());
                const int first_r = seeing.mirrored.run.first(key) - first_row;
                const int end_r = c < keys ? seeing.mirrored.run.end(key) - first_row : 0;
                for (int r = warp_index(); r < ROWS; r += WARPS) {
                    const stored *w = W + (first_q + first_row + r) * kv_len + first_key + c;
                    const float w_rc = first_r <= r && r < end_r ? widen(*w) : 0.0f;
                    if (c < KEYS) W_tile[c * LP + r] = w_rc;
                }
            }
            __syncthreads();
            add_P_V(Y_acc, W_tile, X_tile, rows, seeing.in_tile(first_row, rows));
        }
    }

    __syncthreads();
    gather(X_tile, Y_acc, factor);
    __syncthreads();
    store_tile(Y + (head_index() * kv_len + first_key) * D, X_tile, keys);
}

// Line 4: dQ = tau dS K: load dS and K by blocks, write dQ.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_three_pass_of_rows(
    const stored *__restrict__ dS, const stored *__restrict__ K, stored *__restrict__ dQ, int q_len, int kv_len,
    int group, float factor, Limits limits)
{
    __shared__ __align__(16) float K_tile[BC * LD], dS_tile[P_ROWS * LP], dQ_tile[BR * LD];
    const RowBlock block = own_rows(q_len);
    const size_t first_stat = head_index() * q_len + block.first_row;
    const stored *const K_head = K + kv_head_index(group) * kv_len * D;
    float dQ_acc[TM][TD] = {};

    // For all K_j with a key that some row sees.
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    for (int first_key = seen.first_key / BC * BC; first_key < seen.end_key; first_key += BC) {
        // Load K_j and the tile of dS, a row per warp, once no thread reads the last ones any more; zeros for unseen keys.
        const int keys = min(BC, kv_len - first_key);
        __syncthreads();
        load_tile<BC>(K_tile, K_head + (size_t)first_key * D, keys);
#pragma unroll
        for (int j = 0; j < COLUMNS_PER_LANE; ++j) {
            const int c = lane_index() + 32 * j;
            const stored *dS_row = dS + (first_stat + warp_index()) * kv_len + first_key + c;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, dS_row += WARPS * (size_t)kv_len) {
                const int r = warp_index() + WARPS * i;
                const bool in_tile = r < block.rows && c < BC;
                const bool seen_here = in_tile && sees(seen.run, block.first_row + r, first_key + c);
                const float ds = seen_here ? widen(*dS_row) : 0.0f;
                if (c < BC) dS_tile[r * LP + c] = ds;
            }
        }
        __syncthreads();
        add_P_V(dQ_acc, dS_tile, K_tile, keys, seen_in_tile(seen, block.first_row, first_key, keys));
    }

    gather(dQ_tile, dQ_acc, factor);
    __syncthreads();
    store_tile(dQ + first_stat * D, dQ_tile, block.rows);
}
