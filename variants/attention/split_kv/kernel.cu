// Flash-Decoding: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"; these are its steps.
// _scores/scores.cuh, _mma/mma.cuh, splits.cuh and combine.cuh are put before this text.
//
// Compile-time parameters: D (elements per row), SPLIT (keys per split), WARPS (per block of the first kernel), SLOTS (tiles
// of K or V that a warp has room for), BLOCKS_PER_SM (at least).
//
// A block takes one split of the keys of one key/value head, and 16 rows of the queries that go with it. The rows of
// all heads that share K and V lie one after the other in Q and in O, so they are counted through: row r of the group
// is query r % q_len. Each warp goes its own way over every WARPS-th tile of keys of the split, with an O, l and m of
// its own and its own ring of slots in shared memory. It waits for its own copies, and for nobody else until the end.

// Of a mask that is no band, a block keeps what its rows see: `rows` of a group's, of which the first is that query of its
// head; those of the next head begin anew. A block of the other kernel keeps that of its one row.
#ifdef SPANS
#define KEEP_LIMITS_OF_QUERIES(first_query, rows)                                                   \
    __shared__ int first_kept[BR], end_kept[BR];                                                    \
    if (threadIdx.x < BR) {                                                                         \
        const size_t at = (size_t)blockIdx.z * q_len + (first_query + threadIdx.x) % q_len;         \
        first_kept[threadIdx.x] = threadIdx.x < rows ? first_keys[at] : 0;                          \
        end_kept[threadIdx.x] = threadIdx.x < rows ? end_keys[at] : 0;                              \
    }                                                                                               \
    __syncthreads();                                                                                \
    const Limit before = {first_kept, first_query}, after = {end_kept, first_query};
#define LIMITS_OF_ROW , int heads
#define KEEP_LIMITS_OF_ROW(query)                                                                   \
    __shared__ int kept[2];                                                                         \
    if (threadIdx.x == 0) {                                                                         \
        const size_t sequence = blockIdx.x / ((unsigned)heads * (unsigned)q_len);                   \
        kept[0] = first_keys[sequence * q_len + query];                                             \
        kept[1] = end_keys[sequence * q_len + query];                                               \
    }                                                                                               \
    __syncthreads();                                                                                \
    const Limit before = {&kept[0], query}, after = {&kept[1], query};
#else
#define KEEP_LIMITS_OF_QUERIES(first_query, rows)
#define LIMITS_OF_ROW
#define KEEP_LIMITS_OF_ROW(query)
#endif

// Step 2: attention of each split on its own. O is not divided by l yet.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void split_kv(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    float *__restrict__ O_split, float *__restrict__ l_split, float *__restrict__ m_split, int q_len, int kv_len,
    int group, float tau, LIMITS SCORE_PARAMETERS)
{
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;

    // Step 1: this block's rows, split and key/value head. Blocks with the same keys are neighbours, and then those with the
    // same split of another head: what is read at once lies in different parts of memory.
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR, kv_heads = gridDim.x / row_tiles;
    const int first_row = blockIdx.x % row_tiles * BR, own_head = blockIdx.x / row_tiles, split = blockIdx.y;
    const int rows = min(BR, group_rows - first_row);
    const size_t kv_head = (size_t)blockIdx.z * kv_heads + own_head;
    const size_t first_stat = kv_head * group_rows + first_row;
    const stored *const K_head = K + kv_head * kv_len * D;
    const stored *const V_head = V + kv_head * kv_len * D;

    // A tile in which the rows of two heads meet has the last queries of one, up to the last of all, and the first of the
    // other: what they see are two runs of keys, low and high, and there may be keys in between. Else both are the same.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= q_len;
    KEEP_LIMITS_OF_QUERIES(first_query, rows)
    const int low_first = first_seen(heads_meet ? 0 : first_query, q_len, kv_len, before);
    const int low_end = end_seen(heads_meet ? min(last_query - q_len, q_len - 1) : last_query, q_len, kv_len, after);
    const int high_first = first_seen(first_query, q_len, kv_len, before);
    const int high_end = end_seen(min(last_query, q_len - 1), q_len, kv_len, after);

    // The keys of the split from the first to the last that a row sees, and whether none of so many from `key` on is.
    const int split_first = split * SPLIT, end = min(split_first + SPLIT, high_end);
    const int first = max(split_first, low_end > 0 ? low_first : high_first);
    const auto nobody_sees = [&](int key, int keys) { return key >= low_end && key + keys <= high_first; };
    if (first >= end || nobody_sees(split_first, SPLIT)) return;  // nobody will ask for it

    // A warp's tiles of which a row sees a key. Which warp has which does not depend on the other rows here.
    const auto next_seen = [&](int key) {
        while (key < end && (key + BC <= first || nobody_sees(key, BC))) key += WARPS * BC;
        return key;
    };
    const int first_key = next_seen(split_first + warp * BC);
    const int from_for_all = first_seen(min(last_query, q_len - 1), q_len, kv_len, before);
    const int to_for_all = end_seen(heads_meet ? 0 : first_query, q_len, kv_len, after);

    if constexpr (D % 16 != 0) {
        // Rows are not copied as far as they are multiplied.
        for (int i = t; i < (Q_TILE + SLOT_BYTES) / 16; i += THREADS) reinterpret_cast<uint4 *>(shared)[i] = uint4();
        __syncthreads();
    }

    // Q, and then K and V of one tile after the other, SLOTS - 1 copies ahead of where they are read.
    const int ring = warp * RING_BYTES;
    int copied = 0, copied_key = first_key;
    auto copy_next = [&]() {
        if (copied_key < end) {
            const stored *const source = (copied % 2 == 0 ? K_head : V_head) + (size_t)copied_key * D;
            copy_tile<32>(ring + copied % SLOTS * SLOT_BYTES, source, first - copied_key, end - copied_key, lane);
        }
        commit_copies();
        if (copied++ % 2 == 1) copied_key = next_seen(copied_key + WARPS * BC);
    };
    copy_tile<THREADS>(Q_TILE, Q + first_stat * D, 0, rows, t);
    commit_copies();
#pragma unroll 1
    for (int i = 0; i < SLOTS - 1; ++i) copy_next();
    wait_for_copies<SLOTS - 1>();
    __syncthreads();  // Q is everybody's

    int slot = ring;
    auto wait_for_slot = [&]() {
        wait_for_copies<SLOTS - 2>();
        __syncwarp();
    };
    auto next_slot = [&]() { slot = slot + SLOT_BYTES == ring + RING_BYTES ? ring : slot + SLOT_BYTES; };

    // The four matrices of a 16 x 16 tile in the order of rows, for Q and for V (transposed on its way), or of columns.
    const unsigned by_row = shared_address(shared) + swizzled<ROW_BYTES>(lane % 16, lane / 16);
    const unsigned by_column = shared_address(shared) + swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2);

    Output O = {};
    float l[2] = {}, m[2] = {MINUS_INFINITY, MINUS_INFINITY};  // rows g and g + 8; l of this lane's keys alone
    int row_from[2], row_to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = (first_row + lane / 4 + 8 * i) % q_len;
        row_from[i] = first_seen(query, q_len, kv_len, before);
        row_to[i] = end_seen(query, q_len, kv_len, after);
    }
#ifdef ALIBI
    float row_slope[2];
    int row_place[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + lane / 4 + 8 * i;
        row_slope[i] = slopes[own_head * group + min(row / q_len, group - 1)];
        row_place[i] = row % q_len + kv_len - q_len;
    }
#endif

#pragma unroll 1
    for (int key = first_key; key < end; key = next_seen(key + WARPS * BC)) {
        const int from[2] = {row_from[0] - key, row_from[1] - key}, to[2] = {row_to[0] - key, row_to[1] - key};

        // S = tau Q K^T where the row sees the key, -inf elsewhere: chosen, not added, so that NaN behind the mask
        // stays there.
        Scores S;
        wait_for_slot();
        copy_next();  // into the slot before this one, which all lanes have read
        multiply_Q_Kt(S, by_row + Q_TILE, by_column + slot);
        next_slot();
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = 8 * n + lane % 4 * 2 + e % 2;
                const Scoring score = SCORING(row_slope[e / 2], row_place[e / 2]);
                S[n][e] = k >= from[e / 2] && k < to[e / 2] ? score(S[n][e], key + k) : MINUS_INFINITY;
            }

        // m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), O = exp(m_old - m) O.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float largest = fmaxf(fmaxf(S[0][2 * i], S[0][2 * i + 1]), fmaxf(S[1][2 * i], S[1][2 * i + 1]));
            const float m_new = fmaxf(m[i], quad_max(largest));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;
            l[i] *= correction;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
                for (int e = 2 * i; e < 2 * i + 2; ++e) l[i] += S[n][e] = exp_below(S[n][e], m_new);
#pragma unroll
            for (int n = 0; n < TD; ++n) {
                O[n][2 * i] *= correction;
                O[n][2 * i + 1] *= correction;
            }
        }

        // O = O + P V.
        wait_for_slot();
        copy_next();
        if (max(key, first) >= from_for_all && min(key + BC, end) <= to_for_all) {
            add_P_V(O, S, by_row + slot);
        } else {
            add_P_V_where_seen(O, S, slot, from, to, lane);
        }
        next_slot();
    }

    // The warps' O, l and m become the block's, in the same way: a share of the keys each instead of a tile.
    float *const l_rows = reinterpret_cast<float *>(shared + L_ROWS);
    float *const m_rows = reinterpret_cast<float *>(shared + M_ROWS);
    if (lane % 4 == 0) {
        m_rows[warp * BR + lane / 4] = m[0];
        m_rows[warp * BR + lane / 4 + 8] = m[1];
    }
    __syncthreads();  // and nobody reads a slot any more
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = lane / 4 + 8 * i;
        float m_block = MINUS_INFINITY;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) m_block = fmaxf(m_block, m_rows[w * BR + row]);
        const float correction = exp_below(m[i], m_block), l_row = quad_sum(l[i]);
        if (lane % 4 == 0) l_rows[warp * BR + row] = l_row * correction;
#pragma unroll
        for (int n = 0; n < TD; ++n) {
            *reinterpret_cast<float2 *>(O_element(warp, row, 8 * n + lane % 4 * 2)) =
                make_float2(O[n][2 * i] * correction, O[n][2 * i + 1] * correction);
        }
    }
    __syncthreads();

    const size_t split_stat = split * ((size_t)gridDim.z * kv_heads * group_rows) + first_stat;
#pragma unroll 1
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + t;
        if (e < rows * D) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += *O_element(w, e / D, e % D);
            O_split[split_stat * D + e] = sum;
        }
    }
    if (t < rows) {
        float l_block = 0.0f, m_block = MINUS_INFINITY;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            l_block += l_rows[w * BR + t];
            m_block = fmaxf(m_block, m_rows[w * BR + t]);
        }
        l_split[split_stat + t] = l_block;
        m_split[split_stat + t] = m_block;
    }
}

// Step 3: the splits put together, a block per row. What a row sees nothing of is not read: nobody may have written it.
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void split_kv_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    stored *__restrict__ O, float *__restrict__ lse, int q_len, int kv_len, LIMITS LIMITS_OF_ROW
#if defined(SINKS) && !defined(SPANS)
    , int heads
#endif
    SINKS_PARAMETER)
{
    const size_t row = blockIdx.x, rows = gridDim.x;
    const int query = blockIdx.x % q_len;
    KEEP_LIMITS_OF_ROW(query)
    const int first_split = first_seen(query, q_len, kv_len, before) / SPLIT;
    const int end_split = (end_seen(query, q_len, kv_len, after) + SPLIT - 1) / SPLIT;
    // A sink is a key more, without a value, of the first warp's share: once per row.
    const bool is_first_warp = threadIdx.x < 32;
    const float l = is_first_warp ? SINK_WEIGHT : 0.0f;
    float m = MINUS_INFINITY;
    if (is_first_warp) m = SINK(blockIdx.x / q_len % heads);
    combine_splits(O + row * D, lse + row, O_split, l_split, m_split, first_split * rows + row, rows,
                   end_split - first_split, l, m);
}
