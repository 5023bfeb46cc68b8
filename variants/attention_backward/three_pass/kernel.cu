// Standard attention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 3, with S, P, dP and dS in global memory.
// _dropout/dropout.cuh, _tiles/tiles.cuh and _tiles/backward.cuh are put before this text. The Numba twin is numba_kernel.py.
//
// A row of S, P, dP and dS is the keys that it sees: what lies ahead of them or behind is neither written nor read.

constexpr int WARPS = THREADS / 32;
constexpr int ROWS_PER_WARP = P_ROWS / WARPS;  // of a tile with a row of scores per row
constexpr int COLUMNS_PER_LANE = (BC + 31) / 32;
__device__ __forceinline__ int warp_index() { return thread_index() / 32; }
__device__ __forceinline__ int lane_index() { return thread_index() % 32; }

// Whether a row sees a key.
__device__ __forceinline__ bool sees(int row, int key, int q_len, int kv_len, Limit before, Limit after)
{
    return first_seen(row, q_len, kv_len, before) <= key && key < end_seen(row, q_len, kv_len, after);
}

// S = tau Q K^T, which the forward pass does not keep, and, line 2, dP = dO V^T: read X and Y by blocks, write S.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_three_pass_product(
    const stored *__restrict__ X, const stored *__restrict__ Y, stored *__restrict__ S, int q_len, int kv_len,
    int group, float factor, LIMITS)
{
    TILE X_tile[BR * LD];
    TILE Y_tile[BC * LD];
    TILE S_tile[P_ROWS * LP];

    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const stored *Y_head = Y + kv_head_index(group) * kv_len * D;
    load_tile<BR>(X_tile, X + first_stat * D, rows);

    // All Y_j with a key that some row sees: from the first row's first to the last row's last.
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int end_by_last = end_seen(first_row + rows - 1, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        // Load Y_j, once nobody reads Y_(j-1) any more.
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
                const bool in_tile = r < rows && c < BC;
                if (in_tile && sees(first_row + r, first_key + c, q_len, kv_len, before, after)) {
                    narrow(S_tile[r * LP + c], S_row);
                }
            }
        }
    }
}

// P = exp(S - lse), which line 1 has from the forward pass, and, line 3, dS = P o (dP - D) with D = rowsum(dO o O), which is
// rowsum(P o dP): read S and dP, write P and dS. A warp takes a row. Where a weight drops out P and dP are 0; elsewhere dP
// grows here, and P's product where no 16 bits are between.
constexpr int KEYS_AT_ONCE = 8;
extern "C" __global__ __launch_bounds__(THREADS) void bwd_three_pass_weights(
    const stored *__restrict__ S, const stored *__restrict__ dP, const stored *__restrict__ O,
    const stored *__restrict__ dO, const float *__restrict__ lse, stored *__restrict__ P, stored *__restrict__ dS,
    int q_len, int kv_len, LIMITS DRAW_PARAMETERS FACTOR_PARAMETER)
{
    const int row = blockIdx.x * WARPS + warp_index();
    if (row >= q_len) return;
    LIMITS_IN_MEMORY
    const int first_key = first_seen(row, q_len, kv_len, before);
    const int seen = end_seen(row, q_len, kv_len, after) - first_key;
    if (seen <= 0) return;
    const size_t stat = head_index() * q_len + row;

    float sum = 0.0f;
    for (int start = 0; start < D; start += 32) {
        const int e = start + lane_index();
        if (e < D) sum += widen(dO[stat * D + e]) * widen(O[stat * D + e]);
    }
    const float delta = lanes_sum<32>(sum);
    const float lse_row = lse[stat];

    for (int start = 0; start < seen; start += 32 * KEYS_AT_ONCE) {
        const int j = start + lane_index();
        const size_t at = stat * kv_len + first_key + j;
        stored s[KEYS_AT_ONCE], dp[KEYS_AT_ONCE];
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            s[c] = j + c * 32 < seen ? S[at + c * 32] : stored();
            dp[c] = j + c * 32 < seen ? dP[at + c * 32] : stored();
        }
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            // S <= lse but for its rounding, which 16 bits may have by more than what exp has numbers for.
            const float below = widen(s[c]) - lse_row;
            const float p = __expf(below > 0.0f ? 0.0f : below);
            if (j + c * 32 < seen) {
#ifdef DROPOUT
                const bool kept = DROPOUT_OF(blockIdx.y, blockIdx.z).keeps(row, first_key + j + c * 32);
#endif
                narrow(DROPPED(p, kept, 0), &P[at + c * 32]);
                narrow(p * (DROPPED(KEPT_FACTOR * widen(dp[c]), kept, 0) - delta), &dS[at + c * 32]);
            }
        }
    }
}

// Line 1: dV = P^T dO, and line 5: dK = tau dS^T Q: read W and X by blocks, write Y. A block owns a tile of keys of one head,
// and the query heads that share it; the tile is turned, see backward.cuh.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_three_pass_of_keys(
    const stored *__restrict__ W, const stored *__restrict__ X, stored *__restrict__ Y, int q_len, int kv_len,
    int group, float factor, LIMITS_OF_KEYS)
{
    TILE X_tile[(ROWS > KEYS ? ROWS : KEYS) * LD];
    TILE W_tile[P_ROWS * LP];

    const int first_key = blockIdx.x * KEYS;
    const int keys = min(KEYS, kv_len - first_key);
    const size_t first_kv = head_index() * kv_len + first_key;
    float Y_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) Y_acc[i][j] = 0.0f;

    // All X_i with a row that sees some key of the tile, of all heads that share it.
    KEEP_LIMITS_OF_KEYS(P_ROWS, first_key, keys)
    const int last_key = first_key + keys - 1;
    const RowsSeeing seeing = rows_seeing(first_key, last_key, q_len, kv_len, ahead, behind);
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (head_index() * group + member) * q_len;
        for (int first_row = seeing.start; first_row < seeing.end; first_row += ROWS) {
            // Load X_i and the tile of W, a row per warp, once nobody reads the last ones any more. Zeros: not seen.
            const int rows = min(ROWS, q_len - first_row);
            __syncthreads();
            load_tile<ROWS>(X_tile, X + (first_q + first_row) * D, rows);
            for (int start = 0; start < KEYS; start += 32) {
                const int c = start + lane_index();
                const int key = min(first_key + c, last_key);
                const int first_r = first_seen(key, kv_len, q_len, ahead) - first_row;
                const int end_r = c < keys ? end_seen(key, kv_len, q_len, behind) - first_row : 0;
                for (int r = warp_index(); r < ROWS; r += WARPS) {
                    const stored *w = W + (first_q + first_row + r) * kv_len + first_key + c;
                    const float w_rc = first_r <= r && r < end_r ? widen(*w) : 0.0f;
                    if (c < KEYS) W_tile[c * LP + r] = w_rc;
                }
            }
            __syncthreads();

            int first[TM], end[TM];
            span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind);
            const int first_by_all = seeing.first_by_all - first_row, end_by_all = seeing.end_by_all - first_row;
            add_P_V(Y_acc, W_tile, X_tile, first_by_all, end_by_all, rows, first, end);
        }
    }

    __syncthreads();
    gather<KEYS>(X_tile, Y_acc, factor);
    __syncthreads();
    store_tile(Y + first_kv * D, X_tile, keys);
}

// Line 4: dQ = tau dS K: read dS and K by blocks, write dQ.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_three_pass_of_rows(
    const stored *__restrict__ dS, const stored *__restrict__ K, stored *__restrict__ dQ, int q_len, int kv_len,
    int group, float factor, LIMITS)
{
    TILE K_tile[BC * LD];
    TILE dS_tile[P_ROWS * LP];
    TILE dQ_tile[BR * LD];

    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;

    float dQ_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) dQ_acc[i][j] = 0.0f;

    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        // Load K_j and the tile of dS, a row per warp, once nobody reads the last ones any more. Zeros where no row is.
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
                const bool in_tile = r < rows && c < BC;
                const bool seen = in_tile && sees(first_row + r, first_key + c, q_len, kv_len, before, after);
                const float ds = seen ? widen(*dS_row) : 0.0f;
                if (c < BC) dS_tile[r * LP + c] = ds;
            }
        }
        __syncthreads();

        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        add_P_V(dQ_acc, dS_tile, K_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    gather<BR>(dQ_tile, dQ_acc, factor);
    __syncthreads();
    store_tile(dQ + first_stat * D, dQ_tile, rows);
}
