// FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// _tiles/tiles.cuh is put before this text. The Numba twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, int before,
    int after)
{
    TILE Q_tile[BR * LD];
    TILE KV_tile[BC * LD];  // K_j, then V_j
    TILE P_tile[P_ROWS * LP];
    TILE l_tile[P_ROWS];
    TILE m_tile[P_ROWS];

    // Line 3: the block owns Q_i and O_i of one head.
    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const size_t first_element = first_stat * D;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;
    const stored *V_head = V + kv_head_index(group) * kv_len * D;

    // Line 4: load Q_i.
    load_tile<BR>(Q_tile, Q + first_element, rows);

    // Line 5: O_i = 0, l_i = 0, m_i = -inf, on chip.
    float O_acc[TM][TD], l[TM], m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        l[i] = 0.0f;
        m[i] = MINUS_INFINITY;
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // Line 6: for all K_j, V_j with a key that some row sees: from the first row's first to the last row's last.
    const int last_row = first_row + rows - 1;
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        // Line 7: load K_j, once nobody reads V_(j-1) any more.
        __syncthreads();
        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);
        __syncthreads();

        // Line 8: S = tau Q_i K_j^T.
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        scale_and_mask(S, tau, first, end);

        // Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P).
        // Line 10, first half: O_i = diag(exp(m_old - m)) O_i.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float m_new = fmaxf(m[i], row_max(S[i]));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;

            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float p = exp_below(S[i][j], m_new);
                P_tile[row_of(i) * LP + key_of(j)] = p;
                sum += p;
            }
            l[i] = correction * l[i] + lanes_sum<TX>(sum);
#pragma unroll
            for (int j = 0; j < TD; ++j) O_acc[i][j] *= correction;
        }

        // Line 7: load V_j, once nobody reads K_j any more.
        __syncthreads();
        load_tile<BC>(KV_tile, V_head + (size_t)first_key * D, keys);
        __syncthreads();

        // Line 10, second half: O_i = O_i + P V_j.
        add_P_V(O_acc, P_tile, KV_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    // Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that saw nothing has l = 0: its O stays 0.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float inverse = l[i] == 0.0f ? 0.0f : 1.0f / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) Q_tile[row_of(i) * LD + element_of(j)] = O_acc[i][j] * inverse;
        }
        if (threadIdx.x == 0) {
            l_tile[row_of(i)] = l[i];
            m_tile[row_of(i)] = m[i];
        }
    }
    __syncthreads();

    // Line 14: write O_i.
    store_tile(O + first_element, Q_tile, rows);

    // Lines 13 and 15: L_i = m_i + log(l_i), which is -inf where nothing was seen; write it.
    const int t = thread_index();
    if (t < rows) lse[first_stat + t] = m_tile[t] + logf(l_tile[t]);
}
