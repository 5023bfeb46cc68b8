// What S becomes before the mask, in the layout of a product on tensor cores: TM tiles of 16 rows, TN of 8 keys.
// _scores/scores.cuh is put before this text. The Numba twin is numba_scoring.py.

#ifdef ALIBI
#define PER_KEY_ARGUMENT(per_key) , per_key
#else
#define PER_KEY_ARGUMENT(per_key)
#endif
#ifdef SOFTCAP
#define SCORE_UNIT 1.0f
#else
#define SCORE_UNIT tau
#endif

struct TileScoring : Scoring {
#ifdef ALIBI
    float per_key;  // see penalty_per_key
#endif

    // Whether scores of the tile can be SPLIT, see below. All its keys are at the places of all rows or before them, or all
    // at them or behind.
    template <int TM, int TN> __device__ __forceinline__ bool splits() const
    {
#ifdef ALIBI
        return per_key != 0.0f && (is_before<TN>() || place + 16 * TM - 1 <= 0);
#else
        return true;
#endif
    }

#ifdef ALIBI
    template <int TN> __device__ __forceinline__ bool is_before() const { return place >= 8 * TN - 1; }
#endif

    // Of the tile's keys from that one on.
    __device__ __forceinline__ TileScoring behind([[maybe_unused]] int key) const
    {
        TileScoring scoring = *this;
#ifdef ALIBI
        scoring.place -= key;
#endif
        return scoring;
    }
};

#ifdef ALIBI
// By how much S, of which powers of two are `unit` S, falls from key to key away from a row's place. 0 where the penalty is
// not to be split into a row's share and a column's: what is split is rounded relative to half a tile of keys.
__device__ __forceinline__ float penalty_per_key(float slope, float unit)
{
    const float per_key = slope / unit, size = fabsf(per_key);
    return fabsf(slope) <= 2.0f && size >= 0x1p-64f && size <= 0x1p+64f ? per_key : 0.0f;
}
#endif

// What makes powers of two of S, as it is left: `factor` S + `of_row`.
template <int TM> struct Powers {
    float factor;
#ifdef ALIBI
    float of_row[TM][2];  // differs between lanes, too, by their columns
#endif

    // m of a row whose largest S, of the lane's, is x.
    __device__ __forceinline__ float maximum(float x, int i, int h) const
    {
#ifdef ALIBI
        return quad_max(fmaf(factor, x, of_row[i][h]));
#else
        return factor * quad_max(x);
#endif
    }

    // What is added to `factor` S for powers of two relative to m, of which `minus_m` is the negative.
    __device__ __forceinline__ float relative_to(float minus_m, int i, int h) const
    {
#ifdef ALIBI
        return of_row[i][h] + minus_m;
#else
        return minus_m;
#endif
    }
};

#ifdef ALIBI
// Where SPLIT, the penalty is a row's, to the tile's middle, and a column's, from there on: what is added to S.
template <int TM, int TN>
__device__ __forceinline__ void split_penalty(float (&S)[TM][TN][4], Powers<TM> &powers, const TileScoring &scoring)
{
    const bool before = scoring.is_before<TN>();
    const float slope = before ? scoring.slope : -scoring.slope, per_key = before ? scoring.per_key : -scoring.per_key;
    // Counted from the lane's first column.
    const int lane = (int)threadIdx.x % 32;
    const float place = (float)(scoring.place + lane / 4 - lane % 4 * 2 - 4 * TN);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            powers.of_row[i][h] = -slope * (place + (float)(16 * i + 8 * h));
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &s = S[i][j][2 * h + c];
                    s = fmaf(per_key, (float)(8 * j + c - 4 * TN), s);
                }
        }
}

// Elsewhere it is each score's own.
template <int TM, int TN>
__device__ __forceinline__ void add_penalty(float (&S)[TM][TN][4], Powers<TM> &powers, const TileScoring &scoring)
{
    const int lane = (int)threadIdx.x % 32, place = scoring.place + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float row_place = (float)(place + 16 * i + 8 * h);
            powers.of_row[i][h] = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &s = S[i][j][2 * h + c];
                    s = fmaf(powers.factor, s, -scoring.slope * fabsf(row_place - (float)(8 * j + c)));
                }
        }
    powers.factor = 1.0f;
}
#endif

// What S starts from, before the product is added to it. tau2, which is positive, has log2 e in it, or, where tanh comes
// next, is divided by the cap; that has log2 e in it then, as slopes have.
template <bool SPLIT, int TM, int TN>
__device__ __forceinline__ Powers<TM> start_scores(float (&S)[TM][TN][4], const TileScoring &scoring)
{
    Powers<TM> powers;
    powers.factor = scoring.tau;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = 0.0f;
#if defined(ALIBI) && !defined(SOFTCAP)
    if constexpr (SPLIT) split_penalty(S, powers, scoring);
#endif
    return powers;
}

// What S becomes before the mask.
template <bool SPLIT, int TM, int TN>
__device__ __forceinline__ void finish_scores(float (&S)[TM][TN][4], Powers<TM> &powers, const TileScoring &scoring)
{
#ifdef SOFTCAP
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = scoring.softcap * tanh_approx(scoring.tau * S[i][j][c]);
    powers.factor = 1.0f;
#ifdef ALIBI
    if constexpr (SPLIT) split_penalty(S, powers, scoring);
#endif
#endif
#ifdef ALIBI
    if constexpr (!SPLIT) add_penalty(S, powers, scoring);
#endif
}
