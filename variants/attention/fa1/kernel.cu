// FlashAttention, forward pass: Dao et al. 2022, arXiv 2205.14135, algorithm 1. Line numbers are the paper's.
// What is loaded, multiplied and reduced is in _tiles/tiles.cuh; Limits, a type that the plan chooses, is in _features/. The
// Numba twin is numba_kernel.py.
//
// O is rewritten once per K/V block. It is in float32, since rounding it to 16 bits every time would add up; fa1_round writes
// it in the problem's dtype in the end.

// Line 2: O = 0, l = 0, m = -inf in global memory.
extern "C" __global__ __launch_bounds__(THREADS) void fa1_initialise(
    float *__restrict__ O, float *__restrict__ l, float *__restrict__ m, int q_len)
{
    const RowBlock block = own_rows(q_len);
    const size_t first_stat = head_index() * q_len + block.first_row;
    const int t = thread_index();
    for (int start = 0; start < block.rows * D; start += THREADS) {
        if (start + t < block.rows * D) O[first_stat * D + start + t] = 0.0f;
    }
    if (t < block.rows) {
        l[first_stat + t] = 0.0f;
        m[first_stat + t] = MINUS_INFINITY;
    }
}

// Lines 3 to 15: one block per head.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa1(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, float *__restrict__ O,
    float *__restrict__ l, float *__restrict__ m, int q_len, int kv_len, int group, float tau, Limits limits)
{
    __shared__ __align__(16) float K_tile[BC * LD], V_tile[BC * LD], Q_tile[BR * LD], O_tile[BR * LD];
    __shared__ __align__(16) float P_tile[P_ROWS * LP], l_tile[BR], m_tile[BR];
    const int t = thread_index(), batch = blockIdx.z, head = blockIdx.y;
    const size_t first_q = head_index() * q_len, first_kv = kv_head_index(group) * kv_len;

    // Line 5: for all K_j, V_j with a key that some row sees.
    const auto run = limits.of_sequence(batch, q_len, kv_len);
    const int end_key = run.end(q_len - 1);
    Rows seeing = {0, 0};
    for (int first_key = run.first(0) / BC * BC; first_key < end_key; first_key += BC) {
        // Line 6: load K_j, V_j.
        const int keys = min(BC, kv_len - first_key);
        load_tile<BC>(K_tile, K + (first_kv + first_key) * D, keys);
        load_tile<BC>(V_tile, V + (first_kv + first_key) * D, keys);

        // Line 7: for all Q_i with a row that sees some key of the tile.
        seeing = rows_seeing(run, first_key, keys, q_len, seeing);
        for (int first_row = seeing.first / BR * BR; first_row < seeing.end; first_row += BR) {
            // Line 8: load Q_i, O_i, l_i, m_i.
            const int rows = min(BR, q_len - first_row);
            const RowBlock block = {batch, head, first_row / BR, 0, first_row, rows};
            const auto seen = limits.of_block<BR>(block, q_len, kv_len);
            load_tile<BR>(Q_tile, Q + (first_q + first_row) * D, rows);
            load_tile<BR>(O_tile, O + (first_q + first_row) * D, rows);
            if (t < BR) {
                l_tile[t] = t < rows ? l[first_q + first_row + t] : 0.0f;
                m_tile[t] = t < rows ? m[first_q + first_row + t] : MINUS_INFINITY;
            }
            __syncthreads();

            // Line 9: S = tau Q_i K_j^T.
            float S[TM][TN];
            multiply_Q_Kt(S, Q_tile, K_tile);
            const auto seen_here = seen_in_tile(seen, first_row, first_key, keys);
            scale_and_mask(S, tau, Terms<>{}, seen_here, first_row, first_key);

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

                // What line 12 multiplies O and P~ V by. While a row has seen nothing, O stays 0.
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
            add_P_V(PV, P_tile, V_tile, keys, seen_here);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (!has_row(i)) continue;
#pragma unroll
                for (int j = 0; j < TD; ++j) {
                    float *const O_ij = &O_tile[row_of(i) * LD + element_of(j)];
                    if (has_element(j)) *O_ij = weight_old[i] * *O_ij + weight_new[i] * PV[i][j];
                }
                if (thread_column() == 0) {
                    l_tile[row_of(i)] = l_new[i];
                    m_tile[row_of(i)] = m_new[i];
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

// Line 16: return O, in the problem's dtype.
extern "C" __global__ __launch_bounds__(THREADS) void fa1_round(
    const float *__restrict__ O_running, stored *__restrict__ O, int q_len)
{
    const RowBlock block = own_rows(q_len);
    const size_t first_element = (head_index() * q_len + block.first_row) * D;
    for (int start = 0; start < block.rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < block.rows * D) narrow(O_running[first_element + e], &O[first_element + e]);
    }
}
