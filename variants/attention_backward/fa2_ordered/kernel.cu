// FlashAttention-2, backward pass, with dQ in a launch of its own: Dao 2023, arXiv 2307.08691, algorithm 2, whose line
// numbers these are. _tiles/tiles.cuh and _tiles/backward.cuh are put before this text. The Numba twin is
// numba_kernel.py.

// Line 4: D = rowsum(dO o O).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, float *__restrict__ delta, int q_len)
{
    TILE O_tile[ROWS * LD];
    TILE dO_tile[ROWS * LD];
    TILE delta_tile[ROWS];

    const int first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const int t = thread_index();
    load_tile<ROWS>(O_tile, O + first_stat * D, rows);
    load_tile<ROWS>(dO_tile, dO + first_stat * D, rows);
    __syncthreads();
    row_dots(delta_tile, dO_tile, O_tile);
    __syncthreads();
    if (t < rows) delta[first_stat + t] = delta_tile[t];
}

// Lines 5 to 19 without 15: a block owns K_j and V_j of one head, and the query heads that share them. The grid is (heads of
// K and V, blocks of a head, batch): the first keys of all heads start first, which most rows see where causal.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_of_keys(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group, float tau, LIMITS_OF_KEYS)
{
    TILE K_tile[KEYS * LD];
    TILE V_tile[KEYS * LD];
    TILE Q_tile[ROWS * LD];
    TILE dO_tile[ROWS * LD];
    TILE P_tile[P_ROWS * LP];
    TILE dS_tile[P_ROWS * LP];
    TILE lse_tile[ROWS];
    TILE delta_tile[ROWS];

    const int t = thread_index();
    const int first_key = blockIdx.y * KEYS;
    const int keys = min(KEYS, kv_len - first_key);
    const size_t kv_head = (size_t)blockIdx.z * gridDim.x + blockIdx.x, first_kv = kv_head * kv_len + first_key;
    KEEP_LIMITS_OF_KEYS(P_ROWS, first_key, keys)
    const RowsSeeing seeing = rows_seeing(first_key, first_key + keys - 1, q_len, kv_len, ahead, behind);

    // Line 6: load K_j, V_j, if any row sees one of the keys.
    if (seeing.start < seeing.end) {
        load_tile<KEYS>(K_tile, K + first_kv * D, keys);
        load_tile<KEYS>(V_tile, V + first_kv * D, keys);
    }

    // Line 7: dK_j = 0, dV_j = 0, on chip.
    float dK_acc[TM][TD], dV_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) dK_acc[i][j] = dV_acc[i][j] = 0.0f;

    // Line 8: for all Q_i with a row that sees some key of the tile, of all heads that share it.
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (kv_head * group + member) * q_len;
        for (int first_row = seeing.start; first_row < seeing.end; first_row += ROWS) {
            // Line 9: load Q_i, dO_i, L_i, D_i, once nobody reads the last ones any more.
            const int rows = min(ROWS, q_len - first_row);
            __syncthreads();
            load_tile<ROWS>(Q_tile, Q + (first_q + first_row) * D, rows);
            load_tile<ROWS>(dO_tile, dO + (first_q + first_row) * D, rows);
            if (t < ROWS) {
                lse_tile[t] = t < rows ? lse[first_q + first_row + t] : 0.0f;
                delta_tile[t] = t < rows ? delta[first_q + first_row + t] : 0.0f;
            }
            __syncthreads();

            // Lines 10, 11, 13 and 14: S = tau Q_i K_j^T, P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
            int first[TM], end[TM];
            span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind);
            weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first,
                                  end);
            __syncthreads();

            // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
            const int first_by_all = seeing.first_by_all - first_row, end_by_all = seeing.end_by_all - first_row;
            add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end);
            add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end);
        }
    }

    // Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
    __syncthreads();
    gather<KEYS>(K_tile, dK_acc, tau);
    gather<KEYS>(V_tile, dV_acc, 1.0f);
    __syncthreads();
    store_tile(dK + first_kv * D, K_tile, keys);
    store_tile(dV + first_kv * D, V_tile, keys);
}

// Line 15 alone: a block owns Q_i and dO_i of one head, as in the forward pass, and the tile is not turned: BR rows, BC
// keys. S and dP are worked out once more. The grid is (heads, blocks of a head, batch): the last rows start first.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_of_rows(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    stored *__restrict__ dQ, int q_len, int kv_len, int group, float tau, LIMITS)
{
    TILE Q_tile[BR * LD];
    TILE dO_tile[BR * LD];
    TILE K_tile[BC * LD];
    TILE V_tile[BC * LD];
    TILE dS_tile[P_ROWS * LP];
    TILE lse_tile[BR];
    TILE delta_tile[BR];

    const int t = thread_index();
    const int first_row = (gridDim.y - 1 - blockIdx.y) * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t head = (size_t)blockIdx.z * gridDim.x + blockIdx.x, first_stat = head * q_len + first_row;
    const size_t kv_head = (size_t)blockIdx.z * (gridDim.x / group) + blockIdx.x / group;
    const stored *K_head = K + kv_head * kv_len * D;
    const stored *V_head = V + kv_head * kv_len * D;
    load_tile<BR>(Q_tile, Q + first_stat * D, rows);
    load_tile<BR>(dO_tile, dO + first_stat * D, rows);
    if (t < BR) {
        lse_tile[t] = t < rows ? lse[first_stat + t] : 0.0f;
        delta_tile[t] = t < rows ? delta[first_stat + t] : 0.0f;
    }

    float dQ_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) dQ_acc[i][j] = 0.0f;

    // All K_j with a key that some row sees: from the first row's first to the last row's last.
    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        // Load K_j, V_j, once nobody reads the last ones any more.
        const int keys = min(BC, kv_len - first_key);
        __syncthreads();
        load_tile<BC>(K_tile, K_head + (size_t)first_key * D, keys);
        load_tile<BC>(V_tile, V_head + (size_t)first_key * D, keys);
        __syncthreads();

        // Lines 10, 11, 13 and 14, a row per row this time.
        float S[TM][TN], dP[TM][TN];
        int first[TM], end[TM];
        multiply_Q_Kt(S, Q_tile, K_tile);
        multiply_Q_Kt(dP, dO_tile, V_tile);
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float lse_i = lse_tile[tile_row(i)], delta_i = delta_tile[tile_row(i)];
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const bool seen = first[i] <= key_of(j) && key_of(j) < end[i];
                const float p = seen ? __expf(tau * S[i][j] - lse_i) : 0.0f;
                dS_tile[row_of(i) * LP + key_of(j)] = seen ? p * (dP[i][j] - delta_i) : 0.0f;
            }
        }
        __syncthreads();

        // Line 15: dQ_i = dQ_i + dS K_j.
        add_P_V(dQ_acc, dS_tile, K_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    // dQ_i, which is times tau, gathered where Q_i was.
    __syncthreads();
    gather<BR>(Q_tile, dQ_acc, tau);
    __syncthreads();
    store_tile(dQ + first_stat * D, Q_tile, rows);
}
