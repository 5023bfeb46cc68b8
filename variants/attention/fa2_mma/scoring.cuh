// What S becomes before the mask, in the layout of a product on tensor cores: TM tiles of 16 rows, TN of 8 keys.
// _scores/scores.cuh is put before this text. The Numba twin is numba_scoring.py.

#ifdef ALIBI
#define PER_KEY_ARGUMENT(per_key) , per_key
#else
#define PER_KEY_ARGUMENT(per_key)
#endif

struct TileScoring : Scoring {
#ifdef ALIBI
    float per_key;  // see penalty_per_key
#endif
};

// What makes powers of two of S as it is left: `factor` S + `of_row`.
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
// By how much S rises from key to key, where the penalty may be split into a row's share and a column's; else 0: then it
// is worked out for each score. What is split is rounded relative to half a tile of keys, so the slope is not to be large.
__device__ __forceinline__ float penalty_per_key(float slope, float tau2)
{
#ifdef SOFTCAP
    const float per_key = slope;
#else
    const float per_key = slope / tau2;
#endif
    const float size = fabsf(per_key);
    return fabsf(slope) <= 2.0f && size >= 0x1p-64f && size <= 0x1p+64f ? per_key : 0.0f;
}
#endif

// What S becomes before the mask, and what is left to do. tau2, which is positive, has log2 e in it, or, where tanh comes
// next, is divided by the cap; that has log2 e in it then, as slopes have.
template <int TM, int TN>
__device__ __forceinline__ Powers<TM> finish_scores(float (&S)[TM][TN][4], const TileScoring &scoring)
{
    Powers<TM> left;
#ifdef SOFTCAP
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = scoring.softcap * tanh_approx(scoring.tau * S[i][j][c]);
    left.factor = 1.0f;
#else
    left.factor = scoring.tau;
#endif
#ifdef ALIBI
    // Counted from the lane's first column.
    const int lane = (int)threadIdx.x % 32, place = scoring.place + lane / 4 - lane % 4 * 2;
    // All keys come before all rows' places, or behind them: then distances fall from key to key, or rise.
    const bool before = scoring.place >= 8 * TN, behind = scoring.place + 16 * TM <= 0;
    if (scoring.per_key != 0.0f && (before || behind)) {
        constexpr int MIDDLE = 4 * TN;
        const float per_key = before ? scoring.per_key : -scoring.per_key;
        const float slope = before ? scoring.slope : -scoring.slope;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                left.of_row[i][h] = -slope * (float)(place + 16 * i + 8 * h - MIDDLE);
#pragma unroll
                for (int j = 0; j < TN; ++j)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        float &s = S[i][j][2 * h + c];
                        s = fmaf(per_key, (float)(8 * j + c - MIDDLE), s);
                    }
            }
        return left;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float row_place = (float)(place + 16 * i + 8 * h);
            left.of_row[i][h] = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &s = S[i][j][2 * h + c];
                    s = fmaf(left.factor, s, -scoring.slope * fabsf(row_place - (float)(8 * j + c)));
                }
        }
    left.factor = 1.0f;
#endif
    return left;
}
