// The softmax warpgroups: one for each tile of 128 rows, a thread for each row. No value crosses lanes. exponentials.cuh,
// tensor_memory.cuh and pipeline.cuh are put before this text.

// Rise of a row's maximum, in powers of two, up to which what is there stays relative to the old one: P is then up to 2^8.
constexpr float THRESHOLD = 8.0f;
// One pair of so many has its powers of two from the cubic, the others from the special function unit.
constexpr int PAIRS_PER_CUBIC = 4;

typedef float Scores[BC];

__device__ __forceinline__ void load_scores(Scores &S, unsigned address)
{
#pragma unroll
    for (int c = 0; c < BC; c += 32) load_columns(S + c, address + c);
    wait_for_loads(S);
}

// tau2 is positive: S takes the sign of tau, or becomes 0.
__device__ __forceinline__ void apply_sign(Scores &S, int sign)
{
#pragma unroll
    for (int i = 0; i < BC; ++i) S[i] *= sign;
}

// S = -inf where the row does not see the key: of the tile it sees the first `seen` keys.
__device__ __forceinline__ void mask(Scores &S, int seen)
{
#pragma unroll
    for (int i = 0; i < BC; ++i)
        if (i >= seen) S[i] = MINUS_INFINITY;
}

__device__ __forceinline__ float largest(const Scores &S)
{
    float most[4] = {S[0], S[1], S[2], S[3]};
#pragma unroll
    for (int i = 4; i < BC; ++i) most[i % 4] = fmaxf(most[i % 4], S[i]);
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
}

// P = 2^(tau2 S - m), rounded to 16 bits -> tensor memory, under way; returns the row's sum of P before rounding.
__device__ __forceinline__ float store_weights(unsigned address, const Scores &S, float tau2, float minus_m)
{
    Pair sums[2] = {};
#pragma unroll
    for (int half = 0; half < BC / 64; ++half) {
        unsigned P[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const float *const s = S + 64 * half + 2 * i;
            const Pair x = multiply_add({s[0], s[1]}, both(tau2), both(minus_m));
            const Pair weights = i % PAIRS_PER_CUBIC == PAIRS_PER_CUBIC - 1 ? exp2_cubic(x) : exp2_of(x);
            P[i] = packed(weights.x, weights.y);
            sums[i % 2] = add(sums[i % 2], weights);
        }
        store_columns(address + 32 * half, P);
    }
    const Pair sum = add(sums[0], sums[1]);
    return sum.x + sum.y;
}

__device__ __forceinline__ void run_softmax(int t, Barriers &barriers, float *__restrict__ lse, const Problem &p, float tau2,
                                            int sign)
{
    const int mine = threadIdx.x % WARPGROUP;
    const unsigned S_rows = barriers.S(t) + lanes_of_warp();
    RowBarriers &rows = barriers.rows[t];
    int step = 0;
    for (int round = 0, index = blockIdx.x; index >= 0; index = barriers.schedule.tile_after(round++)) {
        const RowTile tile = row_tile(index, p);
        const int row = tile.first_row + t * ROWS + mine, end = p.end_key(row);
        const int whole = p.end_key(tile.first_row + t * ROWS) / BC;  // all rows of the tile see these tiles of keys whole
        float m = MINUS_INFINITY, l = 0.0f;
        for (int j = tile.key_tiles - 1; j >= 0; --j, ++step) {
            Scores S;
            rows.S_ready.wait_for(step);
            after_wait();
            load_scores(S, S_rows);
            if (sign != 1) apply_sign(S, sign);
            if (j >= whole) mask(S, end - j * BC);

            // m stays while the maximum rises by no more than the threshold. It is -inf until the row has seen a key.
            const float before = m, maximum = fmaxf(m, tau2 * largest(S));
            if (maximum > m + THRESHOLD) m = maximum;
            const float minus_m = m == MINUS_INFINITY ? 0.0f : -m;
            const float growth = before == m ? 1.0f : exp2_approx(before + minus_m);
            if (j < tile.key_tiles - 1) {
                rows.growth.wait_until_empty(step - 1);
                barriers.growth[t][mine] = growth;
                before_arrival();
                rows.growth.publish();
            }
            const float sum = store_weights(S_rows, S, tau2, minus_m);
            wait_for_stores();
            before_arrival();
            rows.P_ready.arrive();
            l = growth * l + sum;
        }
        rows.growth.wait_until_empty(step - 1);
        barriers.growth[t][mine] = l;
        rows.growth.publish();
        if (row < p.q_len) lse[(size_t)tile.head * p.q_len + row] = m * LN_2 + logf(l);
    }
}
