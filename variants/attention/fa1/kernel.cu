// FlashAttention, forward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 1. Line numbers are the paper's.
// _tiles/tiles.cuh is put before this text. The Numba twin is numba_kernel.py.
//
// O is rewritten once per K/V block. It is kept in float32, for rounding it to 16 bits every time would add up;
// fa1_round writes it in the problem's own dtype in the end.

// Line 2: O = 0, l = 0, m = -inf in global memory.
extern "C" __global__ __launch_bounds__(THREADS) void fa1_initialise(
    float *__restrict__ O, float *__restrict__ l, float *__restrict__ m, int q_len)
{
    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const int t = thread_index();
    for (int start = 0; start < rows * D; start += THREADS) {
        if (start + t < rows * D) O[first_stat * D + start + t] = 0.0f;
    }
    if (t < rows) {
        l[first_stat + t] = 0.0f;
        m[first_stat + t] = MINUS_INFINITY;
    }
}

// Lines 3 to 15: one block per head.
extern "C" __global__ __launch_bounds__(THREADS) void fa1(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, float *__restrict__ O,
    float *__restrict__ l, float *__restrict__ m, int q_len, int kv_len, int group, float tau, LIMITS)
{
    TILE K_tile[BC * LD];
    TILE V_tile[BC * LD];
    TILE Q_tile[BR * LD];
    TILE O_tile[BR * LD];
    TILE P_tile[P_ROWS * LP];
    TILE l_tile[BR];
    TILE m_tile[BR];

    const int t = thread_index();
    const size_t first_q = head_index() * q_len;
    const size_t first_kv = kv_head_index(group) * kv_len;

    // Line 5: for all K_j, V_j with a key that some row sees.
    LIMITS_IN_MEMORY
    const int first_by_first = first_seen(0, q_len, kv_len, before);
    const int end_by_last = end_seen(q_len - 1, q_len, kv_len, after);
#ifdef SPANS
    int first_seeing = 0;
#endif
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        // Line 6: load K_j, V_j.
        const int keys = min(BC, kv_len - first_key);
        load_tile<BC>(K_tile, K + (first_kv + first_key) * D, keys);
        load_tile<BC>(V_tile, V + (first_kv + first_key) * D, keys);

        // Line 7: for all Q_i with a row that sees some key of the tile.
#ifndef SPANS
        // A key's own row lies on it; rows from `after` ahead of that one to `before` behind see the key.
        const int own_row = first_key + q_len - kv_len;
        const int first_seeing = max(own_row - after, 0);
        const int end_seeing = min(own_row + keys + before, q_len);
#else
        // Those that see the tile lie together, and none of them ahead of those that see the tile before.
        while (first_seeing < q_len && end_seen(min(first_seeing + BR, q_len) - 1, q_len, kv_len, after) <= first_key) {
            first_seeing += BR;
        }
        int end_seeing = first_seeing;
        while (end_seeing < q_len && first_seen(end_seeing, q_len, kv_len, before) < first_key + keys) end_seeing += BR;
#endif
        for (int first_row = first_seeing / BR * BR; first_row < end_seeing; first_row += BR) {
            // Line 8: load Q_i, O_i, l_i, m_i.
            const int rows = min(BR, q_len - first_row);
            KEEP_LIMITS(first_row, rows)
            load_tile<BR>(Q_tile, Q + (first_q + first_row) * D, rows);
            load_tile<BR>(O_tile, O + (first_q + first_row) * D, rows);
            if (t < BR) {
                l_tile[t] = t < rows ? l[first_q + first_row + t] : 0.0f;
                m_tile[t] = t < rows ? m[first_q + first_row + t] : MINUS_INFINITY;
            }
            __syncthreads();

            // Line 9: S = tau Q_i K_j^T.
            float S[TM][TN];
            int first[TM], end[TM];
            multiply_Q_Kt(S, Q_tile, K_tile);
            span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
            scale_and_mask(S, Scoring{tau}, first, end);

            float l_new[TM], m_new[TM], weight_old[TM], weight_new[TM];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                // Line 10: m~ = rowmax(S), P~ = exp(S - m~), l~ = rowsum(P~).
                const float m_here = row_max(S[i]);
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float p = exp_below(S[i][j], m_here);
                    P_tile[row_of(i) * LP + key_of(j)] = p;
                    sum += p;
                }
                const float l_here = row_sum(sum);

                // Line 11: m_new = max(m, m~), l_new = exp(m - m_new) l + exp(m~ - m_new) l~.
                const float m_old = m_tile[tile_row(i)];
                m_new[i] = fmaxf(m_old, m_here);
                const float old_part = exp_below(m_old, m_new[i]) * l_tile[tile_row(i)];
                const float correction = exp_below(m_here, m_new[i]);
                l_new[i] = old_part + correction * l_here;

                // What line 12 multiplies O and P~ V by. Where nothing was seen yet, O stays 0.
                const float inverse = l_new[i] == 0.0f ? 0.0f : 1.0f / l_new[i];
                weight_old[i] = old_part * inverse;
                weight_new[i] = correction * inverse;
            }
            __syncthreads();

            // Line 12: O_i = diag(l_new)^-1 (diag(l) exp(m - m_new) O_i + exp(m~ - m_new) P~ V_j).
            float PV[TM][TD];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TD; ++j) PV[i][j] = 0.0f;
            const int first_by_all = first_seen(first_row + rows - 1, q_len, kv_len, before) - first_key;
            const int end_by_all = end_seen(first_row, q_len, kv_len, after) - first_key;
            add_P_V(PV, P_tile, V_tile, first_by_all, end_by_all, keys, first, end);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (has_row(i)) {
#pragma unroll
                    for (int j = 0; j < TD; ++j) {
                        if (has_element(j)) {
                            float *O_ij = &O_tile[row_of(i) * LD + element_of(j)];
                            *O_ij = weight_old[i] * *O_ij + weight_new[i] * PV[i][j];
                        }
                    }
                    if (thread_column() == 0) {
                        l_tile[row_of(i)] = l_new[i];
                        m_tile[row_of(i)] = m_new[i];
                    }
                }
            }
            __syncthreads();

            // Lines 12 and 13: write O_i, l_i, m_i. Each thread reads back only what it wrote itself.
            store_tile(O + (first_q + first_row) * D, O_tile, rows);
            if (t < rows) {
                l[first_q + first_row + t] = l_tile[t];
                m[first_q + first_row + t] = m_tile[t];
            }
        }
    }
}

// Line 16: return O, in the problem's own dtype.
extern "C" __global__ __launch_bounds__(THREADS) void fa1_round(
    const float *__restrict__ O_running, stored *__restrict__ O, int q_len)
{
    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_element = (head_index() * q_len + first_row) * D;
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(O_running[first_element + e], &O[first_element + e]);
    }
}
