// One tile of rows of a block that owns keys: P and dS of it, and what is summed of them. shares.cuh, seen.cuh, products.cuh
// and dropout_fragments.cuh are put before this text. Line numbers are those of Dao 2023, arXiv 2307.08691, algorithm 2.

constexpr bool HAS_TERMS = term_count<ScoreTerms> > 0;

// Where row `of_sequence` of the block's sequence lies. Of several sequences that is noted in shared memory by one thread, and
// read anew: sums want the registers.
template <class Sequences> struct RowsIn {
    static __device__ __forceinline__ volatile int &first()
    {
        __shared__ int first;
        return first;
    }
    static __device__ __forceinline__ void note(const typename Sequences::Own &mirrored) { first() = mirrored.key(0); }
    static __device__ __forceinline__ int row(int of_sequence) { return first() + of_sequence; }
};
template <> struct RowsIn<OneLength> {
    static __device__ __forceinline__ void note(const OneLength::Own &) {}
    static __device__ __forceinline__ int row(int of_sequence) { return of_sequence; }
};

// K_j and V_j of one head, and what all rows of the query heads that share them need.
struct KeyBlock {
    Chip chip;
    RowsOfKey seeing;
    const bool *not_finite;  // whether K_j had NaN or infinity
    int first_key, q_len, group;
    float tau2;  // tau times log2 e; the factor before score terms, if there are some
    Dropout dropout;
    ScoreTerms terms;
    int kv_len;
    Sequences::Own sequence;  // mirrored
    int all_rows;             // of a head, in all sequences

    // Of the query heads that share the keys, counted through the batch.
    __device__ __forceinline__ size_t first_head() const
    {
        return sequence.number((size_t)blockIdx.z * gridDim.x + blockIdx.x, blockIdx.x) * group;
    }
};

// Line 11: P = exp(tau S - L_i), in the place of S.
__device__ __forceinline__ void exponentiate(Scores &S, const float *L_lane, float tau2)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float2 L_j = *reinterpret_cast<const float2 *>(L_lane + 8 * j);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = exp2_approx(fmaf(S[i][j][c], tau2, -(c % 2 ? L_j.y : L_j.x)));
    }
}

// Line 14: dS = P o (dP - D_i), in the place of dP, which is 0 where the weight drops out.
__device__ __forceinline__ void multiply_P(Scores &dP, const Scores &P, const float *D_lane, float factor,
                                           const KeptInKeys<Dropout, TM, TN> &kept)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float2 D_j = *reinterpret_cast<const float2 *>(D_lane + 8 * j);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                dP[i][j][c] = P[i][j][c] * kept.minus(dP[i][j][c], c % 2 ? D_j.y : D_j.x, factor, i, c / 2, j, c % 2);
            }
    }
}

// Lines 11 and 14 with score terms, at once: the derivative of a score is a factor of dS, and wants no register until then.
// `key` and `row` are the lane's first ones.
template <class Score>
__device__ __forceinline__ void weigh(Scores &S, Scores &dP, const float *L_lane, float factor, float growth,
                                      const KeptInKeys<Dropout, TM, TN> &kept, const Score &score, int key, int row)
{
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float2 L_of = *reinterpret_cast<const float2 *>(L_lane + 8 * j);
        const float2 D_of = *reinterpret_cast<const float2 *>(L_lane + BR + 8 * j);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const Scored s = score.with_derivative(factor * S[i][j][c], row + 8 * j + c % 2, key + 16 * i + c / 2 * 8);
                const float P = exp2_approx(fmaf(s.score, LOG2_E, -(c % 2 ? L_of.y : L_of.x)));
                S[i][j][c] = P;
                dP[i][j][c] = s.derivative * (P * kept.minus(dP[i][j][c], c % 2 ? D_of.y : D_of.x, growth, i, c / 2, j, c % 2));
            }
    }
}

// Lines 10 to 14: P and dS of the turn's tile. Then lines 12 and 16 for the warp's own keys, or P and dS for other warps to sum.
// `all_seen`: whether every row sees every key, and all of K_j is finite; `hidden`: which pairs a mask hides besides.
template <class HiddenPairs>
__device__ __forceinline__ void score(Sums (&sums)[SUMS], const KeyBlock &block, const Turn &turn, bool all_seen,
                                      const HiddenPairs &hidden)
{
    const int thread = thread_anew(), lane = thread % 32, warp = thread / 32;
    const int warps_key = warp % KEY_GROUPS * WARP_KEYS, key = block.first_key + warps_key;
    const unsigned Q_tile = block.chip.Q_tile(turn.stage()), dO_tile = Q_tile + ROWS_BYTES;
    const float *const L_lane = block.chip.L(turn.stage(), lane % 4 * 2), *const D_lane = L_lane + BR;
    const unsigned K_lane = block.chip.address + in_A(lane) + warps_key * ROW_BYTES;
    const unsigned W_lane = block.chip.dS_tile(turn.number) + in_A<W_ROW_BYTES>(lane) + warps_key * W_ROW_BYTES;
#pragma unroll 1
    for (int beyond = 0; beyond < WARP_ROWS; beyond += ROWS_AT_ONCE) {
        // Rows of the tile from `above` on, with the warp's keys.
        const int above = warp / KEY_GROUPS * WARP_ROWS + beyond, row = turn.first_row + above;
        const unsigned rows_at = above * ROW_BYTES;
        bool by_all = true, by_some = true;
        if (!all_seen) {
            const Pairs pairs = {row, min(row + ROWS_AT_ONCE, block.q_len) - 1, key, WARP_KEYS};
            by_all = all_see(block.seeing, pairs) && !*block.not_finite;
            by_some = row < block.q_len && some_see(block.seeing, pairs);
        }
        Weights P, dS;
        if (by_some) {
            // Line 10: S = Q_i K_j^T. Line 11: P = exp(tau S - L_i).
            Scores S, dP;
            multiply_A_Bt(S, K_lane, Q_tile + in_K(lane) + rows_at);
            if constexpr (!HAS_TERMS) exponentiate(S, L_lane + above, block.tau2);
            // Line 13: dP = dO_i V_j^T. Line 14: dS = P o (dP - D_i).
            KeptInKeys<Dropout, TM, TN> kept;
            const auto drawn = block.dropout.of_head(blockIdx.x * block.group + turn.head, blockIdx.z);
            kept.draw(with_seed_anew(drawn), thread_anew() % 32, key, row);
            multiply_A_Bt(dP, K_lane + KEYS_BYTES, dO_tile + in_K(lane) + rows_at);
            if constexpr (HAS_TERMS) {
                // What terms have of the head is read here, once for each of these rows.
                const int head = anew(blockIdx.x * block.group + turn.head), lane = thread_anew() % 32;
                const auto score = block.terms.of_head(head, block.q_len, block.kv_len);
                weigh(S, dP, L_lane + above, block.tau2, block.dropout.factor(), kept, score, key + lane / 4,
                      row + lane % 4 * 2);
            } else {
                multiply_P(dP, S, D_lane + above, block.dropout.factor(), kept);
            }
            if (!by_all) mask(S, dP, block.seeing, key, row);
            hide(S, dP, hidden, warps_key, above);
            round_weights(P, S);
            drop(P, kept);
            round_weights(dS, dP);

            // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
            if constexpr (!HANDS_WEIGHTS) {
                const unsigned own_at = in_A(lane) + rows_at;
#pragma unroll
                for (int s = 0; s < TN / 2; ++s) add_Wt_Y(sums[0], P[s], dO_tile + own_at, s, STEPS);
#pragma unroll
                for (int s = 0; s < TN / 2; ++s) add_Wt_Y(sums[SUMS - 1], dS[s], Q_tile + own_at, s, STEPS);
            }
        } else {
            // What others sum has these keys and rows, too.
            clear(P);
            clear(dS);
        }
        if constexpr (LAG) {
            const unsigned to = chunks_further(W_lane, above / CHUNK);
            store_weights(to, dS);
            if constexpr (HANDS_WEIGHTS) store_weights(to + W_BYTES, P);
        }
    }
}

// What is summed of the dS^T and P^T that warps stored in a turn: lines 12 or 16, and 15.
__device__ __forceinline__ void sum(Sums (&sums)[SUMS], const KeyBlock &block, const Turn &turn, const DQ &dQ)
{
    const unsigned W_tile = block.chip.dS_tile(turn.number);
    if constexpr (HANDS_WEIGHTS) {
        const int thread = thread_anew(), lane = thread % 32;
        const Share own = share_of(thread);
        const unsigned W_lane = W_tile + own.of_dV * W_BYTES + own.key * W_ROW_BYTES + in_A<W_ROW_BYTES>(lane);
        const unsigned Y_tile = block.chip.Q_tile(turn.stage()) + own.of_dV * ROWS_BYTES;
        const unsigned Y_lane = Y_tile + in_A(lane) + own.step * 2 * CHUNK_BYTES;
#pragma unroll
        for (int s = 0; s < BR / 16; ++s) {
            unsigned W[SUM_TILES][4];
#pragma unroll
            for (int i = 0; i < SUM_TILES; ++i) load_matrices(W[i], chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES);
            add_Wt_Y(sums[0], W, Y_lane, s, STEPS - own.step);
        }
    }
    // Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
    if constexpr (DQ::IS_ADDED) {
        float *const dQ_head = dQ.of_head(block.first_head() + turn.head, block.all_rows, RowsIn<Sequences>::row(0));
        add_dS_K(dQ_head, W_tile, block.chip.address, turn.first_row, block.q_len);
    }
}
