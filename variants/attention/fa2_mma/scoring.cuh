// What S becomes before the mask, in the layout of a product on tensor cores, and how powers of two are made of it.
// _features/scores.cuh, _mma/mma.cuh and registers.cuh are put before this text. The Numba twin is numba_scoring.py.
//
//     Powers powers = scoring.start<SPLIT>(S);     // before the product Q K^T is added to S
//     scoring.finish<SPLIT>(S, powers);            // after that
//
// A cap and ALiBi, which are known here, are computed in powers of two: tau, the cap and slopes have a factor of log2 e. All
// other terms, and these two beside others, are objects that map each score; their results are multiplied by log2 e at last.

// tanh(x), to a relative error of 2^-11 (PTX ISA: tanh.approx.f32).
__device__ __forceinline__ float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What makes powers of two of S, as it is left: `factor` S + `of_row`. The latter differs between lanes, too, by their
// columns, and is 0 without ALiBi.
struct Powers {
    float factor;
    float of_row[TM][2];
};

// Whether there are no other terms than those two.
template <class Scores>
constexpr bool known_terms = term_count<Scores> == has_term<Softcap, Scores> + has_term<Alibi, Scores>;

template <class Scores, class OfHead> struct Scoring {
    static constexpr bool KNOWN = known_terms<Scores>;
    static constexpr bool CAPS = KNOWN && has_term<Softcap, Scores>, SLOPES = KNOWN && has_term<Alibi, Scores>;

    float tau;
    float cap;             // with CAPS
    float slope, per_key;  // with SLOPES, see penalty_per_key
    OfHead score;          // unless all terms are known
    int last_key;          // of the sequence, which keys after it repeat
    int row, key;          // the warp's first row, and the tile's first key
    int place;             // the key that the warp's first row lies on, counted from the tile's first key

    // m of a row whose largest S, of the lane's, is x.
    __device__ __forceinline__ static float maximum(const Powers &powers, float x, int i, int h)
    {
        if constexpr (SLOPES) return quad_max(fmaf(powers.factor, x, powers.of_row[i][h]));
        return powers.factor * quad_max(x);
    }

    // What is added to `factor` S for powers of two relative to m, of which `minus_m` is the negative.
    __device__ __forceinline__ static float relative_to(const Powers &powers, float minus_m, int i, int h)
    {
        if constexpr (SLOPES) return powers.of_row[i][h] + minus_m;
        return minus_m;
    }

    // Of a tile's keys, the first of which is first_key.
    __device__ __forceinline__ Scoring of_tile(int warp_row, int first_key, int place) const
    {
        Scoring scoring = *this;
        scoring.row = warp_row, scoring.key = first_key, scoring.place = place;
        return scoring;
    }

    // Of the tile's keys from that one on.
    __device__ __forceinline__ Scoring from_key(int skipped) const { return of_tile(row, key + skipped, place - skipped); }

    // Whether the penalty of all keys can be SPLIT: all of them are on the places of all rows or before, or on them or after.
    __device__ __forceinline__ bool splits() const
    {
        if constexpr (SLOPES) return per_key != 0.0f && (is_before(TN) || place + 16 * TM - 1 <= 0);
        return true;
    }
    __device__ __forceinline__ bool is_before(int tiles) const { return place >= 8 * tiles - 1; }

    template <bool SPLIT, int TILES> __device__ __forceinline__ Powers start(float (&S)[TM][TILES][4]) const
    {
        Powers powers;
        powers.factor = tau;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int c = 0; c < 4; ++c) S[i][j][c] = 0.0f;
        if constexpr (SLOPES && SPLIT && !CAPS) split_penalty(S, powers);
        return powers;
    }

    template <bool SPLIT, int TILES> __device__ __forceinline__ void finish(float (&S)[TM][TILES][4], Powers &powers) const
    {
        if constexpr (!KNOWN) {
            map_each(S, [&](float s, int i, int j, int c) {
                const int column = 8 * j + (int)threadIdx.x % 4 * 2 + c % 2;
                return score(tau * s, row_from(row, i, c / 2), min(key + column, last_key));
            });
            powers.factor = LOG2_E;
        } else {
            if constexpr (CAPS) {
                map_each(S, [&](float s, int, int, int) { return cap * tanh_approx(tau * s); });
                powers.factor = 1.0f;
            }
            if constexpr (SLOPES && SPLIT && CAPS) split_penalty(S, powers);
            if constexpr (SLOPES && !SPLIT) add_penalty(S, powers);
        }
    }

    // The penalty is a row's, to the tile's middle, and a column's, from there on: what is added to S.
    template <int TILES> __device__ __forceinline__ void split_penalty(float (&S)[TM][TILES][4], Powers &powers) const
    {
        const bool before = is_before(TILES);
        const float slope = before ? this->slope : -this->slope, per_key = before ? this->per_key : -this->per_key;
        const int lane = (int)threadIdx.x % 32;
        const float place = (float)(this->place + lane / 4 - lane % 4 * 2 - 4 * TILES);  // from the lane's first column
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                powers.of_row[i][h] = -slope * (place + (float)(16 * i + 8 * h));
#pragma unroll
                for (int j = 0; j < TILES; ++j)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        float &s = S[i][j][2 * h + c];
                        s = fmaf(per_key, (float)(8 * j + c - 4 * TILES), s);
                    }
            }
    }

    // The penalty is each score's own.
    template <int TILES> __device__ __forceinline__ void add_penalty(float (&S)[TM][TILES][4], Powers &powers) const
    {
        const int lane = (int)threadIdx.x % 32, place = this->place + lane / 4 - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float row_place = (float)(place + 16 * i + 8 * h);
                powers.of_row[i][h] = 0.0f;
#pragma unroll
                for (int j = 0; j < TILES; ++j)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        float &s = S[i][j][2 * h + c];
                        s = fmaf(powers.factor, s, -slope * fabsf(row_place - (float)(8 * j + c)));
                    }
            }
        powers.factor = 1.0f;
    }

    // S[i][j][c] becomes map(S[i][j][c], i, j, c).
    template <int TILES, class Map> __device__ __forceinline__ static void map_each(float (&S)[TM][TILES][4], const Map &map)
    {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int c = 0; c < 4; ++c) S[i][j][c] = map(S[i][j][c], i, j, c);
    }
};

// By how much S, of which powers of two are `unit` S, falls from key to key away from a row's place. 0 where the penalty is
// not to be split into a row's share and a column's: what is split is rounded relative to half a tile of keys.
__device__ __forceinline__ float penalty_per_key(float slope, float unit)
{
    const float per_key = slope / unit, size = fabsf(per_key);
    return fabsf(slope) <= 2.0f && size >= 0x1p-64f && size <= 0x1p+64f ? per_key : 0.0f;
}

template <class Scores>
__device__ __forceinline__ auto scoring_of_head(const Scores &scores, float tau, int head, int q_len, int kv_len)
{
    const auto score = [&]() {
        if constexpr (known_terms<Scores>) {
            return Terms<>();
        } else {
            return scores.of_head(head, q_len, kv_len);
        }
    };
    Scoring<Scores, decltype(score())> scoring = {tau, 0.0f, 0.0f, 0.0f, score(), kv_len - 1};
    if constexpr (scoring.CAPS) scoring.cap = find_term<Softcap>(scores).cap;
    if constexpr (scoring.SLOPES) {
        scoring.slope = LOG2_E * find_term<Alibi>(scores).of_head(head, q_len, kv_len).slope;
        scoring.per_key = penalty_per_key(scoring.slope, scoring.CAPS ? 1.0f : tau);
    }
    return scoring;
}
