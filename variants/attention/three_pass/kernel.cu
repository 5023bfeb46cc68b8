// Standard attention: Dao et al. 2022, arXiv 2205.14135, algorithm 0, in three kernels with S and P in global memory.
// The softmax is the safe one, Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 2.
// _dropout/dropout.cuh and _tiles/tiles.cuh are put before this text. The Numba twin is numba_kernel.py.
//
// A row of S and of P is the keys that it sees: what lies ahead of them or behind is neither written nor read.

constexpr int WARPS = THREADS / 32;
constexpr int ROWS_PER_WARP = P_ROWS / WARPS;  // of a tile of S or P
constexpr int COLUMNS_PER_LANE = (BC + 31) / 32;
__device__ __forceinline__ int warp_index() { return thread_index() / 32; }
__device__ __forceinline__ int lane_index() { return thread_index() % 32; }

#ifndef SPANS
// Rows that see a key, as far as there are rows: first_seeing up to, not including, end_seeing; none beyond the last key.
__device__ __forceinline__ int first_seeing(int key, int q_len, int kv_len, int after)
{
    return max(key + q_len - kv_len - after, 0);
}
__device__ __forceinline__ int end_seeing(int key, int q_len, int kv_len, int before)
{
    return key < kv_len ? key + q_len - kv_len + before + 1 : 0;
}
#else
// The same of those that are kept: the first that ends behind the key, and the first that begins behind it.
__device__ __forceinline__ int first_beyond(int key, Limit limit)
{
    int low = 0, high = ROWS_KEPT;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (limit.of[middle] > key) high = middle;
        else low = middle + 1;
    }
    return limit.first_row + low;
}
__device__ __forceinline__ int first_seeing(int key, int, int, Limit after) { return first_beyond(key, after); }
__device__ __forceinline__ int end_seeing(int key, int, int kv_len, Limit before)
{
    return key < kv_len ? first_beyond(key, before) : 0;
}
#endif

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

// Algorithm 0, line 1: load Q, K by blocks, compute S = tau Q K^T, write S.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_scores(
    const stored *__restrict__ Q, const stored *__restrict__ K, stored *__restrict__ S, int q_len, int kv_len,
    int group, float tau, LIMITS SCORE_PARAMETERS)
{
    TILE Q_tile[BR * LD];
    TILE K_tile[BC * LD];
    TILE S_tile[P_ROWS * LP];

    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;
    load_tile<BR>(Q_tile, Q + first_stat * D, rows);
#ifdef ALIBI
    const float slope = slopes[blockIdx.y];
#endif

    // All K_j with a key that some row sees: from the first row's first to the last row's last.
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int end_by_last = end_seen(first_row + rows - 1, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        // Load K_j, once nobody reads K_(j-1) any more.
        __syncthreads();
        load_tile<BC>(K_tile, K_head + (size_t)first_key * D, min(BC, kv_len - first_key));
        __syncthreads();

        float S_acc[TM][TN];
        multiply_Q_Kt(S_acc, Q_tile, K_tile);
        const Scoring score = SCORING(slope, first_row + kv_len - q_len - first_key);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                S_tile[row_of(i) * LP + key_of(j)] = score(S_acc[i][j], key_of(j) - row_of(i));
            }

        // A warp writes a row at a time: 32 consecutive elements.
        __syncthreads();
        for (int start = 0; start < BC; start += 32) {
            const int c = start + lane_index();
            const int first = first_seeing(first_key + c, q_len, kv_len, after) - first_row;
            const int end = c < BC ? min(end_seeing(first_key + c, q_len, kv_len, before) - first_row, rows) : 0;
            stored *S_row = S + (first_stat + warp_index()) * kv_len + first_key + c;
            float s[ROWS_PER_WARP];
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i) s[i] = c < BC ? S_tile[(warp_index() + WARPS * i) * LP + c] : 0.0f;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, S_row += WARPS * (size_t)kv_len) {
                const int r = warp_index() + WARPS * i;
                if (first <= r && r < end) narrow(s[i], S_row);
            }
        }
    }
}

// Algorithm 0, line 2: read S, compute P = softmax(S), write P. A warp takes a row; numbers are those of algorithm 2.
extern "C" __global__ __launch_bounds__(THREADS, sizeof(stored) == 4 ? 4 : 7) void three_pass_softmax(
    const stored *__restrict__ S, stored *__restrict__ P, int q_len, int kv_len, LIMITS SINKS_PARAMETER
        DRAW_PARAMETERS)
{
    // As much of the row as fits stays on chip; only what lies beyond is read from memory again.
    __shared__ stored S_on_chip[WARPS][ON_CHIP];

    const int row = blockIdx.x * WARPS + warp_index();
    if (row >= q_len) return;
    LIMITS_IN_MEMORY
    const int first_key = first_seen(row, q_len, kv_len, before);
    const int seen = end_seen(row, q_len, kv_len, after) - first_key;
    const size_t first = (head_index() * q_len + row) * kv_len + first_key;
    const stored *S_row = S + first;
    stored *S_kept = S_on_chip[warp_index()];

    // Lines 1 to 4: m = max_j S_j. A sink is one of them, which is not written as P.
    const float sink = SINK(blockIdx.y);
    stored s[KEYS_AT_ONCE];
    float m = sink;
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
    float l = 0.0f;
#ifdef SINKS
    if (lane_index() == 0) l = exp_below(sink, m);
#endif
    for (int start = 0; start < seen; start += STEP_KEYS) {
        load_scores_again(s, S_kept, S_row, start, seen);
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) l += exp_below(widen(s[c]), m);
    }
    const float inverse = 1.0f / lanes_sum<32>(l);

    // Lines 9 to 11: P_j = exp(S_j - m) / l, 0 where it drops out.
    for (int start = 0; start < seen; start += STEP_KEYS) {
        load_scores_again(s, S_kept, S_row, start, seen);
        const int j = start + lane_index();
        stored *P_lane = P + first + j;
#pragma unroll
        for (int c = 0; c < KEYS_AT_ONCE; ++c) {
            const float p = exp_below(widen(s[c]), m) * inverse;
#ifdef DROPOUT
            const bool kept = DROPOUT_OF(blockIdx.y, blockIdx.z).keeps(row, first_key + j + c * 32);
#endif
            if (j + c * 32 < seen) narrow(DROPPED(p, kept, 0), &P_lane[c * 32]);
        }
    }
}

// Algorithm 0, line 3: load P and V by blocks, compute O = P V, write O. What dropout leaves grows here, where no 16 bits
// are between.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void three_pass_output(
    const stored *__restrict__ P, const stored *__restrict__ V, stored *__restrict__ O, int q_len, int kv_len,
    int group, LIMITS FACTOR_PARAMETER)
{
    TILE V_tile[BC * LD];
    TILE P_tile[P_ROWS * LP];
    TILE O_tile[BR * LD];

    const int first_row = blockIdx.x * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const stored *V_head = V + kv_head_index(group) * kv_len * D;

    float O_acc[TM][TD];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;

    const int last_row = first_row + rows - 1;
    KEEP_LIMITS(first_row, rows)
    const int first_by_first = first_seen(first_row, q_len, kv_len, before);
    const int first_by_last = first_seen(last_row, q_len, kv_len, before);
    const int end_by_first = end_seen(first_row, q_len, kv_len, after);
    const int end_by_last = end_seen(last_row, q_len, kv_len, after);
    for (int first_key = first_by_first / BC * BC; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);
        int first[TM], end[TM];
        span_in_tile(first, end, first_row, first_key, keys, q_len, kv_len, before, after);

        // Load V_j and the tile of P, a row per warp, once nobody reads the last ones any more. Zeros where no row is.
        stored p[COLUMNS_PER_LANE][ROWS_PER_WARP];
#pragma unroll
        for (int j = 0; j < COLUMNS_PER_LANE; ++j) {
            const int c = lane_index() + 32 * j;
            const int first_r = first_seeing(first_key + c, q_len, kv_len, after) - first_row;
            const int end_r = c < BC ? min(end_seeing(first_key + c, q_len, kv_len, before) - first_row, rows) : 0;
            const stored *P_row = P + (first_stat + warp_index()) * kv_len + first_key + c;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i, P_row += WARPS * (size_t)kv_len) {
                const int r = warp_index() + WARPS * i;
                p[j][i] = first_r <= r && r < end_r ? *P_row : stored();
            }
        }
        __syncthreads();
        load_tile<BC>(V_tile, V_head + (size_t)first_key * D, keys);
#pragma unroll
        for (int j = 0; j < COLUMNS_PER_LANE; ++j) {
            const int c = lane_index() + 32 * j;
#pragma unroll
            for (int i = 0; i < ROWS_PER_WARP; ++i) {
                if (c < BC) P_tile[(warp_index() + WARPS * i) * LP + c] = widen(p[j][i]);
            }
        }
        __syncthreads();

        add_P_V(O_acc, P_tile, V_tile, first_by_last - first_key, end_by_first - first_key, keys, first, end);
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) O_tile[row_of(i) * LD + element_of(j)] = KEPT_FACTOR * O_acc[i][j];
        }
    }
    __syncthreads();
    store_tile(O + first_stat * D, O_tile, rows);
}
