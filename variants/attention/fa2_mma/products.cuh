// The products of the algorithm and the online softmax between them. seen.cuh, scoring.cuh and registers.cuh are put before
// this text; line numbers are those of kernel.cu. The Numba twin is numba_products.py.

// m follows the maximum of S once that is more than a factor of 2^SLACK of weight ahead: O_i is seldom rescaled then, and
// whatever m is, it cancels in O_i / l_i. Sums are at most 2^SLACK times as large as with the maximum itself.
constexpr float SLACK = 2.0f;

// Line 8: S = Q_i K_j^T for the warp's rows. Where LOOKS_AT_V, the same places of V_j are read between products, which take
// longer than that: whether this lane finds NaN or infinity there, in so many SUMS. Where rows of V_j are longer, the rest is
// read after that.
template <bool LOOKS_AT_V, int SUMS, int TILES>
__device__ __forceinline__ bool multiply_Q_Kt(float (&S)[TM][TILES][4], const Query &Q, const unsigned char *K_tile)
{
    const unsigned K_lane = shared_address(K_tile) + lane_in_K();
    const unsigned V_lane = shared_address(K_tile) + K_BYTES + lane_in_K<DV>();
    unsigned nothing[SUMS] = {};
    const auto look_at_V = [&](unsigned at) {
        unsigned v[4];
        load_matrices(v, at);
#pragma unroll
        for (int c = 0; c < 4; ++c) nothing[c % SUMS] = add_nothing_of(v[c], nothing[c % SUMS]);
    };
    const auto place_in_V = [&](int j, int k) { return chunks_further(V_lane, 2 * k) + j * 8 * V_ROW_BYTES; };
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        unsigned q[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            if (k < KEPT) {
#pragma unroll
                for (int c = 0; c < 4; ++c) q[i][c] = Q.kept[i][k][c];
            } else {
                Q.load(q[i], i, k);
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
                if (k < TD / 2) look_at_V(V_ROW_BYTES == ROW_BYTES ? at + K_BYTES : place_in_V(j, k));
            }
        }
    }
    if constexpr (LOOKS_AT_V) {
#pragma unroll
        for (int k = STEPS; k < TD / 2; ++k)
#pragma unroll
            for (int j = 0; j < TILES; j += 2) look_at_V(place_in_V(j, k));
    }
    bool found = false;
#pragma unroll
    for (int sum = 0; sum < SUMS; ++sum) found |= not_finite(nothing[sum]);
    return LOOKS_AT_V && found;
}

// Line 9, first half: m = max(m, rowmax(tau S)). Line 10, first half: O_i = diag(exp(m_old - m)) O_i, and l_i likewise.
template <class Scoring>
__device__ __forceinline__ void raise_maximum(Rows &rows, const ScoreTile &S, const Scoring &scoring, const Powers &powers)
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
            largest[i][h] = scoring.maximum(powers, x, i, h);
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
template <int TILES, class Scoring, class Kept>
__device__ __forceinline__ void exponentiate(Weights &P, PerRow &l, const PerRow &m, const float (&S)[TM][TILES][4],
                                             const Scoring &scoring, const Powers &powers, const Kept &kept, int s)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float minus_m = m[i][h] == MINUS_INFINITY ? 0.0f : -m[i][h];
            const float addend = scoring.relative_to(powers, minus_m, i, h);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float low = exp2_approx(fmaf(S[i][2 * s + j][2 * h], powers.factor, addend));
                const float high = exp2_approx(fmaf(S[i][2 * s + j][2 * h + 1], powers.factor, addend));
                l[i][h] += low;
                l[i][h] += high;
                P[i][2 * j + h] = kept.both(packed(low, high), i, h, s, j);
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
template <class Seen>
__device__ __forceinline__ void add_not_finite(Output &O, const Weights &P, const unsigned char *V_tile, const Seen &seen)
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
            const unsigned both = *reinterpret_cast<const unsigned *>(V_tile + swizzled<V_ROW_BYTES>(key, j) + lane % 4 * 4);
            if (!not_finite(both)) continue;
            const float2 v = unpacked(both);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (key < seen.first(i, h) || key >= seen.end(i, h)) continue;
                    if (seen.pairs.hides_some() && !seen.pairs.sees(row_of(i, h), seen.skipped + key)) continue;
                    if (!isfinite(v.x)) O[i][j][2 * h] += p[i][h] * v.x;
                    if (!isfinite(v.y)) O[i][j][2 * h + 1] += p[i][h] * v.y;
                }
        }
    }
}
