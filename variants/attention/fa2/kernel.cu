// FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// _dropout/dropout.cuh, _tiles/tiles.cuh and _tiles/copies.cuh are put before this text, and, where what a row sees is no
// run of keys, _tiles/visits.cuh. The Numba twins are numba_kernel.py and, for such masks, numba_visits.py.

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

// K_j or V_j of the tile that begins at first_key.
__device__ __forceinline__ void copy_keys(float *tile, const stored *head, int first_key, int kv_len)
{
    copy_tile<BC>(tile, head + (size_t)first_key * D, min(BC, kv_len - first_key));
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, LIMITS VISITS_PARAMETERS
        SCORE_PARAMETERS SINKS_PARAMETER DRAW_PARAMETERS FACTOR_PARAMETER)
{
    extern __shared__ __align__(16) float Q_tile[];
    float *const K_tile = Q_tile + BR * LD;
    float *const V_tile = K_tile + BC * LD;
    float *const P_tile = V_tile + BC * LD;
#ifdef VISITS
    __shared__ Noted noted;
#endif

    // Line 3: the block owns Q_i and O_i of one head. The grid is (heads, blocks of a head, batch): the last rows of all
    // heads start first, which see most keys where causal. `group` heads share K and V.
    const int row_block = gridDim.y - 1 - blockIdx.y, first_row = row_block * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t head = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    const size_t kv_head = (size_t)blockIdx.z * (gridDim.x / group) + blockIdx.x / group;
    const size_t first_stat = head * q_len + first_row;
    const size_t first_element = first_stat * D;
    const stored *K_head = K + kv_head * kv_len * D;
    const stored *V_head = V + kv_head * kv_len * D;

    // Line 4: load Q_i.
    copy_tile<BR>(Q_tile, Q + first_element, rows);

#ifdef ALIBI
    const float slope = slopes[blockIdx.x];
#endif
    // Line 5: O_i = 0, l_i = 0, m_i = -inf, on chip. A sink is a key before all others, without a value.
    const float sink = SINK(blockIdx.x);
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
    // Line 7 of the first: load K_j. Ever after K_j comes while the V before it is multiplied, and V_j while K_j is.
#ifndef VISITS
    const int start_key = first_by_first / BC * BC;
    if (start_key < end_by_last) copy_keys(K_tile, K_head, start_key, kv_len);
    for (int first_key = start_key; first_key < end_by_last; first_key += BC) {
        const int next_key = first_key + BC;
        const bool is_last = next_key >= end_by_last;
#else  // those that are listed
    const Visits listed = VISITS_OF(blockIdx.z, blockIdx.x, row_block, gridDim.y);
    Visit next = listed.count > 0 ? listed[0] : Visit{0};
    if (listed.count > 0) copy_keys(K_tile, K_head, next.tile() * BC, kv_len);
    for (int n = 0; n < listed.count; ++n) {
        const Visit visit = next;
        const int first_key = visit.tile() * BC;
        const bool is_last = n + 1 == listed.count;
        if (!is_last) next = listed[n + 1];
        const int next_key = next.tile() * BC;
#endif
        const int keys = min(BC, kv_len - first_key);

        // Line 7: load V_j, once nobody reads V_(j-1) any more. K_j has come.
        wait_for_copies();
        __syncthreads();
        copy_keys(V_tile, V_head, first_key, kv_len);
#ifdef VISITS
        if (visit.is_mixed()) {
            note_seen<ROWS_NOTED * 32 / THREADS>(noted, RULE_OF(blockIdx.x), first_row, rows, first_key, keys, thread_index());
            __syncthreads();
        }
#endif

        // Line 8: S = tau Q_i K_j^T.
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, K_tile);
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
                DROPOUT_OF(blockIdx.x, blockIdx.z).kept<TN>(first_row + row_of(i), first_key, thread_column());
#endif
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float p = exp_below(S[i][j], m_new);
                P_tile[row_of(i) * LP + key_of(j)] = DROPPED(p, kept, j);
                sum += p;
            }
            l[i] = correction * l[i] + row_sum(sum);
#pragma unroll
            for (int j = 0; j < TD; ++j) O_acc[i][j] *= correction;
        }

        // Line 7 of the next: load K_(j+1), once nobody reads K_j any more. V_j has come.
        wait_for_copies();
        __syncthreads();
        if (!is_last) copy_keys(K_tile, K_head, next_key, kv_len);

        // Line 10, second half: O_i = O_i + P V_j.
#ifdef VISITS
        if (visit.is_mixed()) {
            add_P_V_noted(O_acc, P_tile, V_tile, keys, first, end, noted);
            continue;
        }
#endif
        add_P_V(O_acc, P_tile, V_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

    // Line 12: O_i = diag(l_i)^-1 O_i, gathered where Q_i was. A row that saw nothing has l = 0: its O stays 0.
    wait_for_copies();
    __syncthreads();
    float *const l_tile = P_tile, *const m_tile = P_tile + P_ROWS;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float inverse = l[i] == 0.0f ? 0.0f : KEPT_FACTOR / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) Q_tile[row_of(i) * LD + element_of(j)] = O_acc[i][j] * inverse;
        }
        if (thread_column() == 0) {
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
