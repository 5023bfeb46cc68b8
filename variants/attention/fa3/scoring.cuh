// What S becomes before the mask, how powers of two are made of it, and sinks. The cap and ALiBi of _features/scores.cuh, whose
// arguments have a factor of log2 e, and softmax.cuh are put before this text. The Numba twin is numba_scoring.py.
//
//     const auto powers = scoring.apply<AROUND>(S, first_key);     // of a tile of keys, once S is there

// tanh(x), to a relative error of 2^-11 (PTX ISA: tanh.approx.f32).
__device__ __forceinline__ float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// As Powers, of `factor` S + `of_row`, which differs between the lanes of a row, too, by their columns.
struct PowersOfRows {
    float factor;
    PerRow of_row;
    __device__ __forceinline__ float maximum(float x, int h) const { return quad_max(fmaf(factor, x, of_row[h])); }
    __device__ __forceinline__ float relative_to(float minus_m, int h) const { return of_row[h] + minus_m; }
};

// Where a tile's keys lie: all on the rows' places or before, all on them or after, or anywhere. A row's place is the key that
// it lies on.
enum Side { BEFORE, AFTER, AROUND };
template <Side IT_IS> struct On {
    enum { SIDE = IT_IS };
};

// Without terms: powers of two of tau S.
template <class Terms> struct Scoring {
    enum { HAS_TERMS = false, HAS_SIDES = false };
    float tau;
    template <Side> __device__ __forceinline__ Powers apply(Scores &, int) const { return {tau}; }

    static __device__ __forceinline__ int end_before(const RowTile &, const Problem &) { return 0; }
    static __device__ __forceinline__ int first_after(const RowTile &, const Problem &) { return 0; }

    // Of the lane's rows, which are `row` in their heads: those numbered `mine` and mine + 8 of the warpgroup's.
    __device__ __forceinline__ static Scoring of_rows(const Terms &, float tau, const int (&)[2], int, const RowTile &,
                                                      const Problem &)
    {
        return {tau};
    }
};

// Powers of two of tau S, or with CAPS of cap tanh(tau S), less the penalty of ALiBi with SLOPES.
template <class Term, class... Others> struct Scoring<Terms<Term, Others...>> {
    typedef Terms<Term, Others...> All;
    static constexpr bool CAPS = has_term<Softcap, All>, SLOPES = has_term<Alibi, All>;
    enum { HAS_TERMS = true, HAS_SIDES = SLOPES };
    static_assert(term_count<All> == CAPS + SLOPES, "a term that is not known here");
    static constexpr int LAST = 8 * (TN - 1) + 1;  // of a lane's columns, counted from its first

    float tau, cap;
    PerRow per_key;  // of S, of which powers of two are `factor` S: by how much it falls per key of distance
    int place[2];    // of the lane's rows, less the lane's first column

    __device__ __forceinline__ static Scoring of_rows(const All &terms, float tau, const int (&row)[2], int mine,
                                                      const RowTile &tile, const Problem &p)
    {
        Scoring scoring = {tau};
        if constexpr (CAPS) scoring.cap = find_term<Softcap>(terms).cap;
        if constexpr (SLOPES) {
            const float unit = LOG2_E / (CAPS ? scoring.cap : tau);
            const int diagonal = tile.own.kv_len - tile.own.q_len;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int head = tile.head(mine + 8 * h, p);
                scoring.per_key[h] = unit * find_term<Alibi>(terms).of_head(head, tile.own.q_len, tile.own.kv_len).slope;
                scoring.place[h] = row[h] + diagonal - (int)threadIdx.x % 4 * 2;
            }
        }
        return scoring;
    }

    // Before all of these tiles, and from these on, tiles of keys are on one side of all rows.
    static __device__ __forceinline__ int end_before(const RowTile &tile, const Problem &p)
    {
        return max(tile.rows.first_row + tile.own.kv_len - tile.own.q_len + 1, 0) / BC;
    }
    static __device__ __forceinline__ int first_after(const RowTile &tile, const Problem &p)
    {
        return (max(tile.rows.last_row() + tile.own.kv_len - tile.own.q_len, 0) + BC - 1) / BC;
    }

    template <Side SIDE> __device__ __forceinline__ auto apply(Scores &S, int first_key) const
    {
        if constexpr (CAPS) {
#pragma unroll
            for (int e = 0; e < BC / 2; ++e) S[e] = tanh_approx(tau * S[e]);
        }
        const float factor = CAPS ? cap : tau;
        if constexpr (SLOPES) {
            return subtract_penalty<SIDE>(S, first_key, factor);
        } else {
            return Powers{factor};
        }
    }

    // On one side, a penalty is that of the tile's nearest key, a row's, and that from there on, a column's: what is added to S
    // is never more than the whole penalty.
    template <Side SIDE>
    __device__ __forceinline__ PowersOfRows subtract_penalty(Scores &S, int first_key, float factor) const
    {
        PowersOfRows powers = {factor, {0.0f, 0.0f}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int from_first = place[h] - first_key;  // of the lane's columns
            const float nearest = (float)(SIDE == BEFORE ? from_first - LAST : -from_first);
            if (SIDE != AROUND) powers.of_row[h] = -factor * (per_key[h] * nearest);
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const float column = (float)(8 * j + c), from_nearest = SIDE == BEFORE ? LAST - column : column;
                    const float distance = SIDE == AROUND ? fabsf((float)from_first - column) : from_nearest;
                    float &s = S[4 * j + 2 * h + c];
                    s = fmaf(-per_key[h], distance, s);
                }
        }
        return powers;
    }
};

// A sink is a key more, without a value: m, l = exp(m_old - m) l + exp(sink - m). O_i is to be multiplied by what it returns,
// exp(m_old - m). It comes last, since P is rounded relative to the largest score.
__device__ __forceinline__ float add_sink(float &m, float &l, float logit)
{
    const float sink = LOG2_E * logit, m_old = m;
    m = fmaxf(m, sink);
    const float minus_m = m == MINUS_INFINITY ? 0.0f : -m, correction = exp2_approx(m_old + minus_m);
    l = correction * l + exp2_approx(sink + minus_m);
    return correction;
}

// tau2 is positive: the warpgroup's rows of Q_i take the sign of tau, or become 0.
__device__ __forceinline__ void apply_sign(unsigned rows, int consumer, int sign)
{
    unsigned char *const Q_rows = shared_pointer(rows);
    for (int e = threadIdx.x % WARPGROUP; e < BOXES * 64 * ROW_BYTES / 4; e += WARPGROUP) {
        constexpr int WORDS = 64 * ROW_BYTES / 4;
        unsigned &both = reinterpret_cast<unsigned *>(Q_rows + e / WORDS * BR * ROW_BYTES)[e % WORDS];
        both = sign < 0 ? both ^ 0x80008000 : packed(0.0f * unpacked(both).x, 0.0f * unpacked(both).y);
    }
    publish_to_async();
    sync_threads(OWN + consumer, WARPGROUP);
}
