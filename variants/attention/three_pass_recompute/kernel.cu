// Attention with the safe softmax of Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2, a tile of keys at a time,
// and the scores computed anew in each of its three sweeps. Line numbers are that algorithm's, its d_V is l here.
// _tiles/tiles.cuh is put before this text. The Numba twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_recompute(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    int q_len, int kv_len, int group, float tau, LIMITS)
{
    TILE Q_tile[BR * LD];
    TILE KV_tile[BC * LD];  // K_j, then V_j
    TILE P_tile[P_ROWS * LP];

    // The block owns Q_i and O_i of one head.
    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_element = (head_index() * q_len + first_row) * D;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;
    const stored *V_head = V + kv_head_index(group) * kv_len * D;
    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
    load_tile<BR>(Q_tile, Q + first_element, rows);

    // Line 1: m = -inf.
    float m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) m[i] = MINUS_INFINITY;

    // Line 2, sweep one: all K_j with a key that some row sees: from the first row's first to the last row's last.
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        // Load K_j, once nobody reads K_(j-1) any more. The x of the paper is S = tau Q_i K_j^T.
        __syncthreads();
        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);
        __syncthreads();
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        scale_and_mask(S, Scoring{tau}, first, end);

        // Line 3: m = max(m, rowmax(S)).
#pragma unroll
        for (int i = 0; i < TM; ++i) m[i] = fmaxf(m[i], row_max(S[i]));
    }

    // Line 5: l = 0.
    float l[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) l[i] = 0.0f;

    // Line 6, sweep two: the scores once more, with the final m.
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        __syncthreads();
        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);
        __syncthreads();
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        scale_and_mask(S, Scoring{tau}, first, end);

        // Line 7: l = l + rowsum(exp(S - m)).
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) sum += exp_below(S[i][j], m[i]);
            l[i] += row_sum(sum);
        }
    }

    // A row that saw nothing has l = 0: its weights and its O stay 0.
    float O_acc[TM][TD], inverse[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        inverse[i] = l[i] == 0.0f ? 0.0f : 1.0f / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // Line 9, sweep three: the scores once more, with the final m and l.
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        __syncthreads();
        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);
        __syncthreads();
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        scale_and_mask(S, Scoring{tau}, first, end);

        // Line 10: P = exp(S - m) / l.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                P_tile[row_of(i) * LP + key_of(j)] = exp_below(S[i][j], m[i]) * inverse[i];
            }
        }

        // O_i = O_i + P V_j, with V_j in the place of K_j once nobody reads that any more.
        __syncthreads();
        load_tile<BC>(KV_tile, V_head + (size_t)first_key * D, keys);
        __syncthreads();
        add_P_V(O_acc, P_tile, KV_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    // Gather O_i where Q_i was, and write it.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) Q_tile[row_of(i) * LD + element_of(j)] = O_acc[i][j];
        }
    }
    __syncthreads();
    store_tile(O + first_element, Q_tile, rows);
}
