// Attention with the online softmax of Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3, a tile of keys at a time.
// Line numbers are that algorithm's, its d_V is l here and its x is S = tau Q_i K_j^T. What is loaded, multiplied and reduced
// is in _tiles/tiles.cuh and sweep.cuh; Limits, Scores and Sink, types that the plan chooses, are in _features/. The Numba
// twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void two_pass(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O, int q_len,
    int kv_len, int group, float tau, Limits limits, Scores scores, Sink sink)
{
    __shared__ __align__(16) float Q_tile[BR * LD];
    __shared__ __align__(16) float KV_tile[BC * LD];  // K_j, then V_j
    __shared__ __align__(16) float P_tile[P_ROWS * LP];

    // The block owns Q_i and O_i of one head.
    const RowBlock block = own_rows(q_len);
    const size_t first_element = (head_index() * q_len + block.first_row) * D;
    const size_t first_kv = kv_head_index(group) * kv_len * D;
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    load_tile<BR>(Q_tile, Q + first_element, block.rows);
    const auto score = scores.of_head(block.head, q_len, kv_len);
    const auto sweep = [&](const auto &step) {
        sweep_keys(Q_tile, KV_tile, K + first_kv, block.first_row, kv_len, tau, score, seen, step);
    };

    // Lines 1 and 2: m = -inf, l = 0. A sink is a key before all others, without a value.
    const float first_m = sink.logit(block.head);
    float l[TM], m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        l[i] = Sink::WEIGHT;
        m[i] = first_m;
    }

    // Line 3: for all K_j.
    sweep([&](const float (&S)[TM][TN], int, int) {
        // Lines 4 and 5: m = max(m, rowmax(S)), l = l exp(m_old - m) + rowsum(exp(S - m)).
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float m_new = fmaxf(m[i], row_max(S[i]));
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) sum += exp_below(S[i][j], m_new);
            l[i] = l[i] * exp_below(m[i], m_new) + row_sum(sum);
            m[i] = m_new;
        }
    });

    // A row that sees nothing has l = 0: its weights and its O stay 0.
    float O_acc[TM][TD], inverse[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        inverse[i] = l[i] == 0.0f ? 0.0f : 1.0f / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // Line 7: for all K_j once more, with the final m and l.
    sweep([&](const float (&S)[TM][TN], int first_key, int keys) {
        // Line 8: P = exp(S - m) / l.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; ++j) P_tile[row_of(i) * LP + key_of(j)] = exp_below(S[i][j], m[i]) * inverse[i];
        }

        // O_i = O_i + P V_j, with V_j in the place of K_j once no thread reads that any more.
        __syncthreads();
        load_tile<BC>(KV_tile, V + first_kv + (size_t)first_key * D, keys);
        __syncthreads();
        add_P_V(O_acc, P_tile, KV_tile, keys, seen_in_tile(seen, block.first_row, first_key, keys));
    });

    // Gather O_i where Q_i was, and write it.
    __syncthreads();
    gather(Q_tile, O_acc);
    __syncthreads();
    store_tile(O + first_element, Q_tile, block.rows);
}
