// What S becomes before the mask, in the layout of a product on tensor cores: TM tiles of 16 rows, TN of 8 keys.
// _scores/scores.cuh is put before this text. The Numba twin is numba_scoring.py.

// What S becomes before the mask, in powers of two, and what it is still to be multiplied by. tau2, which is positive, has
// log2 e in it, or, where tanh comes next, is divided by the cap; that has log2 e in it then, as slopes have.
template <int TM, int TN>
__device__ __forceinline__ float finish_scores(float (&S)[TM][TN][4], const Scoring &scoring)
{
#ifdef SOFTCAP
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = scoring.softcap * tanh_approx(scoring.tau * S[i][j][c]);
    const float unit = 1.0f;
#else
    const float unit = scoring.tau;
#endif
#ifdef ALIBI
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            // Counted from the lane's first column.
            const int lane = (int)threadIdx.x % 32, row = 16 * i + 8 * h + lane / 4;
            const float place = (float)(scoring.place + row - lane % 4 * 2);
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float &s = S[i][j][2 * h + c];
                    s = fmaf(unit, s, -scoring.slope * fabsf(place - (float)(8 * j + c)));
                }
        }
    return 1.0f;
#else
    return unit;
#endif
}
