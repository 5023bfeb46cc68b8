// FlashAttention-2, forward pass, on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// Tiles and instructions are in _mma/tiles.cuh and mma.cuh; what a warp has in registers is in registers.cuh, which keys its
// rows see in seen.cuh, scores in scoring.cuh, the products in products.cuh and the end in output.cuh. The plan chooses
// types: Limits, TileOrder, RowOrder, Scores, Sink, Dropout, Sequences and Layout are in _features/, Visits in visits.cuh, and
// Again and Forms in registers.cuh. The Numba twin is numba_kernel.py.
//
// Compile-time parameters: D and DV (elements per row of Q and K, and of V and O), BR and BC (rows and keys per tile), WARPS,
// STAGES (tiles of K and V on chip), BLOCKS_PER_SM, and KEPT_REGISTERS of registers.cuh.

// S, before the mask. Only where MASKED is looked at V_j, see multiply_Q_Kt; else scores are SPLIT.
template <bool MASKED, class Scoring>
__device__ __forceinline__ bool scores_of_tile(ScoreTile &S, Powers &powers, const Query &Q, const unsigned char *K_tile,
                                               const Scoring &scoring)
{
    powers = scoring.template start<!MASKED>(S);
    const bool poisoned = multiply_Q_Kt<MASKED, Forms::sums>(S, Q, K_tile);
    scoring.template finish<!MASKED>(S, powers);
    return poisoned;
}

// Lines 9 and 10 once more, after m is known, where V holds NaN or infinity at keys that some rows do not see: a row must
// not even multiply such a value by its zero weight. Rows that see none of them get the bits that they would get without.
// Of 16 keys at a time: S is computed again, since registers have no index at run time.
template <class Scoring, class Seen, class Drawn>
__device__ __forceinline__ void add_P_V_where_seen(Rows &rows, const Query &Q, const unsigned char *K_tile,
                                                   const unsigned char *V_tile, const Scoring &scoring, const Seen &seen,
                                                   const Drawn &drawn)
{
#pragma unroll 1
    for (int key = 0; key < BC; key += 16) {
        float S[TM][2][4];
        const Scoring scoring_here = scoring.from_key(key);
        const Seen seen_here = seen.from_key(key);
        Powers powers = scoring_here.template start<false>(S);
        multiply_Q_Kt<false, Forms::sums>(S, Q, K_tile + key * ROW_BYTES);
        scoring_here.template finish<false>(S, powers);
        mask(S, seen_here);
        Weights P;
        KeptInRows<Dropout, TM, 2> kept;
        kept.draw(drawn, scoring.row, scoring.key + key, 0);
        exponentiate(P, rows.l, rows.m, S, scoring_here, powers, kept, 0);
        add_P_V<false>(rows.O, P, shared_address(V_tile) + lane_in_A<DV>() + key * V_ROW_BYTES);
        add_not_finite(rows.O, P, V_tile + key * V_ROW_BYTES, seen_here);
    }
}

// Whether any lane has found NaN or infinity in V_j: asked early or late, where that takes fewer registers.
template <bool ASKED> __device__ __forceinline__ bool vote(bool found)
{
    return ASKED ? __any_sync(0xffffffff, found) : found;
}

// Lines 8 to 10 for the warp's rows and one tile of keys. Only where it is `masked` is looked at which of them rows have
// `seen`, and whether V_j is finite.
template <class Scoring, class Seen, class Drawn>
__device__ __forceinline__ void visit_tile(Rows &rows, const Query &Q, const unsigned char *K_tile,
                                           const unsigned char *V_tile, const Scoring &scoring, const Seen &seen, bool masked,
                                           const Drawn &drawn)
{
    // Line 8: S = Q_i K_j^T.
    ScoreTile S;
    Powers powers;
    bool poisoned = false;
    if (masked) {
        poisoned = vote<Forms::one_body>(scores_of_tile<true>(S, powers, Q, K_tile, scoring));
    } else {
        scores_of_tile<false>(S, powers, Q, K_tile, scoring);
    }
    if (masked) mask(S, seen);
    raise_maximum(rows, S, scoring, powers);
    if (masked && vote<!Forms::one_body>(poisoned)) {
        add_P_V_where_seen(rows, Q, K_tile, V_tile, scoring, seen, drawn);
        return;
    }
    // Lines 9 and 10, 16 keys at a time: exponentials of the next are under way with the products of these.
    KeptInRows<Dropout, TM, TN> kept;
#pragma unroll
    for (int s = 0; s < TN / 2; ++s) {
        Weights P;
        kept.draw(drawn, scoring.row, scoring.key, s);
        exponentiate(P, rows.l, rows.m, S, scoring, powers, kept, s);
        add_P_V<true>(rows.O, P, shared_address(V_tile) + lane_in_A<DV>() + s * 16 * V_ROW_BYTES);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2_mma(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, unsigned heads, unsigned group, float tau, int sign, Limits limits,
    RowOrder row_order, TileOrder tile_order, Scores scores, Sink sink, Dropout dropout, Sequences sequences, Layout layout)
{
    extern __shared__ __align__(128) unsigned char Q_tile[];
    unsigned char *const KV_tiles = Q_tile + Q_BYTES;  // K_j, V_j of one stage, then of the next

    // Line 3: the block owns Q_i and O_i of one head. The grid is (heads side by side, blocks of a head, groups of so many
    // heads), see _tiles/grids.py. Heads are counted through the batch; `group` of them share K and V.
    const unsigned head_index = blockIdx.z * gridDim.x + blockIdx.x;
    const int head = head_index % heads;
    const int i_block = row_order.block(blockIdx.y, gridDim.y, head_index / heads, head), first_row = i_block * BR;
    const auto sequence = sequences.at(head_index / heads, first_row, q_len, kv_len);  // rows and keys count from its beginning
    if (!sequence.has_rows()) return;
    const int batch = sequence.batch;
    const RowBlock block = {batch, head, i_block, (int)gridDim.y, first_row, min(BR, sequence.q_len - first_row)};
    const size_t first_stat = (size_t)sequence.number(head_index, head) * q_len + sequence.row(first_row);
    const unsigned kv_head = sequence.number(head_index, head) / group;

    // Columns beyond D, or DV, belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0 || DV % 16 != 0) {
        clear_tiles(Q_tile, Q_BYTES + STAGES * KV_BYTES);
        __syncthreads();
    }

    // Line 4: load Q_i.
    copy_tile<BR>(Q_tile, layout.Q_rows(Q, first_stat, batch, head, sequence.row(first_row)), block.rows);
    commit_copies();

    // Line 6: for all K_j, V_j with a key that some row sees. Line 7: load them, STAGES - 1 ahead of their use.
    const auto seen = limits.of_block<BR>(block, sequence.q_len, sequence.kv_len);
    const auto tiles = tile_order.of_block(block, seen.first_key, seen.end_key, sequence.q_len, sequence.kv_len);
    Visits visits(block, seen, tiles, sequence.q_len, sequence.kv_len);
    const auto copy_keys = [&](int n, int further) {
        if (visits.is_copied(n)) {
            const int j = visits.coming(n, further);
            unsigned char *const K_tile = KV_tiles + (unsigned)n % STAGES * KV_BYTES;
            const size_t first = (size_t)anew<Again::keys>(kv_head) * kv_len + (size_t)j * BC + sequence.key(0);
            const int from = sequence.key(j * BC), keys = sequence.kv_len - j * BC;
            copy_tile<BC, Again::copies>(K_tile, layout.K_rows<Again::keys>(K, first, batch, head / group, from), keys);
            const auto V_rows = layout.V_rows<Again::keys>(V, first, batch, head / group, from);
            copy_tile<BC, Again::copies, DV>(K_tile + K_BYTES, V_rows, keys);
        }
        commit_copies();
    };
#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n) copy_keys(visits.first + n * Visits::NEXT, n);
    wait_for_copies<STAGES - 1>();
    __syncthreads();
    if (sign != 1) {
        give_sign(Q_tile, sign);
        __syncthreads();
    }
    const Query Q_i(Q_tile);

    // Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers.
    Rows own;
    clear(own);

    const auto scoring = scoring_of_head(scores, tau, head, sequence.q_len, sequence.kv_len);
    const auto drawn = dropout.of_head(head, batch);
#pragma unroll 1
    for (int n = visits.first; visits.exists(n); n += Visits::NEXT) {
        // Line 7: K_j and V_j have come, and no warp reads the tiles any more that the next copies overwrite.
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        copy_keys(n + (STAGES - 1) * Visits::NEXT, STAGES - 1);

        // Some row of the warp sees the keys from its first row's first to its last row's end.
        const auto run = anew(seen.run);
        const int warp_row = first_row_of_warp(anew<Again::rows>(first_row));
        const int warps_last = min(warp_row + WARP_ROWS, sequence.q_len) - 1;
        const int warps_first_key = run.first(warp_row), warps_end_key = run.end(warps_last);
        visits.meet_ends(n, warps_end_key);
        const auto tile = visits.take(n);
        const int first_key = tile.first_key, keys = sequence.kv_len - first_key;
        unsigned char *const K_tile = KV_tiles + (unsigned)n % STAGES * KV_BYTES, *const V_tile = K_tile + K_BYTES;

        const auto pairs = visits.pairs(tile, keys);
        const auto seen_here = seen_of_tile(run, pairs, first_key, warp_row, warps_last - first_row);
        const auto scoring_here = scoring.of_tile(warp_row, first_key, warp_row - sequence.q_len + keys);
        if (first_key < warps_end_key && first_key + BC > warps_first_key) {
            const bool masked = !seen_here.all_see_all() || !scoring_here.splits();
            if (Forms::one_body) {
                visit_tile(own, Q_i, K_tile, V_tile, scoring_here, seen_here, masked, drawn);
            } else if (masked) {
                visit_tile(own, Q_i, K_tile, V_tile, scoring_here, seen_here, true, drawn);
            } else {
                visit_tile(own, Q_i, K_tile, V_tile, scoring_here, seen_here, false, drawn);
            }
        }
    }

    // Lines 12 to 15, where Q_i was: a warp's rows where its rows of Q_i were, which it alone reads, if they are as long.
    const size_t first = (size_t)sequence.number(head_index, head) * q_len + sequence.row(anew<Again::output>(first_row));
    const auto O_from = [&](int row) { return layout.O_rows(O, first + row, batch, head, sequence.row(first_row) + row); };
    write_rows<Sink, Forms::warps_write>(O_from, lse, first, min(BR, sequence.q_len - anew(first_row)), own, Q_tile,
                                         dropout.factor(), sink.logit(head));
}
