// FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// _dropout/dropout.cuh and _tiles/tiles.cuh are put before this text, and, where what a row sees is no run of keys,
// _tiles/visits.cuh. The Numba twins are numba_kernel.py and, for such masks, numba_visits.py.

#ifdef VISITS
// S = -inf where it is noted that the row does not see the key.
__device__ __forceinline__ void mask_noted(float (&S)[TM][TN], const Noted &noted)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            if (!is_noted(noted, row_of(i), key_of(j))) S[i][j] = MINUS_INFINITY;
        }
}

// O += P V_j over the tile's keys, each only where it is noted that the row sees it.
__device__ __forceinline__ void add_P_V_noted(float (&O)[TM][TD], const float *P_tile, const float *V_tile, int keys,
                                              const int (&first)[TM], const int (&end)[TM], const Noted &noted)
{
#pragma unroll 1
    for (int k = 0; k < keys; ++k) {
        float v[TD];
#pragma unroll
        for (int j = 0; j < TD; ++j) v[j] = V_tile[k * LD + tile_element(j)];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float p = P_tile[row_of(i) * LP + k];
            const bool seen = first[i] <= k && k < end[i] && is_noted(noted, row_of(i), k);
#pragma unroll
            for (int j = 0; j < TD; ++j) O[i][j] = seen ? O[i][j] + p * v[j] : O[i][j];
        }
    }
}
#else
#define VISITS_PARAMETERS
#endif

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, LIMITS VISITS_PARAMETERS
        SCORE_PARAMETERS SINKS_PARAMETER DRAW_PARAMETERS FACTOR_PARAMETER)
{
    TILE Q_tile[BR * LD];
    TILE KV_tile[BC * LD];  // K_j, then V_j
    TILE P_tile[P_ROWS * LP];
    TILE l_tile[P_ROWS];
    TILE m_tile[P_ROWS];
#ifdef VISITS
    __shared__ Noted noted;
#endif

    // Line 3: the block owns Q_i and O_i of one head.
    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const size_t first_element = first_stat * D;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;
    const stored *V_head = V + kv_head_index(group) * kv_len * D;

    // Line 4: load Q_i.
    load_tile<BR>(Q_tile, Q + first_element, rows);

#ifdef ALIBI
    const float slope = slopes[blockIdx.y];
#endif
    // Line 5: O_i = 0, l_i = 0, m_i = -inf, on chip. A sink is a key before all others, without a value.
    const float sink = SINK(blockIdx.y);
    float O_acc[TM][TD], l[TM], m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        l[i] = SINK_WEIGHT;
        m[i] = sink;
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // Line 6: for all K_j, V_j with a key that some row sees: from the first row's first to the last row's last.
    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
#ifndef VISITS
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
#else  // those that are listed
    const Visits listed = VISITS_OF(blockIdx.x);
    for (int n = 0; n < listed.count; ++n) {
        const Visit visit = listed[n];
        const int first_key = visit.tile() * BC;
#endif
        const int keys = min(BC, kv_len - first_key);

        // Line 7: load K_j, once nobody reads V_(j-1) any more.
        __syncthreads();
        load_tile<BC>(KV_tile, K_head + (size_t)first_key * D, keys);
#ifdef VISITS
        if (visit.is_mixed()) note_seen<ROWS_NOTED * 32 / THREADS>(noted, RULE_OF_HEAD, first_row, rows, first_key, keys);
#endif
        __syncthreads();

        // Line 8: S = tau Q_i K_j^T.
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);
        scale_and_mask(S, SCORING(slope, first_row + kv_len - q_len - first_key), first, end);
#ifdef VISITS
        if (visit.is_mixed()) mask_noted(S, noted);
#endif

        // Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P).
        // Line 10, first half: O_i = diag(exp(m_old - m)) O_i.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float m_new = fmaxf(m[i], row_max(S[i]));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;

            // Dropout leaves the sum as it is.
#ifdef DROPOUT
            const unsigned kept =
                DROPOUT_OF(blockIdx.y, blockIdx.z).kept<TN>(first_row + row_of(i), first_key, threadIdx.x);
#endif
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float p = exp_below(S[i][j], m_new);
                P_tile[row_of(i) * LP + key_of(j)] = DROPPED(p, kept, j);
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
#ifdef VISITS
        if (visit.is_mixed()) {
            add_P_V_noted(O_acc, P_tile, KV_tile, keys, first, end, noted);
            continue;
        }
#endif
        add_P_V(O_acc, P_tile, KV_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    // Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that saw nothing has l = 0: its O stays 0.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float inverse = l[i] == 0.0f ? 0.0f : KEPT_FACTOR / l[i];
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
