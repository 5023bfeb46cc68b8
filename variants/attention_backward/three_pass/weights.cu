// Standard attention, backward pass, between the products: P and dS from S and dP. Line numbers are those of Dao et al. 2022,
// arXiv 2205.14135, algorithm 3. _tiles/tiles.cuh and lanes.cuh are put before this text; Limits and Dropout, types that the
// plan chooses, are in _features/. The Numba twin is in numba_kernel.py.

constexpr int KEYS_AT_ONCE = 8;

// P = exp(S - lse), which line 1 has from the forward pass, and, line 3, dS = P o (dP - D) with D = rowsum(dO o O), which is
// rowsum(P o dP): load S and dP, write P and dS. Each warp takes a row. If a weight is dropped, P and dP are 0; else dP is
// multiplied by the factor of dropout here, and P's product where nothing has been rounded to 16 bits.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_three_pass_weights(
    const stored *__restrict__ S, const stored *__restrict__ dP, const stored *__restrict__ O,
    const stored *__restrict__ dO, const float *__restrict__ lse, stored *__restrict__ P, stored *__restrict__ dS,
    int q_len, int kv_len, Limits limits, Dropout dropout)
{
    const int row = blockIdx.x * WARPS + warp_index();
    if (row >= q_len) return;
    const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
    const int first_key = run.first(row), seen = run.end(row) - first_key;
    if (seen <= 0) return;
    const size_t stat = head_index() * q_len + row;
    const auto drawn = dropout.of_head(blockIdx.y, blockIdx.z);

    float sum = 0.0f;
    for (int start = 0; start < D; start += 32) {
        const int e = start + lane_index();
        if (e < D) sum += widen(dO[stat * D + e]) * widen(O[stat * D + e]);
    }
    const float delta = lanes_sum<32>(sum), lse_row = lse[stat];

    for (int start = 0; start < seen; start += 32 * KEYS_AT_ONCE) {
        const int j = start + lane_index();
        const size_t at = stat * kv_len + first_key + j;
        stored s[KEYS_AT_ONCE], dp[KEYS_AT_ONCE];
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            s[c] = j + c * 32 < seen ? S[at + c * 32] : stored();
            dp[c] = j + c * 32 < seen ? dP[at + c * 32] : stored();
        }
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            // S <= lse, except for rounding: in 16 bits S may exceed it by more than exp can represent.
            const float below = widen(s[c]) - lse_row;
            const float p = __expf(below > 0.0f ? 0.0f : below);
            if (j + c * 32 < seen) {
                const bool kept = drawn.keeps(row, first_key + j + c * 32);
                narrow(kept ? p : 0.0f, &P[at + c * 32]);
                narrow(p * ((kept ? dropout.factor() * widen(dp[c]) : 0.0f) - delta), &dS[at + c * 32]);
            }
        }
    }
}
