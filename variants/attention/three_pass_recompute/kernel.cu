// Attention with the safe softmax of Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2, a tile of keys at a time,
// and the scores computed anew in each of its three sweeps. Line numbers are that algorithm's, its d_V is l here and its x is
// S = tau Q_i K_j^T. What is loaded, multiplied and reduced is in _tiles/tiles.cuh and sweep.cuh; Limits, a type that the plan
// chooses, is in _features/. The Numba twin is numba_kernel.py.

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_recompute(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O, int q_len,
    int kv_len, int group, float tau, Limits limits)
{
    __shared__ __align__(16) float Q_tile[BR * LD];
    __shared__ __align__(16) float KV_tile[BC * LD];  // K_j, then V_j
    __shared__ __align__(16) float P_tile[P_ROWS * LP];

    // The block owns Q_i and O_i of one head.
    const RowBlock block = own_rows(q_len);
    const size_t first_element = (head_index() * q_len + block.first_row) * D;
    const unsigned kv_head = kv_head_index(group);
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    load_tile<BR>(Q_tile, Q + first_element, block.rows);
    const auto sweep = [&](const auto &step) {
        sweep_keys(Q_tile, KV_tile, K + (size_t)kv_head * kv_len * D, block.first_row, kv_len, tau, Terms<>{}, seen, step);
    };

    // Line 1: m = -inf.
    float m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) m[i] = MINUS_INFINITY;

    // Line 2: for all K_j.
    sweep([&](const float (&S)[TM][TN], int, int) {
        // Line 3: m = max(m, rowmax(S)).
#pragma unroll
        for (int i = 0; i < TM; ++i) m[i] = fmaxf(m[i], row_max(S[i]));
    });

    // Line 5: l = 0.
    float l[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) l[i] = 0.0f;

    // Line 6: for all K_j once more, with the final m.
    sweep([&](const float (&S)[TM][TN], int, int) {
        // Line 7: l = l + rowsum(exp(S - m)).
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) sum += exp_below(S[i][j], m[i]);
            l[i] += row_sum(sum);
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

    // Line 9: for all K_j once more, with the final m and l.
    sweep([&](const float (&S)[TM][TN], int first_key, int keys) {
        // Line 10: P = exp(S - m) / l.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; ++j) P_tile[row_of(i) * LP + key_of(j)] = exp_below(S[i][j], m[i]) * inverse[i];
        }

        // O_i = O_i + P V_j, with V_j in the place of K_j once no thread reads that any more.
        __syncthreads();
        load_tile<BC>(KV_tile, V + ((size_t)kv_head * kv_len + first_key) * D, keys);
        __syncthreads();
        add_P_V(O_acc, P_tile, KV_tile, keys, seen_in_tile(seen, block.first_row, first_key, keys));
    });

    // Gather O_i where Q_i was, and write it.
    __syncthreads();
    gather(Q_tile, O_acc);
    __syncthreads();
    store_tile(O + first_element, Q_tile, block.rows);
}
