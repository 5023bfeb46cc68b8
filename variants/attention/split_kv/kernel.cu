// Flash-Decoding: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"; these are its steps. What a
// block does with its split is in _mma/split_attention.cuh and runs_of_rows.cuh, how splits are put together in
// _mma/combine.cuh, where rows lie in sequences.cuh and rows.cuh. Limits, Scores, Sink, Sequences and Layout, types that the
// plan chooses, are in _features/ and sequences.cuh.
//
// Compile-time parameters: D and DV (elements per row of Q and K, and of V and O), SPLIT (keys per split), WARPS (per block of
// the first kernel), SLOTS (tiles of K or V that a warp has room for), BLOCKS_PER_SM (at least), HAS_FEW_SPLITS (whether rows have
// at most FEW).
//
// A block takes one split of the keys of one key/value head, and 16 rows of the queries that go with it. The rows of
// all heads that share K and V are counted through: row r of the group is query r % q_len. They lie one after the other in a
// dense Q of sequences of one length.

// Which keys the queries of a block see, if the rows from `first_query` on are counted through the group: those of the next
// head begin anew after q_len.
struct QuerySpans {
    const int *first_keys, *end_keys;
    int first_query, q_len;
    __device__ __forceinline__ int place(int query) const
    {
        return query - first_query + (query < first_query ? q_len : 0);
    }
    __device__ __forceinline__ int first(int query) const { return first_keys[place(query)]; }
    __device__ __forceinline__ int end(int query) const { return end_keys[place(query)]; }
};

__device__ __forceinline__ Band::Run limits_of_queries(const Band &band, int batch, int, int, int q_len, int kv_len)
{
    return band.of_sequence(batch, q_len, kv_len);
}

// A block loads those of its `rows` queries into shared memory once.
__device__ __forceinline__ QuerySpans limits_of_queries(const Spans &spans, int batch, int first_query, int rows, int q_len,
                                                        int)
{
    __shared__ int first_kept[BR], end_kept[BR];
    if (threadIdx.x < BR) {
        const size_t at = (size_t)batch * q_len + (first_query + threadIdx.x) % q_len;
        first_kept[threadIdx.x] = threadIdx.x < rows ? __ldg(spans.first_keys + at) : 0;
        end_kept[threadIdx.x] = threadIdx.x < rows ? __ldg(spans.end_keys + at) : 0;
    }
    __syncthreads();
    return {first_kept, end_kept, first_query, q_len};
}

// The keys of a split from the first to the last that a row sees. A tile in which the rows of two heads meet has the last
// queries of one, up to the last of all, and the first of the other: what they see are two runs of keys, low and high, and
// there may be keys in between. Else both are the same.
template <class Head> struct KeysOfSplit : Head {
    int split_first, first, end, low_end, high_first;

    // Whether no row sees any of so many keys from `key` on.
    __device__ __forceinline__ bool nobody_sees(int key, int keys) const
    {
        return key >= low_end && key + keys <= high_first;
    }
    __device__ __forceinline__ bool is_empty() const { return first >= end || nobody_sees(split_first, SPLIT); }

    // A warp's tiles of which a row sees a key. Which warp has which does not depend on the other rows here.
    __device__ __forceinline__ int next_seen(int key) const
    {
        while (key < end && (key + BC <= first || nobody_sees(key, BC))) key += WARPS * BC;
        return key;
    }
    __device__ __forceinline__ int first_tile(int warp) const { return next_seen(split_first + warp * BC); }
    __device__ __forceinline__ int tile_after(int key) const { return next_seen(key + WARPS * BC); }
    __device__ __forceinline__ int skipped(int key) const { return first - key; }
};

// Step 2: attention of each split on its own.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void split_kv(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int q_len, int kv_len, int group, float tau, Limits limits,
    Scores scores, Sequences sequences, Layout layout)
{
    // Step 1: this block's rows, split and key/value head. Blocks with the same keys are neighbours, and then those with the
    // same split of another head: what is read at once lies in different parts of memory. A sequence that is shorter than the
    // longest one has no use for some.
    const int row_tiles = (group * sequences.longest(q_len) + BR - 1) / BR, kv_heads = gridDim.x / row_tiles;
    const int first_row = blockIdx.x % row_tiles * BR, own_head = blockIdx.x / row_tiles, split = blockIdx.y;
    const auto own = sequences.at(blockIdx.z, first_row / group, q_len, kv_len);
    if (!own.has_rows()) return;
    const int own_len = own.q_len, group_rows = group * own_len, rows = min(BR, group_rows - first_row);
    const size_t kv_head = (size_t)own.batch * kv_heads + own_head;
    const size_t first_stat = kv_head * group_rows + first_row + (size_t)own.row(0) * (kv_heads * group);

    const int first_query = first_row % own_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= own_len;
    const auto run = limits_of_queries(limits, own.batch, first_query, rows, own_len, own.kv_len);
    const int low_first = run.first(heads_meet ? 0 : first_query);
    const int low_end = run.end(heads_meet ? min(last_query - own_len, own_len - 1) : last_query);
    const int high_first = run.first(first_query), high_end = run.end(min(last_query, own_len - 1));
    const int split_first = split * SPLIT, first = max(split_first, low_end > 0 ? low_first : high_first);
    const stored *const K_first = first_of_K(layout, K, own, own_head), *const V_first = first_of_V(layout, V, own, own_head);
    KeysOfSplit<HeadOf<Layout>> keys = {{K_first + in_runs(layout, kv_head) * kv_len * D,
                                         V_first + in_runs(layout, kv_head) * kv_len * DV},
                                        split_first, first, min(split_first + SPLIT, high_end), low_end, high_first};
    keys.set_strides(layout);
    if (keys.is_empty()) return;  // no row asks for it

    RunsOfRows seen = {{}, {}, run.first(min(last_query, own_len - 1)), run.end(heads_meet ? 0 : first_query)};
    const auto score_of_row = [&](int row) {
        return scores.of_head(own_head * group + min(row / own_len, group - 1), own_len, own.kv_len);
    };
    const int lane = threadIdx.x % 32, own_rows[2] = {first_row + lane / 4, first_row + lane / 4 + 8};
    const int query[2] = {own_rows[0] % own_len, own_rows[1] % own_len};
    const decltype(score_of_row(0)) score[2] = {score_of_row(own_rows[0]), score_of_row(own_rows[1])};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        seen.from[i] = run.first(query[i]);
        seen.to[i] = run.end(query[i]);
    }
    const auto Q_rows = query_rows(layout, Q, first_stat, own, own_head * group, first_row);
    const Rows of_warp = attend_to_split(Q_rows, rows, tau, keys, seen, score, query);

    const size_t split_stat = split * ((size_t)sequences.entries() * kv_heads * (group * q_len)) + first_stat;
    put_warps_together(of_warp, O_split + split_stat * DV, l_split + split_stat, m_split + split_stat, rows);
}

// Step 3: the splits put together, a block per row, or a warp if they are few. What a row sees nothing of is not read: it may not
// have been written. A sink is a key more, without a value, of the first warp's share: once per row.
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void split_kv_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    stored *__restrict__ O, float *__restrict__ lse, int q_len, int kv_len, int heads, Limits limits, Sink sink,
    Sequences sequences, Layout layout)
{
    const auto row = sequences.combined_row(q_len, kv_len, heads);
    const auto own = row.own;
    if (!own.has_rows()) return;
    const auto run = limits.of_sequence(own.batch, own.q_len, own.kv_len);
    const int first_split = run.first(row.query) / SPLIT, end_split = (run.end(row.query) + SPLIT - 1) / SPLIT;
    const bool is_first_warp = threadIdx.x < 32;
    const float l = is_first_warp ? Sink::WEIGHT : 0.0f;
    float m = MINUS_INFINITY;
    if (is_first_warp) m = sink.logit(row.head);
    stored *const O_row = first_of(layout.O_rows(O, row.number, own.batch, row.head, own.row(row.query)));
    combine_splits<HAS_FEW_SPLITS>(O_row, lse + row.number, O_split, l_split, m_split, first_split * row.stats + row.stat,
                                   row.stats, end_split - first_split, l, m);
}
