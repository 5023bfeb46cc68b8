// FlashAttention, backward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 4. Line numbers are the paper's; there is no
// dropout, so lines 1, 14, 15 and 18 have nothing to do. What is loaded, multiplied and reduced is in _tiles/tiles.cuh and
// backward.cuh; Limits (mirrored: which rows see a key), a type that the plan chooses, is in _features/. The Numba twin is
// numba_kernel.py.
//
// dQ is rewritten in memory once per K_j, in float32; bwd_fa1_round then writes it as elements are stored.

// Line 5: dQ = 0 in memory.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1_initialise(float *__restrict__ dQ, int q_len)
{
    const int first_row = blockIdx.x * ROWS;
    zero_rows(dQ + (head_index() * q_len + first_row) * D, min(ROWS, q_len - first_row));
}

// Lines 6 to 25: one block per head of K and V, with the query heads that share it.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ O, const stored *__restrict__ dO, const float *__restrict__ lse,
    float *__restrict__ dQ, stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group,
    float tau, Limits limits)
{
    __shared__ __align__(16) float K_tile[KEYS * LD], V_tile[KEYS * LD], Q_tile[ROWS * LD], dO_tile[ROWS * LD];
    __shared__ __align__(16) float O_tile[ROWS * LD];  // O_i, then this K_j's part of dQ_i
    __shared__ __align__(16) float P_tile[P_ROWS * LP], dS_tile[P_ROWS * LP], lse_tile[ROWS], delta_tile[ROWS];

    const int t = thread_index(), blocks = (kv_len + KEYS - 1) / KEYS;
    for (int first_key = 0; first_key < kv_len; first_key += KEYS) {
        const int keys = min(KEYS, kv_len - first_key);
        const RowBlock block = {(int)blockIdx.z, (int)blockIdx.y, first_key / KEYS, blocks, first_key, keys};
        const size_t first_kv = head_index() * kv_len + first_key;

        // Line 7: load K_j, V_j, if any row sees one of the keys, once no thread reads what was gathered there any more.
        __syncthreads();
        const auto seeing = rows_seeing(limits, block, q_len, kv_len);
        if (seeing.exist()) {
            load_tile<KEYS>(K_tile, K + first_kv * D, keys);
            load_tile<KEYS>(V_tile, V + first_kv * D, keys);
        }

        // Line 8: dK_j = 0, dV_j = 0, on chip.
        float dK_acc[TM][TD] = {}, dV_acc[TM][TD] = {};

        // Line 9: for all Q_i with a row that sees some key of the tile, of all heads that share it.
        for (int member = 0; member < group; ++member) {
            const size_t first_q = (head_index() * group + member) * q_len;
            for (int first_row = seeing.start_row; first_row < seeing.end_row; first_row += ROWS) {
                // Line 10: load Q_i, O_i, dO_i and the log-sum-exp. After the barrier of line 21 no thread reads the last
                // ones but the one that overwrites them.
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
                weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, seeing,
                                      Scores(), NoDropout::OfHead(), 1.0f, NoBias(), first_row, rows);
                __syncthreads();

                // Line 16: dV_j = dV_j + P^T dO_i. Line 22: dK_j = dK_j + dS^T Q_i.
                const auto seen = seeing.in_tile(first_row, rows);
                add_P_V(dV_acc, P_tile, dO_tile, rows, seen);
                add_P_V(dK_acc, dS_tile, Q_tile, rows, seen);

                // Line 21: dQ_i = dQ_i + tau dS K_j in memory. Each thread reads only what it wrote itself.
                float dQ_part[TQ][TD];
                multiply_dS_K(dQ_part, dS_tile, K_tile, seeing, seen, keys, first_row, rows);
                gather_dQ(O_tile, dQ_part, tau);
                __syncthreads();
                for (int start = 0; start < rows * D; start += THREADS) {
                    const int e = start + t;
                    if (e < rows * D) dQ[(first_q + first_row) * D + e] += O_tile[place(e)];
                }
            }
        }

        // Line 24: write dK_j, dV_j.
        store_dK_dV(dK + first_kv * D, dV + first_kv * D, K_tile, V_tile, dK_acc, dV_acc, tau, 1.0f, keys);
    }
}

// Line 26: return dQ, as elements are stored.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa1_round(
    const float *__restrict__ dQ_running, stored *__restrict__ dQ, int q_len)
{
    const int first_row = blockIdx.x * ROWS;
    const size_t first_element = (head_index() * q_len + first_row) * D;
    round_rows(dQ + first_element, dQ_running + first_element, min(ROWS, q_len - first_row));
}
