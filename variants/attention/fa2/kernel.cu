// FlashAttention-2, forward pass: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's. Functions that load,
// multiply and reduce are in _tiles/tiles.cuh, copies.cuh and strided_tiles.cuh. The plan (host code, __init__.py) chooses the
// sizes D, DV, BR, BC and BLOCKS_PER_SM, and the types in _features/: stored (elements in memory), Limits, TileOrder, Scores,
// Sink, Dropout, Sequences and Layout. The Numba twin is numba_kernel.py.

// Start copying K_j or V_j, rows of WIDTH elements whose keys begin at first_key; rows of the tile after the last key become
// zeros.
template <int WIDTH, class Rows>
__device__ __forceinline__ void copy_keys(float *tile, Rows head, int first_key, int kv_len)
{
    copy_tile<BC, WIDTH>(tile, rows_from<WIDTH>(head, first_key), min(BC, kv_len - first_key));
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau, Limits limits, TileOrder order, Scores scores,
    Sink sink, Dropout dropout, Sequences sequences, Layout layout)
{
    // Tiles on chip: Q of BR x LD elements and later O of BR x LDV, K of BC x LD, V of BC x LDV, P of P_ROWS x LP, with room for
    // rows and keys beyond the edge.
    constexpr int LDV = leading_dimension(DV);
    extern __shared__ __align__(16) float Q_tile[];
    float *const K_tile = Q_tile + BR * max(LD, LDV), *const O_tile = Q_tile;
    float *const V_tile = K_tile + BC * LD;
    float *const P_tile = V_tile + BC * LDV;

    // Line 3: the block owns Q_i and O_i of one head. The grid is (heads, blocks of a head, batch): the last rows of all
    // heads start first, since they see most keys under a causal mask. `group` heads share K and V. A dense layout finds rows
    // by their number, a strided one by batch, head and row. Rows and keys are counted from the beginning of the sequence.
    const unsigned head = blockIdx.x;
    const int i_block = gridDim.y - 1 - blockIdx.y, first_row = i_block * BR;
    const auto own = sequences.at(blockIdx.z, first_row, q_len, kv_len);
    if (!own.has_rows()) return;
    const unsigned batch = own.batch;
    const int rows = min(BR, own.q_len - first_row);
    const RowBlock block = {(int)batch, (int)head, i_block, (int)gridDim.y, first_row, rows};
    const size_t kv_head = (size_t)batch * (gridDim.x / group) + head / group;
    const size_t first_global_row = ((size_t)batch * gridDim.x + head) * q_len + own.row(first_row);
    const auto K_head = layout.K_rows(K, kv_head * kv_len + own.key(0), batch, head / group, own.key(0));
    const auto V_head = layout.V_rows(V, kv_head * kv_len + own.key(0), batch, head / group, own.key(0));

    // Line 4: load Q_i.
    copy_tile<BR>(Q_tile, layout.Q_rows(Q, first_global_row, batch, head, own.row(first_row)), rows);
    const auto score = scores.of_head(head, own.q_len, own.kv_len);
    const auto drawn = dropout.of_head(head, batch);

    // Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers. A thread has TM rows; the TX threads that share a row have the same m
    // and l. A sink acts as a first key with a given score and no value: m_i is that score, and l_i = 1.
    const float first_m = sink.logit(head);
    float O_acc[TM][TD], l[TM], m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        l[i] = Sink::WEIGHT;
        m[i] = first_m;
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // Line 6: for all K_j, V_j with a key that some row sees. Line 7, first tile: load K_j. After that, K_(j+1) is copied
    // while P is multiplied by V_j, and V_j while Q_i is multiplied by K_j. (Only float32 is copied in the background; 16-bit
    // elements are widened on the way.) A row sees a key if `seen`, a run of keys, contains it and, where the tiles are listed,
    // `pairs` does too; seen_here is both, counted from the tile's first key.
    const auto seen = limits.of_block<BR>(block, own.q_len, own.kv_len);
    const auto tiles = order.of_block(block, seen.first_key, seen.end_key, own.q_len, own.kv_len);
    auto next = tiles.first();
    if (next.exists()) copy_keys<D>(K_tile, K_head, next.first_key, own.kv_len);
    while (next.exists()) {
        const auto tile = next;
        next = tiles.after(tile);
        const int first_key = tile.first_key, keys = min(BC, own.kv_len - first_key);

        // Line 7: load V_j. After the barrier K_j (and Q_i) is complete, and no thread reads V_(j-1), P or old pairs any more.
        wait_for_copies();
        __syncthreads();
        copy_keys<DV>(V_tile, V_head, first_key, own.kv_len);
        const auto pairs = tiles.pairs<THREADS>(tile, keys);  // of listed tiles, after a barrier; else nothing

        // Line 8: S = tau Q_i K_j^T (the paper leaves tau out), changed by score terms, and -inf where the row does not see
        // the key.
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, K_tile);
        const auto seen_here = seen_in_tile(seen, pairs, first_row, first_key, keys);
        scale_and_mask(S, tau, score, seen_here, first_row, first_key);

        // Line 9: m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), the sum before dropout.
        // Line 10, first half: O_i = diag(exp(m_old - m)) O_i. (The paper's ^-1 there is a misprint.) exp_below(x, m) is
        // exp(x - m) for x <= m, and 0 if m is -inf: x is, too, and (-inf) - (-inf) would be NaN.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float m_new = fmaxf(m[i], row_max(S[i]));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;
            const auto kept = drawn.kept<TN>(first_row + row_of(i), first_key, thread_column());
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float p = exp_below(S[i][j], m_new);
                P_tile[row_of(i) * LP + key_of(j)] = kept.or_zero(p, j);
                sum += p;
            }
            l[i] = correction * l[i] + row_sum(sum);
#pragma unroll
            for (int j = 0; j < TD; ++j) O_acc[i][j] *= correction;
        }

        // Line 7 for the next tile: load K_(j+1). V_j has arrived, P is complete, and no thread reads K_j any more.
        wait_for_copies();
        __syncthreads();
        if (next.exists()) copy_keys<D>(K_tile, K_head, next.first_key, own.kv_len);

        // Line 10, second half: O_i = O_i + P V_j. Keys that a row does not see are left out: V may be NaN there.
        add_P_V(O_acc, P_tile, V_tile, keys, seen_here);
    }

    // Line 12: O_i = diag(l_i)^-1 O_i, times 1 / (1 - p) of dropout, collected in O_tile so that whole rows are written. O of a
    // row that sees nothing is 0. After the barrier Q_i has arrived even if there was no tile, and no thread reads P any more:
    // l_i and m_i take its place.
    wait_for_copies();
    __syncthreads();
    float *const l_tile = P_tile, *const m_tile = P_tile + P_ROWS;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float inverse = l[i] == 0.0f ? 0.0f : dropout.factor() / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) O_tile[row_of(i) * LDV + element_of(j)] = O_acc[i][j] * inverse;
        }
        if (thread_column() == 0) {
            l_tile[row_of(i)] = l[i];
            m_tile[row_of(i)] = m[i];
        }
    }
    __syncthreads();

    // Line 14: write O_i.
    store_tile<DV>(layout.O_rows(O, first_global_row, batch, head, own.row(first_row)), O_tile, rows);

    // Lines 13 and 15: L_i = m_i + log(l_i), which is -inf, or the sink, if the row sees nothing; write it.
    static_assert(BR <= THREADS, "each row has a thread");
    const int t = thread_index();
    if (t < rows) lse[first_global_row + t] = m_tile[t] + logf(l_tile[t]);
}
