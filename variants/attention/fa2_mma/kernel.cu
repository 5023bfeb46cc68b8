// FlashAttention-2, forward pass, on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// _dropout/dropout.cuh and fragments.cuh, _scores/scores.cuh, _mma/mma.cuh, _mma/tiles.cuh, scoring.cuh, seen.cuh,
// registers.cuh and output.cuh are put before this text, and, where what a row sees is no run of keys, _tiles/visits.cuh.
// The Numba twin is numba_kernel.py, which takes runs alone, and looks at V_j where it was copied.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, STAGES (tiles of K and V on
// chip), BLOCKS_PER_SM, and those of registers.cuh.

constexpr int KV_BYTES = BC * ROW_BYTES;  // of K_j, and of V_j

// Which block of rows starts as the first, the second and so on of a head's: see _tiles/longest_first.py, or the last rows
// first, which see most keys where causal.
#if defined(VISITS)
#define ORDER_PARAMETER , const int *__restrict__ order
#define ROW_BLOCK order[(size_t)(entry * lists_per_sequence + head * lists_per_head) * gridDim.y + blockIdx.y]
#elif defined(SPANS)
#define ORDER_PARAMETER , const int *__restrict__ order
#define ROW_BLOCK order[(size_t)blockIdx.z * gridDim.y + blockIdx.y]
#else
#define ORDER_PARAMETER
#define ROW_BLOCK (int)(gridDim.y - 1 - blockIdx.y)
#endif

// m follows the maximum of S once that is more than a factor of 2^SLACK of weight ahead: O_i is seldom rescaled then, and
// whatever m is, it cancels in O_i / l_i. Sums are at most 2^SLACK times as large as with the maximum itself.
constexpr float SLACK = 2.0f;

// The grid is (heads side by side, blocks of a head, groups of so many heads), see _tiles/grids.py. Heads are counted
// through the batch; `group` of them share K and V.
__device__ __forceinline__ unsigned head_index() { return blockIdx.z * gridDim.x + blockIdx.x; }

// tau2 is positive: Q_i takes the sign of tau, or becomes 0.
__device__ __forceinline__ void give_sign(unsigned char *Q_tile, int sign)
{
    for (int e = threadIdx.x; e < BR * TD * 4; e += THREADS) {
        const unsigned at = swizzled<ROW_BYTES>(e / (TD * 4), e / 4 % TD) + e % 4 * 4;
        unsigned &both = *reinterpret_cast<unsigned *>(Q_tile + at);
        both = sign < 0 ? both ^ 0x80008000 : packed(0.0f * unpacked(both).x, 0.0f * unpacked(both).y);
    }
}

// --- Products --------------------------------------------------------------------------------------------------------

// sum + 0 x, both halves: NaN from the first x on that is infinity or NaN.
__device__ __forceinline__ unsigned add_nothing_of(unsigned x, unsigned sum)
{
    asm("fma.rn." MMA_TYPE "x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
    return sum;
}

// Line 8: S = Q_i K_j^T for the warp's rows. Where LOOKS_AT_V, the same places of V_j are read between products, which take
// longer than that: whether this lane finds NaN or infinity there.
template <bool LOOKS_AT_V, int TILES>
__device__ __forceinline__ bool multiply_Q_Kt(float (&S)[TM][TILES][4], const Query &Q, const unsigned char *K_tile)
{
    const unsigned K_lane = shared_address(K_tile) + lane_in_K();
    unsigned nothing[SUMS] = {};
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        unsigned q[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            if (k < KEPT) {
#pragma unroll
                for (int c = 0; c < 4; ++c) q[i][c] = Q.kept[i][k][c];
            } else {
                load_matrices(q[i], chunks_further(Q.lane, 2 * k) + i * 16 * ROW_BYTES);
            }
        }
#pragma unroll
        for (int j = 0; j < TILES; j += 2) {
            const unsigned at = chunks_further(K_lane, 2 * k) + j * 8 * ROW_BYTES;
            unsigned key[4];
            load_matrices(key, at);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                multiply_add(S[i][j], q[i], key[0], key[1]);
                multiply_add(S[i][j + 1], q[i], key[2], key[3]);
            }
            if constexpr (LOOKS_AT_V) {
                unsigned v[4];
                load_matrices(v, at + KV_BYTES);
#pragma unroll
                for (int c = 0; c < 4; ++c) nothing[c % SUMS] = add_nothing_of(v[c], nothing[c % SUMS]);
            }
        }
    }
    const bool found = not_finite(nothing[0]) || not_finite(nothing[1]) || not_finite(nothing[2 % SUMS]) ||
                       not_finite(nothing[3 % SUMS]);
    return LOOKS_AT_V && found;
}

// Line 9, first half: m = max(m, rowmax(tau S)). Line 10, first half: O_i = diag(exp(m_old - m)) O_i, and l_i likewise.
__device__ __forceinline__ void raise_maximum(Rows &rows, const Scores &S, const Powers<TM> &powers)
{
    PerRow largest;
    bool rises = false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float x = fmaxf(S[i][0][2 * h], S[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < TN; ++j) x = fmaxf(x, fmaxf(S[i][j][2 * h], S[i][j][2 * h + 1]));
            largest[i][h] = powers.maximum(x, i, h);
            rises |= largest[i][h] > rows.m[i][h] + SLACK;
        }
    if (!__any_sync(0xffffffff, rises)) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float m = fmaxf(rows.m[i][h], largest[i][h]);
            const float correction = exp2_approx(rows.m[i][h] - (m == MINUS_INFINITY ? 0.0f : m));
            rows.m[i][h] = m;
            rows.l[i][h] *= correction;
#pragma unroll
            for (int j = 0; j < TD; ++j) {
                rows.O[i][j][2 * h] *= correction;
                rows.O[i][j][2 * h + 1] *= correction;
            }
        }
}

// Line 9, second half, for keys 16 s to 16 s + 15: P = exp(tau S - m), rounded to 16 bits, and l += rowsum(P), not
// rounded. Where nothing was seen yet m = -inf, and (-inf) - (-inf) would be NaN. Dropout leaves l as it is.
template <int TILES>
__device__ __forceinline__ void exponentiate(Weights &P, PerRow &l, const PerRow &m, const float (&S)[TM][TILES][4],
                                             const Powers<TM> &powers, int s DRAWN_PARAMETERS(TILES))
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float minus_m = m[i][h] == MINUS_INFINITY ? 0.0f : -m[i][h];
            const float addend = powers.relative_to(minus_m, i, h);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float low = exp2_approx(fmaf(S[i][2 * s + j][2 * h], powers.factor, addend));
                const float high = exp2_approx(fmaf(S[i][2 * s + j][2 * h + 1], powers.factor, addend));
                l[i][h] += low;
                l[i][h] += high;
                P[i][2 * j + h] = LEFT_OF_BOTH(packed(low, high), i, h, s, j);
            }
        }
}

// Line 10, second half: O += P V over 16 keys, of which V_lane is in the first. Where not FINITE, what is NaN or infinity
// in V counts as 0.
template <bool FINITE>
__device__ __forceinline__ void add_P_V(Output &O, const Weights &P, unsigned V_lane)
{
#pragma unroll
    for (int j = 0; j < TD; j += 2) {
        unsigned v[4];
        load_matrices_transposed(v, chunks_further(V_lane, j));
        if constexpr (!FINITE) {
#pragma unroll
            for (int c = 0; c < 4; ++c) v[c] = finite_or_zero(v[c]);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            multiply_add(O[i][j], P[i], v[0], v[1]);
            multiply_add(O[i][j + 1], P[i], v[2], v[3]);
        }
    }
}

// O += p v over 16 keys for each v that is NaN or infinity, in rows that see its key.
__device__ __forceinline__ void add_not_finite(Output &O, const Weights &P, const unsigned char *V_tile, const KeysSeen &seen)
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int key = 0; key < 16; ++key) {
        PerRow p;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned both = __shfl_sync(0xffffffff, key < 8 ? P[i][h] : P[i][2 + h], (lane & ~3) | key % 8 / 2);
                p[i][h] = key % 2 ? unpacked(both).y : unpacked(both).x;
            }
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            const unsigned both = *reinterpret_cast<const unsigned *>(V_tile + swizzled<ROW_BYTES>(key, j) + lane % 4 * 4);
            if (!not_finite(both)) continue;
            const float2 v = unpacked(both);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (key < seen.first(i, h) || key >= seen.end(i, h)) continue;
#ifdef VISITS
                    if (seen.mixed && !is_noted(seen.noted, row_of(i, h), seen.from + key)) continue;
#endif
                    if (!isfinite(v.x)) O[i][j][2 * h] += p[i][h] * v.x;
                    if (!isfinite(v.y)) O[i][j][2 * h + 1] += p[i][h] * v.y;
                }
        }
    }
}

// Lines 9 and 10 once more, after m is known, where V holds NaN or infinity at keys that some rows do not see: a row must
// not even multiply such a value by its zero weight. Rows that see none of them get the bits that they would get without.
// Of 16 keys at a time: S is worked out anew, since registers have no index at run time.
__device__ __forceinline__ void add_P_V_where_seen(Rows &rows, const Query &Q, const unsigned char *K_tile,
                                                   const unsigned char *V_tile, const TileScoring &scoring,
                                                   const KeysSeen &seen DROPOUT_OF_TILE_PARAMETERS)
{
#pragma unroll 1
    for (int key = 0; key < BC; key += 16) {
        float S[TM][2][4];
        const TileScoring scoring_behind = scoring.behind(key);
        Powers<TM> powers = start_scores<false>(S, scoring_behind);
        multiply_Q_Kt<false>(S, Q, K_tile + key * ROW_BYTES);
        finish_scores<false>(S, powers, scoring_behind);
        mask(S, seen.behind(key));
        Weights P;
        DRAWN_ROWS(2)
        DRAW(key, 0)
        exponentiate(P, rows.l, rows.m, S, powers, 0 DRAWN_ARGUMENTS);
        add_P_V<false>(rows.O, P, shared_address(V_tile) + lane_in_A() + key * ROW_BYTES);
        add_not_finite(rows.O, P, V_tile + key * ROW_BYTES, seen.behind(key));
    }
}

// S, before what rows have `seen` is looked at. Only where MASKED is looked at V_j, see multiply_Q_Kt; else scores are SPLIT.
template <bool MASKED>
__device__ __forceinline__ bool scores_of_tile(Scores &S, Powers<TM> &powers, const Query &Q, const unsigned char *K_tile,
                                               const TileScoring &scoring)
{
    powers = start_scores<!MASKED>(S, scoring);
    const bool poisoned = multiply_Q_Kt<MASKED>(S, Q, K_tile);
    finish_scores<!MASKED>(S, powers, scoring);
    return poisoned;
}

// Lines 8 to 10 for the warp's rows and one tile of keys. Only where it is `masked` is looked at which of them rows have
// `seen`, and whether V_j is finite.
__device__ __forceinline__ void visit_tile(Rows &rows, const Query &Q, const unsigned char *K_tile,
                                           const unsigned char *V_tile, const TileScoring &scoring, const KeysSeen &seen,
                                           bool masked DROPOUT_OF_TILE_PARAMETERS)
{
    Scores S;
    Powers<TM> powers;
    bool poisoned = false;
    if (masked) {
        poisoned = EARLY_VOTE(scores_of_tile<true>(S, powers, Q, K_tile, scoring));
    } else {
        scores_of_tile<false>(S, powers, Q, K_tile, scoring);
    }
    if (masked) mask(S, seen);
    raise_maximum(rows, S, powers);
    if (masked && LATE_VOTE(poisoned)) {
        add_P_V_where_seen(rows, Q, K_tile, V_tile, scoring, seen DROPOUT_OF_TILE_ARGUMENTS);
        return;
    }
    // 16 keys at a time: exponentials of the next are under way with the products of these.
    DRAWN_ROWS(TN)
#pragma unroll
    for (int s = 0; s < TN / 2; ++s) {
        Weights P;
        DRAW(0, s)
        exponentiate(P, rows.l, rows.m, S, powers, s DRAWN_ARGUMENTS);
        add_P_V<true>(rows.O, P, shared_address(V_tile) + lane_in_A() + s * 16 * ROW_BYTES);
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2_mma(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, unsigned heads, unsigned group, float tau, int sign,
    LIMITS ORDER_PARAMETER VISITS_PARAMETERS SCORE_PARAMETERS SINKS_PARAMETER DRAW_PARAMETERS FACTOR_PARAMETER)
{
    extern __shared__ __align__(128) unsigned char Q_tile[];
    unsigned char *const KV_tiles = Q_tile + BR * ROW_BYTES;  // K_j, V_j of one stage, then of the next
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Line 3: the block owns Q_i and O_i of one head.
    [[maybe_unused]] const unsigned head = head_index() % heads, entry = head_index() / heads;
    const int first_row = ROW_BLOCK * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = (size_t)head_index() * q_len + first_row;
    const stored *const K_head = K + (size_t)(head_index() / group) * kv_len * D;
    const stored *const V_head = V + (size_t)(head_index() / group) * kv_len * D;

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) {
        for (int i = threadIdx.x * 16; i < BR * ROW_BYTES + STAGES * 2 * KV_BYTES; i += THREADS * 16) {
            *reinterpret_cast<uint4 *>(Q_tile + i) = make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
    }

    // Line 4: load Q_i.
    copy_tile<BR>(Q_tile, Q + first_stat * D, rows);
    commit_copies();

    // Lines 6 and 7: all K_j, V_j of which a row of Q_i sees a key, STAGES - 1 of them ahead of their use. What a row sees
    // moves on with the row, so the first row's first key is the block's, and the last row's end is.
    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
#ifndef VISITS
    int first_visit = first_seen(first_row, q_len, kv_len, before) / BC;
    const int end_visit = (end_seen(last_row, q_len, kv_len, after) + BC - 1) / BC;
#else  // those that are listed, the last one first: how many there were need not be kept
    __shared__ Noted noted;
    const Visits listed = VISITS_OF(entry, head, first_row / BR, gridDim.y);
    const int first_visit = listed.count - 1, end_visit = -1;
    Visit coming[STAGES];  // from this one on, read before they are copied; behind the last one, how many there were
#pragma unroll
    for (int n = 0; n < STAGES; ++n) coming[n] = listed[max(first_visit - n, -1)];
#endif
    // In which order. ALiBi takes least off the keys that are nearest: where they come first, those before them next, and
    // those behind them last, m is mostly what it stays, and O_i need not be rescaled.
#if defined(ALIBI) && !defined(VISITS)
    const int nearest = min(max((last_row + kv_len - q_len) / BC, first_visit), end_visit - 1);
#endif
    // Under a window the first warps alone see its first tile, and others alone the last one: these two are visited at
    // once then, at the end.
#ifdef ENDS_AT_ONCE
    bool apart = first_visit + 1 < end_visit;
#pragma unroll
    for (int row = first_row; row < first_row + BR; row += WARP_ROWS) {
        const int of_warp = min(row, last_row), last_of_warp = min(row + WARP_ROWS - 1, last_row);
        apart &= first_seen(of_warp, q_len, kv_len, before) >= (first_visit + 1) * BC ||
                 end_seen(last_of_warp, q_len, kv_len, after) <= (end_visit - 1) * BC;
    }
    first_visit += apart;
    const int end_copy = end_visit + apart;
#else
    const int end_copy = end_visit;
#endif
    const auto tile_of = [&](int n, int further) {
#ifdef VISITS
        return coming[further].tile();
#elif defined(ALIBI)
        return n <= nearest ? first_visit + nearest - n : n;
#elif defined(ENDS_AT_ONCE)
        return n < end_visit ? n : first_visit - 1;
#else
        return n;
#endif
    };
    const auto copy_keys = [&](int n, int further) {
        if (AHEAD > 0 ? n < end_copy : n > end_copy) {
            const int j = tile_of(n, further);
            unsigned char *const K_tile = KV_tiles + n % STAGES * 2 * KV_BYTES;
            copy_tile<BC>(K_tile, K_head + (size_t)j * BC * D, kv_len - j * BC);
            copy_tile<BC>(K_tile + KV_BYTES, V_head + (size_t)j * BC * D, kv_len - j * BC);
        }
        commit_copies();
    };

#pragma unroll
    for (int n = 0; n < STAGES - 1; ++n) copy_keys(first_visit + n * AHEAD, n);
    wait_for_copies<STAGES - 1>();
    __syncthreads();
    if (sign != 1) {
        give_sign(Q_tile, sign);
        __syncthreads();
    }
    Query Q_i;
    Q_i.lane = shared_address(Q_tile) + warp * WARP_ROWS * ROW_BYTES + lane_in_A();
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int k = 0; k < KEPT; ++k) load_matrices(Q_i.kept[i][k], chunks_further(Q_i.lane, 2 * k) + i * 16 * ROW_BYTES);

    // Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers.
    Rows own;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            own.m[i][h] = MINUS_INFINITY;
            own.l[i][h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < TD; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) own.O[i][j][c] = 0.0f;
    }

#ifdef ALIBI
    const float slope = LOG2_E * slopes[head], per_key = penalty_per_key(slope, SCORE_UNIT);
#endif

    // Some row of the warp sees the keys from its first row's first to its last row's end.
    const int warp_row = first_row + warp * WARP_ROWS, warps_last = min(warp_row + WARP_ROWS, q_len) - 1;
    const int warps_first_key = first_seen(warp_row, q_len, kv_len, before);
    const int warps_end_key = end_seen(warps_last, q_len, kv_len, after);
#pragma unroll 1
    for (int n = first_visit; AHEAD > 0 ? n < end_visit : n > end_visit; n += AHEAD) {
        // Line 7: K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite.
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        copy_keys(n + (STAGES - 1) * AHEAD, STAGES - 1);
#ifdef ENDS_AT_ONCE
        if (n == end_visit - 1 && end_copy > end_visit) {
            wait_for_copies<0>();
            __syncthreads();
            n += warps_end_key <= (end_visit - 1) * BC;
        }
#endif
        const int first_key = tile_of(n, 0) * BC;
#ifdef VISITS
        const bool mixed = coming[0].is_mixed();
#pragma unroll
        for (int further = 1; further < STAGES; ++further) coming[further - 1] = coming[further];
        coming[STAGES - 1] = listed[max(n - STAGES, -1)];
#endif
        unsigned char *const K_tile = KV_tiles + n % STAGES * 2 * KV_BYTES, *const V_tile = K_tile + KV_BYTES;

        const int keys = kv_len - first_key;
#ifdef VISITS
        if (mixed) {  // a warp notes its own rows
            note_seen<WARP_ROWS>(noted, RULE_OF(head), first_row, rows, first_key, min(BC, keys), threadIdx.x);
            __syncwarp();
        }
#endif
        const TileScoring scoring = {SCORING(slope, warp_row - q_len + keys) PER_KEY_ARGUMENT(per_key)};
#ifndef SPANS
        const KeysSeen seen = {keys, warp_row - q_len + keys, before, after AND_NOTED};
#else
        const KeysSeen seen = {keys, first_key, warps_last - first_row, before, after AND_NOTED};
#endif
        if (first_key < warps_end_key && first_key + BC > warps_first_key) {
            const bool masked = !seen.by_all() || !scoring.splits<TM, TN>();
#ifdef IN_ONE
            visit_tile(own, Q_i, K_tile, V_tile, scoring, seen,
                       masked DROPOUT_OF_TILE(head, entry, warp_row, first_key));
#else
            if (masked) {
                visit_tile(own, Q_i, K_tile, V_tile, scoring, seen,
                           true DROPOUT_OF_TILE(head, entry, warp_row, first_key));
            } else {
                visit_tile(own, Q_i, K_tile, V_tile, scoring, seen,
                           false DROPOUT_OF_TILE(head, entry, warp_row, first_key));
            }
#endif
        }
    }

    // Lines 12 to 15, where the warp's rows of Q_i were, which it alone reads.
    write_rows(O, lse, first_stat, rows, own, Q_tile, warp, lane, KEPT_FACTOR, SINK(head));
}
