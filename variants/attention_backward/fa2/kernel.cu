// FlashAttention-2, backward pass: Dao 2023, arXiv 2307.08691, algorithm 2. Line numbers are the paper's.
// _dropout/dropout.cuh, _tiles/tiles.cuh, _tiles/backward.cuh and _tiles/copies.cuh are put before this text. The Numba
// twin is numba_kernel.py.
//
// dQ is summed in memory by many blocks at once, in float32; bwd_fa2_round writes it in the problem's own dtype.

// Line 3: dQ = 0. Line 4: D = rowsum(dO o O).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, float *__restrict__ delta, float *__restrict__ dQ,
    int q_len)
{
    TILE O_tile[ROWS * LD];
    TILE dO_tile[ROWS * LD];
    TILE delta_tile[ROWS];

    const int first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const int t = thread_index();
    for (int start = 0; start < rows * D; start += THREADS) {
        if (start + t < rows * D) dQ[first_stat * D + start + t] = 0.0f;
    }
    load_tile<ROWS>(O_tile, O + first_stat * D, rows);
    load_tile<ROWS>(dO_tile, dO + first_stat * D, rows);
    __syncthreads();
    row_dots(delta_tile, dO_tile, O_tile);
    __syncthreads();
    if (t < rows) delta[first_stat + t] = delta_tile[t];
}

#ifdef DROPOUT
#define DROPOUT_ARGUMENTS \
    , DROPOUT_OF(blockIdx.x * group + member, blockIdx.z), first_key, first_row, kept_factor
#else
#define DROPOUT_ARGUMENTS
#endif

// Lines 5 to 19: a block owns K_j and V_j of one head, and the query heads that share them. The grid is (heads of K and V,
// blocks of a head, batch): the first keys of all heads start first, which most rows see where causal.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    float *__restrict__ dQ, stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group,
    float tau, LIMITS_OF_KEYS DRAW_PARAMETERS FACTOR_PARAMETER)
{
    extern __shared__ __align__(16) float K_tile[];
    float *V_tile = K_tile + KEYS * LD, *Q_tile = V_tile + KEYS * LD, *dO_tile = Q_tile + ROWS * LD;
    float *P_tile = dO_tile + ROWS * LD, *dS_tile = P_tile + P_ROWS * LP;
    float *lse_tile = dS_tile + P_ROWS * LP, *delta_tile = lse_tile + ROWS;

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
    if (seeing.start < seeing.end) {
        copy_tile<ROWS>(Q_tile, Q + (kv_head * group * q_len + seeing.start) * D, min(ROWS, q_len - seeing.start));
    }
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (kv_head * group + member) * q_len;
        for (int first_row = seeing.start; first_row < seeing.end; first_row += ROWS) {
            // Line 9: load dO_i, once nobody adds what is gathered there any more, L_i and D_i; Q_i is on its way.
            const int rows = min(ROWS, q_len - first_row);
            __syncthreads();
            copy_tile<ROWS>(dO_tile, dO + (first_q + first_row) * D, rows);
            if (t < ROWS) {
                lse_tile[t] = t < rows ? lse[first_q + first_row + t] : 0.0f;
                delta_tile[t] = t < rows ? delta[first_q + first_row + t] : 0.0f;
            }
            wait_for_copies();
            __syncthreads();

            // Lines 10, 11, 13 and 14: S = tau Q_i K_j^T, P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
            int first[TM], end[TM];
            span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, ahead, behind);
            weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, tau, first,
                                  end DROPOUT_ARGUMENTS);
            __syncthreads();

            // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
            const int first_by_all = seeing.first_by_all - first_row, end_by_all = seeing.end_by_all - first_row;
            add_P_V(dV_acc, P_tile, dO_tile, first_by_all, end_by_all, rows, first, end);
            add_P_V(dK_acc, dS_tile, Q_tile, first_by_all, end_by_all, rows, first, end);

            // Line 15: dQ_i = dQ_i + tau dS K_j in memory, gathered where dO_i was and added as one run; other blocks
            // add theirs at the same time. The next Q_i comes meanwhile, of this head or of the next one.
            float dQ_part[TQ][TD];
            multiply_dS_K(dQ_part, dS_tile, K_tile, first_by_all, end_by_all, first_key, keys, first_row, rows, q_len,
                          kv_len, ahead, behind);
            __syncthreads();
            const bool of_next_head = first_row + ROWS >= seeing.end;
            if (!of_next_head || member + 1 < group) {
                const size_t next_head = of_next_head ? first_q + q_len : first_q;
                const int next_row = of_next_head ? seeing.start : first_row + ROWS;
                copy_tile<ROWS>(Q_tile, Q + (next_head + next_row) * D, min(ROWS, q_len - next_row));
            }
            gather<ROWS>(dO_tile, dQ_part, tau);
            __syncthreads();
#pragma unroll 8
            for (int start = 0; start < ROWS * D; start += THREADS) {
                const int e = start + t;
                if (e < rows * D) atomicAdd(&dQ[(first_q + first_row) * D + e], dO_tile[place(e)]);
            }
        }
    }

    // Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
    __syncthreads();
    gather<KEYS>(K_tile, dK_acc, tau);
    gather<KEYS>(V_tile, dV_acc, KEPT_FACTOR);
    __syncthreads();
    store_tile(dK + first_kv * D, K_tile, keys);
    store_tile(dV + first_kv * D, V_tile, keys);
}

// Line 20: return dQ, in the problem's own dtype.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_round(
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
