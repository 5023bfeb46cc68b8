// FlashAttention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 4. Line numbers are the paper's; there is no
// dropout, so lines 1, 14, 15 and 18 have nothing to do. _tiles/tiles.cuh and _tiles/backward.cuh are put before this
// text. The Numba twin is numba_kernel.py.
//
// dQ is rewritten in memory once per K/V block, in float32; bwd_fa1_round writes it in the problem's own dtype.

// Line 5: dQ = 0 in global memory.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1_initialise(float *__restrict__ dQ, int q_len)
{
    const int first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, q_len - first_row);
    const size_t first_element = (head_index() * q_len + first_row) * D;
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) dQ[first_element + e] = 0.0f;
    }
}

// Lines 6 to 25: one block per head of K and V, with the query heads that share it.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ O, const stored *__restrict__ dO, const float *__restrict__ lse,
    float *__restrict__ dQ, stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group,
    float tau, LIMITS_OF_KEYS)
{
    TILE K_tile[KEYS * LD];
    TILE V_tile[KEYS * LD];
    TILE Q_tile[ROWS * LD];
    TILE O_tile[ROWS * LD];  // O_i, then this K_j's part of dQ_i
    TILE dO_tile[ROWS * LD];
    TILE P_tile[P_ROWS * LP];
    TILE dS_tile[P_ROWS * LP];
    TILE lse_tile[ROWS];
    TILE delta_tile[ROWS];

    const int t = thread_index();
    for (int first_key = 0; first_key < kv_len; first_key += KEYS) {
        const int keys = min(KEYS, kv_len - first_key);
        const size_t first_kv = head_index() * kv_len + first_key;

        // Line 7: load K_j, V_j, if any row sees one of the keys, once nobody reads what was gathered there any more.
        __syncthreads();
        KEEP_LIMITS_OF_KEYS(P_ROWS, first_key, keys)
        const RowsSeeing seeing = rows_seeing(first_key, first_key + keys - 1, q_len, kv_len, ahead, behind);
        if (seeing.start < seeing.end) {
            load_tile<KEYS>(K_tile, K + first_kv * D, keys);
            load_tile<KEYS>(V_tile, V + first_kv * D, keys);
        }

        // Line 8: dK_j = 0, dV_j = 0, on chip.
        float dK_acc[TM][TD], dV_acc[TM][TD];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TD; ++j) dK_acc[i][j] = dV_acc[i][j] = 0.0f;

        // Line 9: for all Q_i with a row that sees some key of the tile, of all heads that share it.
        for (int member = 0; member < group; ++member) {
            const size_t first_q = (head_index() * group + member) * q_len;
            for (int first_row = seeing.start; first_row < seeing.end; first_row += ROWS) {
                // Line 10: load Q_i, O_i, dO_i and the log-sum-exp. Behind the barrier of line 21 nobody reads the last
                // ones any more but the thread itself that overwrites them.
                const int rows = min(ROWS, q_len - first_row);
                load_tile<ROWS>(Q_tile, Q + (first_q + first_row) * D, rows);
                load_tile<ROWS>(O_tile, O + (first_q + first_row) * D, rows);
                load_tile<ROWS>(dO_tile, dO + (first_q + first_row) * D, rows);
                if (t < ROWS) lse_tile[t] = t < rows ? lse[first_q + first_row + t] : 0.0f;
                __syncthreads();

                // Line 19: D_i = rowsum(dO_i o O_i).
                row_dots(delta_tile, dO_tile, O_tile);
                __syncthreads();

                // Lines 11 to 13: S = tau Q_i K_j^T, P = exp(S - lse) where seen. Lines 17 and 20: dP = dO_i V_j^T,
                // dS = P o (dP - D_i).
                int first[TM], end[TM];
                span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind);
                weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau,
                                      first, end);
                __syncthreads();

                // Line 16: dV_j = dV_j + P^T dO_i. Line 22: dK_j = dK_j + dS^T Q_i.
                const int first_by_all = seeing.first_by_all - first_row, end_by_all = seeing.end_by_all - first_row;
                add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end);
                add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end);

                // Line 21: dQ_i = dQ_i + tau dS K_j in memory. Each thread reads back only what it wrote itself.
                float dQ_part[TQ][TD];
                multiply_dS_K(dQ_part, dS_tile, K_tile, first_by_all, end_by_all, first_key, keys, first_row, rows,
                              q_len, kv_len, ahead, behind);
                gather<ROWS>(O_tile, dQ_part, tau);
                __syncthreads();
                for (int start = 0; start < rows * D; start += THREADS) {
                    const int e = start + t;
                    if (e < rows * D) dQ[(first_q + first_row) * D + e] += O_tile[place(e)];
                }
            }
        }

        // Line 24: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
        __syncthreads();
        gather<KEYS>(K_tile, dK_acc, tau);
        gather<KEYS>(V_tile, dV_acc, 1.0f);
        __syncthreads();
        store_tile(dK + first_kv * D, K_tile, keys);
        store_tile(dV + first_kv * D, V_tile, keys);
    }
}

// Line 26: return dQ, in the problem's own dtype.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1_round(
    const float *__restrict__ dQ_running, stored *__restrict__ dQ, int q_len)
{
    const int first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, q_len - first_row);
    const size_t first_element = (head_index() * q_len + first_row) * D;
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(dQ_running[first_element + e], &dQ[first_element + e]);
    }
}
