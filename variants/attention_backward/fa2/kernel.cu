// FlashAttention-2, backward pass: Dao 2023, arXiv 2307.08691, algorithm 2. Line numbers are the paper's. What is loaded,
// multiplied and reduced is in _tiles/tiles.cuh, backward.cuh, copies.cuh and strided_tiles.cuh; Limits, TileOrder and Sequences
// (here mirrored: which rows see a key), Scores, Dropout, Layout and GradientLayout, types that the plan chooses, are in
// _features/, and DBias in _tiles/bias_gradient.cuh. The Numba twin is numba_kernel.py.
//
// Many blocks add to dQ in memory at the same time, in float32; bwd_fa2_round then writes it as elements are stored.

// Line 3: dQ = 0, and that of the bias. Line 4: D = rowsum(dO o O).
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_prepare(
    const stored *__restrict__ O, const stored *__restrict__ dO, float *__restrict__ delta, float *__restrict__ dQ,
    int q_len, DBias dbias, Layout layout, GradientLayout gradients)
{
    const int first_row = blockIdx.x * ROWS, rows = min(ROWS, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    dbias.zero();
    zero_rows(dQ + first_stat * D, rows);
    row_dots_in_memory(delta + first_stat, gradients.O_rows(dO, first_stat, blockIdx.z, blockIdx.y, first_row),
                       layout.O_rows(O, first_stat, blockIdx.z, blockIdx.y, first_row), rows);
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    float *__restrict__ dQ, stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group,
    float tau, float score_tau, Limits limits, TileOrder order, Scores scores, Dropout dropout, DBias dbias,
    Sequences sequences, Layout layout, GradientLayout gradients)
{
    extern __shared__ __align__(16) float K_tile[];
    float *const V_tile = K_tile + KEYS * LD, *const Q_tile = V_tile + KEYS * LDV, *const dO_tile = Q_tile + ROWS * LD;
    float *const P_tile = dO_tile + ROWS * max(LD, LDV), *const dS_tile = P_tile + P_ROWS * LP;
    float *const lse_tile = dS_tile + P_ROWS * LP, *const delta_tile = lse_tile + ROWS;

    // Line 5: the block owns K_j and V_j of one head. The first keys of all heads start first, since most
    // rows see them under a causal mask. Rows and keys are counted from the beginning of the sequence.
    const auto own = own_sequence_across(sequences, q_len, kv_len);
    if (!own.has_rows()) return;
    const int own_keys = own.q_len, own_rows = own.kv_len;  // `own` is mirrored
    const RowBlock block = own_keys_across(own);
    const int keys = block.rows;
    const unsigned kv_head = own.number(blockIdx.z * gridDim.x + blockIdx.x, blockIdx.x);
    const int first_key = own.row(block.first_row);
    const size_t first_kv = (size_t)kv_head * kv_len + first_key;
    const auto seeing = rows_seeing(limits, block, own_rows, own_keys);

    const auto tiles = order.of_block(block, seeing.start_row, seeing.end_row, own_keys, own_rows);
    const auto first_tile = tiles.first();

    // Line 6: load K_j, V_j, if any row sees one of the keys. Line 9 for the first tile: load Q_i.
    if (first_tile.exists()) {
        load_tile<KEYS>(K_tile, layout.K_rows(K, first_kv, own.batch, blockIdx.x, first_key), keys);
        load_tile<KEYS, DV>(V_tile, layout.V_rows(V, first_kv, own.batch, blockIdx.x, first_key), keys);
        const int row = own.key(first_tile.first_key);
        copy_tile<ROWS>(Q_tile, layout.Q_rows(Q, (size_t)kv_head * group * q_len + row, own.batch, blockIdx.x * group, row),
                        min(ROWS, own_rows - first_tile.first_key));
    }

    // Line 7: dK_j = 0, dV_j = 0, on chip.
    float dK_acc[TM][TK] = {}, dV_acc[TM][TD] = {};

    // Line 8: for all Q_i with a row that sees some key of the tile, of all `group` heads that share K_j and V_j.
    for (int member = 0; member < group; ++member) {
        const size_t first_q = (size_t)(kv_head * group + member) * q_len + own.key(0);
        const int head = blockIdx.x * group + member;
        const auto score = scores.of_head(head, own_rows, own_keys);
        for (auto next = first_tile; next.exists();) {
            const auto tile = next;
            next = tiles.after(tile);
            const int first_row = tile.first_key, rows = min(ROWS, own_rows - first_row);

            // Line 9: load dO_i, L_i, D_i, once no thread adds to memory what was gathered there. Q_i is on its way.
            __syncthreads();
            copy_tile<ROWS, DV>(dO_tile, gradients.O_rows(dO, first_q + first_row, own.batch, head, own.key(first_row)), rows);
            load_statistics<ROWS>(lse_tile, delta_tile, lse + first_q + first_row, delta + first_q + first_row, rows);
            const auto pairs = tiles.pairs<THREADS>(tile, rows);  // of listed tiles; else nothing
            wait_for_copies();
            __syncthreads();

            // Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
            const auto drawn = dropout.of_head(head, blockIdx.z);
            weights_and_gradients(P_tile, dS_tile, K_tile, V_tile, Q_tile, dO_tile, lse_tile, delta_tile, score_tau,
                                  seeing, score, drawn, dropout.factor(), dbias.of_head(head), first_row, rows, pairs);
            __syncthreads();

            // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
            const auto seen = seeing.in_tile(first_row, rows, pairs);
            add_P_V(dV_acc, P_tile, dO_tile, rows, seen);
            add_P_V<D>(dK_acc, dS_tile, Q_tile, rows, seen);

            // Line 15: dQ_i = dQ_i + tau dS K_j in memory, gathered where dO_i was and added as one run; other blocks add
            // to it at the same time. Meanwhile the next Q_i is copied, of this head or the next one.
            float dQ_part[TQ][TK];
            multiply_dS_K(dQ_part, dS_tile, K_tile, seeing, seen, keys, first_row, rows);
            __syncthreads();
            const bool of_next_head = !next.exists();
            if (!of_next_head || member + 1 < group) {
                const size_t next_head = first_q + (of_next_head ? q_len : 0);
                const int next_row = of_next_head ? first_tile.first_key : next.first_key;
                copy_tile<ROWS>(
                    Q_tile, layout.Q_rows(Q, next_head + next_row, own.batch, head + of_next_head, own.key(next_row)),
                    min(ROWS, own_rows - next_row));
            }
            gather_dQ(dO_tile, dQ_part, tau);
            __syncthreads();
#pragma unroll 8
            for (int start = 0; start < ROWS * D; start += THREADS) {
                const int e = start + thread_index();
                if (e < rows * D) atomicAdd(&dQ[(first_q + first_row) * D + e], dO_tile[place(e)]);
            }
        }
    }

    // Line 18: write dK_j, dV_j.
    store_dK_dV(gradients.K_rows(dK, first_kv, own.batch, blockIdx.x, first_key),
                gradients.V_rows(dV, first_kv, own.batch, blockIdx.x, first_key), K_tile, V_tile, dK_acc, dV_acc, tau,
                dropout.factor(), keys);
}

// Line 20: return dQ, as elements are stored.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_round(
    const float *__restrict__ dQ_running, stored *__restrict__ dQ, int q_len, GradientLayout gradients)
{
    const int first_row = blockIdx.x * ROWS, rows = min(ROWS, q_len - first_row);
    const size_t first = head_index() * q_len + first_row;
    round_rows(gradients.Q_rows(dQ, first, blockIdx.z, blockIdx.y, first_row), dQ_running + first * D, rows);
}
