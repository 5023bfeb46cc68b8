// FlashAttention-2, backward pass, with dQ in a launch of its own: Dao 2023, arXiv 2307.08691, algorithm 2, whose line
// numbers these are. What is loaded, multiplied and reduced is in _tiles/tiles.cuh, backward.cuh and strided_tiles.cuh; Limits,
// TileOrder, Scores, Sequences, Layout and GradientLayout, types that the plan chooses, are in _features/, and DBias in
// _tiles/bias_gradient.cuh: of_bias.cu computes the gradient of a bias. The Numba twin is numba_kernel.py.

// Line 4: D = rowsum(dO o O).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, float *__restrict__ delta, int q_len,
    Layout layout, GradientLayout gradients)
{
    const int first_row = blockIdx.x * ROWS;
    const size_t first_stat = head_index() * q_len + first_row;
    row_dots_in_memory(delta + first_stat, gradients.O_rows(dO, first_stat, blockIdx.z, blockIdx.y, first_row),
                       layout.O_rows(O, first_stat, blockIdx.z, blockIdx.y, first_row), min(ROWS, q_len - first_row));
}

// Lines 5 to 19 without 15. `limits`, `order` and `sequences`: mirrored, which rows see a key.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_of_keys(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group, float tau, float score_tau,
    Limits limits, TileOrder order, Scores scores, Sequences sequences, Layout layout, GradientLayout gradients)
{
    __shared__ __align__(16) float K_tile[KEYS * LD], V_tile[KEYS * LDV], Q_tile[ROWS * LD], dO_tile[ROWS * LDV];
    __shared__ __align__(16) float P_tile[P_ROWS * LP], dS_tile[P_ROWS * LP], lse_tile[ROWS], delta_tile[ROWS];

    // Line 5: the block owns K_j and V_j of one head. The first keys of all heads start first, since most rows see them under
    // a causal mask. Rows and keys are counted from the beginning of the sequence.
    const auto own = own_sequence_across(sequences, q_len, kv_len);
    if (!own.has_rows()) return;
    const int own_keys = own.q_len, own_rows = own.kv_len;  // `own` is mirrored
    const RowBlock block = own_keys_across(own);
    const int keys = block.rows;
    const size_t kv_head = own.number(blockIdx.z * gridDim.x + blockIdx.x, blockIdx.x);
    const int first_key = own.row(block.first_row);
    const size_t first_kv = kv_head * kv_len + first_key;
    const auto seeing = rows_seeing(limits, block, own_rows, own_keys);

    const auto tiles = order.of_block(block, seeing.start_row, seeing.end_row, own_keys, own_rows);
    const auto first_tile = tiles.first();

    // Line 6: load K_j, V_j, if any row sees one of the keys.
    if (first_tile.exists()) {
        load_tile<KEYS>(K_tile, layout.K_rows(K, first_kv, own.batch, blockIdx.x, first_key), keys);
        load_tile<KEYS, DV>(V_tile, layout.V_rows(V, first_kv, own.batch, blockIdx.x, first_key), keys);
    }

    // Line 7: dK_j = 0, dV_j = 0, on chip.
    float dK_acc[TM][TK] = {}, dV_acc[TM][TD] = {};

    // Line 8: for all Q_i with a row that sees some key of the tile, of all heads that share it.
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (kv_head * group + member) * q_len + own.key(0);
        const unsigned head = blockIdx.x * group + member;
        const auto score = scores.of_head(head, own_rows, own_keys);
        for (auto next = first_tile; next.exists();) {
            const auto tile = next;
            next = tiles.after(tile);
            const int first_row = tile.first_key, rows = min(ROWS, own_rows - first_row);

            // Line 9: load Q_i, dO_i, L_i, D_i, once no thread reads the last ones any more.
            __syncthreads();
            const int row = own.key(first_row);
            load_tile<ROWS>(Q_tile, layout.Q_rows(Q, first_q + first_row, own.batch, head, row), rows);
            load_tile<ROWS, DV>(dO_tile, gradients.O_rows(dO, first_q + first_row, own.batch, head, row), rows);
            load_statistics<ROWS>(lse_tile, delta_tile, lse + first_q + first_row, delta + first_q + first_row, rows);
            const auto pairs = tiles.pairs<THREADS>(tile, rows);  // of listed tiles; else nothing
            __syncthreads();

            // Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
            weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, score_tau,
                                  seeing, score, NoDropout::OfHead(), 1.0f, DBias(), first_row, rows, pairs);
            __syncthreads();

            // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
            const auto seen = seeing.in_tile(first_row, rows, pairs);
            add_P_V(dV_acc, P_tile, dO_tile, rows, seen);
            add_P_V<D>(dK_acc, dS_tile, Q_tile, rows, seen);
        }
    }

    // Line 18: write dK_j, dV_j.
    store_dK_dV(gradients.K_rows(dK, first_kv, own.batch, blockIdx.x, first_key),
                gradients.V_rows(dV, first_kv, own.batch, blockIdx.x, first_key), K_tile, V_tile, dK_acc, dV_acc, tau, 1.0f,
                keys);
}

// Line 15 alone: a block owns Q_i and dO_i of one head, as in the forward pass: BR rows, BC keys. S and dP are computed once
// more. The grid is (heads, blocks of a head, batch): the last rows start first.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_of_rows(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    stored *__restrict__ dQ, int q_len, int kv_len, int group, float tau, float score_tau, Limits limits, TileOrder order,
    Scores scores, Sequences sequences, Layout layout, GradientLayout gradients)
{
    __shared__ __align__(16) float Q_tile[BR * LD], dO_tile[BR * LDV], K_tile[BC * LD], V_tile[BC * LDV];
    __shared__ __align__(16) float dS_tile[P_ROWS * LP], lse_tile[BR], delta_tile[BR];

    const int head = blockIdx.x, i_block = gridDim.y - 1 - blockIdx.y, first_row = i_block * BR;
    const auto own = sequences.at(blockIdx.z, first_row, q_len, kv_len);
    if (!own.has_rows()) return;
    const int batch = own.batch, rows = min(BR, own.q_len - first_row);
    const RowBlock block = {batch, head, i_block, (int)gridDim.y, first_row, rows};
    const size_t kv_head = (size_t)batch * (gridDim.x / group) + head / group;
    const size_t first_stat = ((size_t)batch * gridDim.x + head) * q_len + own.row(first_row);
    const size_t first_kv = kv_head * kv_len + own.key(0);
    const auto K_head = layout.K_rows(K, first_kv, batch, head / group, own.key(0));
    const auto V_head = layout.V_rows(V, first_kv, batch, head / group, own.key(0));
    load_tile<BR>(Q_tile, layout.Q_rows(Q, first_stat, batch, head, own.row(first_row)), rows);
    load_tile<BR, DV>(dO_tile, gradients.O_rows(dO, first_stat, batch, head, own.row(first_row)), rows);
    load_statistics<BR>(lse_tile, delta_tile, lse + first_stat, delta + first_stat, rows);
    float dQ_acc[TM][TK] = {};
    const auto score = scores.of_head(head, own.q_len, own.kv_len);

    // For all K_j with a key that some row sees.
    const auto seen = limits.of_block<BR>(block, own.q_len, own.kv_len);
    const auto tiles = order.of_block(block, seen.first_key, seen.end_key, own.q_len, own.kv_len);
    for (auto next = tiles.first(); next.exists();) {
        const auto tile = next;
        next = tiles.after(tile);
        const int first_key = tile.first_key, keys = min(BC, own.kv_len - first_key);

        // Load K_j, V_j, once no thread reads the last ones any more.
        __syncthreads();
        load_tile<BC>(K_tile, rows_from<D>(K_head, first_key), keys);
        load_tile<BC, DV>(V_tile, rows_from<DV>(V_head, first_key), keys);
        const auto pairs = tiles.pairs<THREADS>(tile, keys);  // of listed tiles; else nothing
        __syncthreads();

        // Lines 10, 11, 13 and 14, here a row per row: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T,
        // dS = P o (dP - D_i).
        float S[TM][TN], dP[TM][TN];
        multiply_Q_Kt(S, Q_tile, K_tile);
        multiply_Q_Kt<DV>(dP, dO_tile, V_tile);
        const auto seen_here = seen_in_tile(seen, pairs, first_row, first_key, keys);
        row_gradients<DBias>(S, dP, lse_tile, delta_tile, score_tau, score, seen_here, first_row, rows, first_key);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) dS_tile[row_of(i) * LP + key_of(j)] = S[i][j];
        __syncthreads();

        // Line 15: dQ_i = dQ_i + dS K_j.
        add_P_V<D>(dQ_acc, dS_tile, K_tile, keys, seen_here);
    }

    // Write dQ_i, which is multiplied by tau, gathered where Q_i was.
    __syncthreads();
    gather<D>(Q_tile, dQ_acc, tau);
    __syncthreads();
    store_tile(gradients.Q_rows(dQ, first_stat, batch, head, own.row(first_row)), Q_tile, rows);
}
