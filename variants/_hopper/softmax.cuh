// Softmax of what products of a warpgroup leave in registers. hopper.cuh is put before this text.
//
// Compile-time parameters: HEAD_DIM (elements per row, a multiple of 8), BC (keys per tile).

constexpr int TN = BC / 8;        // tiles of 8 keys
constexpr int TD = HEAD_DIM / 8;  // tiles of 8 elements of O

// The layout of sums of products: rows g = lane / 4 and g + 8 of the warp's 16 are h = 0 and 1, at [4 j + 2 h] and the
// next.
typedef float Scores[BC / 2];
typedef float Output[HEAD_DIM / 2];
typedef float PerRow[2];
typedef unsigned Weights[BC / 4];  // A: P, four registers for 16 keys

// What a consumer carries from tile to tile. m is in powers of two; l is that of the lane's own columns.
struct Rows {
    Output O;
    PerRow m, l;
};

// O_i = 0, l = 0, m = -inf.
__device__ __forceinline__ void clear(Rows &rows)
{
#pragma unroll
    for (int e = 0; e < HEAD_DIM / 2; ++e) rows.O[e] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        rows.m[h] = MINUS_INFINITY;
        rows.l[h] = 0.0f;
    }
}

// What makes powers of two of S: `factor` S. Types in its place may add to it, as scoring.cuh of fa3 does.
struct Powers {
    float factor;
    // m of row h, whose largest S, of the lane's, is x.
    __device__ __forceinline__ float maximum(float x, int) const { return factor * quad_max(x); }
    // What is added to `factor` S for powers of two relative to m, of which `minus_m` is the negative.
    __device__ __forceinline__ float relative_to(float minus_m, int) const { return minus_m; }
};

// m = max(m, rowmax(tau S)), P = exp(tau S - m) in the place of S, l = exp(m_old - m) l + rowsum(P). O_i is to be
// multiplied by `correction` = exp(m_old - m), too, once nothing is added to it any more. Where nothing was seen yet
// m = -inf, and (-inf) - (-inf) would be NaN. P and l, and with them O_i, are 2^OFFSET times that. With HEADROOM, m stays
// as long as the maximum is at most 2^HEADROOM times as much: P may be that much larger, and mostly nothing is corrected.
template <int OFFSET = 0, int HEADROOM = 0, class SomePowers>
__device__ __forceinline__ void exponentiate(Rows &rows, Scores &S, PerRow &correction, const SomePowers &powers)
{
    PerRow largest = {S[0], S[2]}, minus_m;
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) largest[h] = fmaxf(largest[h], fmaxf(S[4 * j + 2 * h], S[4 * j + 2 * h + 1]));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float m = fmaxf(rows.m[h], powers.maximum(largest[h], h));
        if (HEADROOM != 0 && m <= rows.m[h] + HEADROOM) m = rows.m[h];
        minus_m[h] = m == MINUS_INFINITY ? 0.0f : -m;
        correction[h] = exp2_approx(rows.m[h] + minus_m[h]);
        rows.m[h] = m;
        rows.l[h] *= correction[h];
        if (OFFSET != 0) minus_m[h] += OFFSET;
        minus_m[h] = powers.relative_to(minus_m[h], h);
    }
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float &low = S[4 * j + 2 * h], &high = S[4 * j + 2 * h + 1];
            low = exp2_approx(fmaf(low, powers.factor, minus_m[h]));
            high = exp2_approx(fmaf(high, powers.factor, minus_m[h]));
            rows.l[h] += low + high;
        }
}

// The same with the m that there is, so that nothing needs to be known of S before its first exponential. `sums` are
// rowsum(P), which l has nothing of yet. Returns the largest sum of any four neighbours, infinity where nothing was seen
// yet: no P is larger.
template <int OFFSET>
__device__ __forceinline__ float exponentiate_with_m(const Rows &rows, Scores &S, PerRow &sums, float tau2)
{
    PerRow minus_m;
    float largest = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        minus_m[h] = rows.m[h] == MINUS_INFINITY ? -MINUS_INFINITY : OFFSET - rows.m[h];
        sums[h] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < TN; j += 2)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float *const low = S + 4 * j + 2 * h, *const high = low + 4;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                low[c] = exp2_approx(fmaf(low[c], tau2, minus_m[h]));
                high[c] = exp2_approx(fmaf(high[c], tau2, minus_m[h]));
            }
            const float four = (low[0] + low[1]) + (high[0] + high[1]);
            largest = fmaxf(largest, four);
            sums[h] += four;
        }
    return largest;
}

// Behind it, where P is finite: m by as many powers of two as bring the row's largest P below 2^(OFFSET + 1), and P, l and
// `correction` accordingly. It is their difference in float that counts, whatever m + n is rounded to.
template <int OFFSET>
__device__ __forceinline__ void raise_m(Rows &rows, Scores &P, const PerRow &sums, PerRow &correction)
{
    PerRow largest = {0.0f, 0.0f};
#pragma unroll
    for (int e = 0; e < BC / 2; ++e) largest[e / 2 % 2] = fmaxf(largest[e / 2 % 2], P[e]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int exponent = (__float_as_int(quad_max(largest[h])) >> 23) - 127;
        const float raised = rows.m[h] + max(exponent - OFFSET, 0);
        correction[h] = raised == rows.m[h] ? 1.0f : exp2_approx(rows.m[h] - raised);
        rows.m[h] = raised;
        rows.l[h] = (rows.l[h] + sums[h]) * correction[h];
    }
#pragma unroll
    for (int e = 0; e < BC / 2; ++e) P[e] *= correction[e / 2 % 2];
}

__device__ __forceinline__ void correct(Output &O, const PerRow &correction)
{
#pragma unroll
    for (int j = 0; j < TD; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) O[4 * j + c] *= correction[c / 2];
}

// P, rounded to 16 bits: what a product leaves in two tiles of 8 keys is A of the next one.
__device__ __forceinline__ void round_weights(Weights &P, const Scores &S)
{
#pragma unroll
    for (int i = 0; i < BC / 4; ++i) P[i] = packed(S[2 * i], S[2 * i + 1]);
}
