// Standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, in three kernels with S and P in global memory: lines 1
// and 3, and line 2 in softmax.cu. What is loaded, multiplied and reduced is in _tiles/tiles.cuh; Limits, Scores and Dropout,
// types that the plan chooses, are in _features/. The Numba twin is numba_kernel.py.
//
// A row of S and of P is the keys that it sees: what lies before and after them is neither written nor read.

constexpr int ROWS_PER_WARP = P_ROWS / WARPS;  // of a tile of S or P
constexpr int COLUMNS_PER_LANE = (BC + 31) / 32;

// Algorithm 0, line 1: load Q, K by blocks, compute S = tau Q K^T, write S.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_scores(
    const stored *__restrict__ Q, const stored *__restrict__ K, stored *__restrict__ S, int q_len, int kv_len, int group,
    float tau, Limits limits, Scores scores)
{
    __shared__ __align__(16) float Q_tile[BR * LD], K_tile[BC * LD], S_tile[P_ROWS * LP];
    const RowBlock block = own_rows(q_len);
    const size_t first_stat = head_index() * q_len + block.first_row;
    const stored *const K_head = K + kv_head_index(group) * kv_len * D;
    load_tile<BR>(Q_tile, Q + first_stat * D, block.rows);
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    const int first_tile = seen.first_key / BC * BC;
    if (first_tile >= seen.end_key) return;
    const auto score = scores.of_head(block.head, q_len, kv_len);

    // For all K_j with a key that some row sees.
    for (int first_key = first_tile; first_key < seen.end_key; first_key += BC) {
        // Load K_j, once no thread reads K_(j-1) any more.
        __syncthreads();
        load_tile<BC>(K_tile, K_head + (size_t)first_key * D, min(BC, kv_len - first_key));
        __syncthreads();
        float S_acc[TM][TN];
        multiply_Q_Kt(S_acc, Q_tile, K_tile);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                S_tile[row_of(i) * LP + key_of(j)] =
                    score(tau * S_acc[i][j], block.first_row + row_of(i), first_key + key_of(j));
            }

        // A warp writes a row at a time: 32 consecutive elements.
        __syncthreads();
        for (int start = 0; start < BC; start += 32) {
            const int c = start + lane_index();
            const auto seeing = rows_seeing(seen.run, block, c < BC ? first_key + c : kv_len);
            stored *S_row = S + (first_stat + warp_index()) * kv_len + first_key + c;
            float s[ROWS_PER_WARP];
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i) s[i] = c < BC ? S_tile[(warp_index() + WARPS * i) * LP + c] : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, S_row += WARPS * (size_t)kv_len) {
                if (seeing.has(warp_index() + WARPS * i)) narrow(s[i], S_row);
            }
        }
    }
}

// Algorithm 0, line 3: load P and V by blocks, compute O = P V, write O. The factor of dropout is applied here, where nothing
// has been rounded to 16 bits yet.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_output(
    const stored *__restrict__ P, const stored *__restrict__ V, stored *__restrict__ O, int q_len, int kv_len, int group,
    Limits limits, Dropout dropout)
{
    __shared__ __align__(16) float V_tile[BC * LD], P_tile[P_ROWS * LP], O_tile[BR * LD];
    const RowBlock block = own_rows(q_len);
    const size_t first_stat = head_index() * q_len + block.first_row;
    const stored *const V_head = V + kv_head_index(group) * kv_len * D;

    float O_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;

    // For all V_j with a key that some row sees.
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    for (int first_key = seen.first_key / BC * BC; first_key < seen.end_key; first_key += BC) {
        // Load V_j and the tile of P, a row per warp, once no thread reads the last ones any more; zeros for unseen keys.
        const int keys = min(BC, kv_len - first_key);
        stored p[COLUMNS_PER_LANE][ROWS_PER_WARP];
#pragma unroll
        for (int j = 0; j < COLUMNS_PER_LANE; ++j) {
            const int c = lane_index() + 32 * j;
            const auto seeing = rows_seeing(seen.run, block, c < BC ? first_key + c : kv_len);
            const stored *P_row = P + (first_stat + warp_index()) * kv_len + first_key + c;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, P_row += WARPS * (size_t)kv_len) {
                p[j][i] = seeing.has(warp_index() + WARPS * i) ? *P_row : stored();
            }
        }
        __syncthreads();
        load_tile<BC>(V_tile, V_head + (size_t)first_key * D, keys);
#pragma unroll
        for (int j = 0; j < COLUMNS_PER_LANE; ++j)
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i) {
                const int c = lane_index() + 32 * j;
                if (c < BC) P_tile[(warp_index() + WARPS * i) * LP + c] = widen(p[j][i]);
            }
        __syncthreads();

        add_P_V(O_acc, P_tile, V_tile, keys, seen_in_tile(seen, block.first_row, first_key, keys));
    }

    gather(O_tile, O_acc, dropout.factor());
    __syncthreads();
    store_tile(O + first_stat * D, O_tile, block.rows);
}
