// Line 2 of standard attention (Dao et al. 2022, arXiv 2205.14135, algorithm 0): the safe softmax of Milakov and Gimelshein
// 2018, arXiv 1805.02867, algorithm 2, whose line numbers these are. _tiles/tiles.cuh and lanes.cuh are put before this text;
// Limits, Sink and Dropout, types that the plan chooses, are in _features/. The Numba twin is numba_softmax.py.
//
// Compile-time parameters: ON_CHIP (elements of a row of S that stay in shared memory).

// S_j for the j of a step of the softmax, KEYS_AT_ONCE per lane, all under way before the first is waited for; -inf beyond
// what the row sees, which changes neither maximum nor sum.
constexpr int KEYS_AT_ONCE = 16;
constexpr int STEP_KEYS = 32 * KEYS_AT_ONCE;
__device__ __forceinline__ void load_scores(stored (&s)[KEYS_AT_ONCE], const stored *S_row, int start, int seen)
{
    const int j = start + lane_index();
    const stored *from = S_row + j;
    stored unseen;
    narrow(MINUS_INFINITY, &unseen);
#pragma unroll
    for (int c = 0; c < KEYS_AT_ONCE; ++c) s[c] = j + c * 32 < seen ? from[c * 32] : unseen;
}

// The same once more: from the chip as far as the row is kept there.
__device__ __forceinline__ void load_scores_again(stored (&s)[KEYS_AT_ONCE], const stored *S_kept, const stored *S_row,
                                                  int start, int seen)
{
    if (start >= ON_CHIP) return load_scores(s, S_row, start, seen);
#pragma unroll
    for (int c = 0; c < KEYS_AT_ONCE; ++c) s[c] = S_kept[start + c * 32 + lane_index()];
}

// Algorithm 0, line 2: read S, compute P = softmax(S), write P. Each warp takes a row.
extern "C" __global__ __launch_bounds__(THREADS, sizeof(stored) == 4 ? 4 : 7) void three_pass_softmax(
    const stored *__restrict__ S, stored *__restrict__ P, int q_len, int kv_len, Limits limits, Sink sink, Dropout dropout)
{
    // As much of the row as fits stays on chip; only the rest is read from memory again.
    __shared__ stored S_on_chip[WARPS][ON_CHIP];

    const int row = blockIdx.x * WARPS + warp_index();
    if (row >= q_len) return;
    const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
    const int first_key = run.first(row), seen = run.end(row) - first_key;
    const size_t first = (head_index() * q_len + row) * kv_len + first_key;
    const stored *S_row = S + first;
    stored *S_kept = S_on_chip[warp_index()];

    // Lines 1 to 4: m = max_j S_j. A sink is one of them, which is not written as P.
    const float sink_logit = sink.logit(blockIdx.y);
    stored s[KEYS_AT_ONCE];
    float m = sink_logit;
    for (int start = 0; start < seen; start += STEP_KEYS) {
        load_scores(s, S_row, start, seen);
        if (start < ON_CHIP) {
#pragma unroll
            for (int c = 0; c < KEYS_AT_ONCE; ++c) S_kept[start + c * 32 + lane_index()] = s[c];
        }
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) m = fmaxf(m, widen(s[c]));
    }
    m = lanes_max<32>(m);

    // Lines 5 to 8: l = sum_j exp(S_j - m).
    float l = lane_index() == 0 ? Sink::WEIGHT * exp_below(sink_logit, m) : 0.0f;
    for (int start = 0; start < seen; start += STEP_KEYS) {
        load_scores_again(s, S_kept, S_row, start, seen);
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) l += exp_below(widen(s[c]), m);
    }
    const float inverse = 1.0f / lanes_sum<32>(l);

    // Lines 9 to 11: P_j = exp(S_j - m) / l, 0 where it drops out.
    const auto drawn = dropout.of_head(blockIdx.y, blockIdx.z);
    for (int start = 0; start < seen; start += STEP_KEYS) {
        load_scores_again(s, S_kept, S_row, start, seen);
        const int j = start + lane_index();
        stored *P_lane = P + first + j;
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            const float p = exp_below(widen(s[c]), m) * inverse;
            const bool kept = drawn.keeps(row, first_key + j + c * 32);
            if (j + c * 32 < seen) narrow(kept ? p : 0.0f, &P_lane[c * 32]);
        }
    }
}
