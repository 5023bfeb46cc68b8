// FlashDecoding++: Hong et al. 2023, arXiv 2311.01282, section 3, "Asynchronized softmax with unified maximum value", for few
// queries and many keys. A constant phi takes the place of the maximum, so that splits of the keys do not depend on each other
// and their sums are added as they are. A row for which phi is too far from its scores is computed again with its maximum.
// What a block does with its split is in _mma/split_attention.cuh and runs_of_rows.cuh. Limits, Scores and Sink, types that
// the plan chooses, are in _features/. The Numba twin is numba_kernel.py.
//
// Compile-time parameters besides those of splits.cuh: BLOCKS_PER_SM (at least), ROW_TILES (room for their counters).

// Where exp(s - phi) is used for a row: all its weights are at most `largest_weight`, and they add up to `smallest_sum` or more.
struct UnifiedMax {
    float phi, smallest_sum, largest_weight;
    __device__ __forceinline__ float weight(float s) const { return __expf(s - phi); }
};

// The softmax of a split with phi: P = exp(S - phi), l = l + rowsum(P). O is not rescaled.
struct ConstantMaximum {
    UnifiedMax of;
    float (&largest)[2];  // weight so far of rows g and g + 8, of the lane's own keys
    __device__ __forceinline__ float first_m() const { return of.phi; }
    __device__ __forceinline__ void exponentiate(Rows &rows, ScoreTile &S) const
    {
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                S[n][e] = of.weight(S[n][e]);
                largest[e / 2] = fmaxf(largest[e / 2], S[n][e]);
                rows.l[e / 2] += S[n][e];
            }
    }
};

// Keys of one head from `first` to before `end`, of the splits from `begin` on.
struct KeysOfSplits {
    const stored *K_head, *V_head;
    int begin, first, end;

    __device__ __forceinline__ int next_seen(int key) const
    {
        while (key < end && key + BC <= first) key += WARPS * BC;
        return key;
    }
    __device__ __forceinline__ int first_tile(int warp) const { return next_seen(begin + warp * BC); }
    __device__ __forceinline__ int tile_after(int key) const { return key + WARPS * BC; }
    __device__ __forceinline__ int skipped(int key) const { return first - key; }
    __device__ __forceinline__ const stored *K(int key) const { return K_head + (size_t)key * D; }
    __device__ __forceinline__ const stored *V(int key) const { return V_head + (size_t)key * D; }
};

// Number of blocks that have come to the end of their split of a tile of rows. The last one to come increments it to the
// number of splits less one, which atomicInc wraps to 0 for the next launch.
__device__ unsigned arrived[ROW_TILES];

// This block's 16 rows of the query heads that share one key/value head, which are counted through those heads: row r is query
// r % q_len. They meet the splits that hold the keys which one of them sees: at least one, so that a block writes O.
struct RowTile {
    int first_row, rows, own_head;
    size_t number, kv_head, first_global_row;  // counted through the batch
    int first, end, first_split, splits;
    bool heads_meet;  // the last queries of one head and the first of the next one

    template <class Run>
    __device__ __forceinline__ RowTile(int block, int q_len, int group, const Run &run)
    {
        const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
        first_row = block % row_tiles * BR;
        own_head = block / row_tiles;
        rows = min(BR, group_rows - first_row);
        number = (size_t)blockIdx.z * gridDim.x + block;
        kv_head = (size_t)blockIdx.z * (gridDim.x / row_tiles) + own_head;
        first_global_row = kv_head * group_rows + first_row;
        const int first_query = first_row % q_len, last_query = first_query + rows - 1;
        heads_meet = last_query >= q_len;
        first = run.first(heads_meet ? 0 : first_query);
        end = run.end(min(last_query, q_len - 1));
        first_split = min(first / SPLIT, (int)gridDim.y - 1);
        splits = end > first ? (end - 1) / SPLIT - first_split + 1 : 1;
    }
    __device__ __forceinline__ int query_of_row(int row, int q_len) const { return (first_row + row) % q_len; }
    __device__ __forceinline__ int head_of_row(int row, int q_len, int group) const
    {
        return own_head * group + min((first_row + row) / q_len, group - 1);
    }
};

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void unified_max(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, float *O_split, float *l_split, int q_len, int kv_len, int group, float tau, UnifiedMax unified,
    Limits limits, Scores scores, Sink sink)
{
    constexpr int AT_ONCE = THREADS / BR;  // splits of which l is read together
    __shared__ float l_threads[THREADS], inverse[BR], weight[BR], logit[BR], lse_rows[BR];
    __shared__ bool is_last, again[BR];

    // Worked out where it is needed: it takes no registers while the products are computed.
    const auto row_tile_anew = [&] {
        int block = blockIdx.x;
        asm volatile("" : "+r"(block));
        return RowTile(block, q_len, group, limits.of_sequence(blockIdx.z, q_len, kv_len));
    };
    // Attention of the tile's rows over the keys from `begin` on, of those that they see, up to `end`.
    const auto attend = [&](const RowTile &tile, int begin, int end, const auto &maximum, int t) {
        const int lane = t % 32;
        const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
        const size_t kv_elements = tile.kv_head * kv_len * D;
        const KeysOfSplits keys = {K + kv_elements, V + kv_elements, begin, max(begin, tile.first), min(end, tile.end)};
        const int query[2] = {tile.query_of_row(lane / 4, q_len), tile.query_of_row(lane / 4 + 8, q_len)};
        const auto score_of_row = [&](int row) {
            return scores.of_head(tile.head_of_row(row, q_len, group), q_len, kv_len);
        };
        const decltype(score_of_row(0)) score[2] = {score_of_row(lane / 4), score_of_row(lane / 4 + 8)};
        const int first_query = tile.first_row % q_len;
        const RunsOfRows seen = {{run.first(query[0]), run.first(query[1])},
                                 {run.end(query[0]), run.end(query[1])},
                                 run.first(min(first_query + tile.rows - 1, q_len - 1)),
                                 run.end(tile.heads_meet ? 0 : first_query)};
        return attend_to_split(Q + tile.first_global_row * D, tile.rows, tau, keys, seen, score, query, maximum, t);
    };

    // Attention of the split with phi. A sum that is not to be used is infinite.
    {
        const RowTile tile = row_tile_anew();
        const int split = blockIdx.y - tile.first_split;
        if (split < 0 || split >= tile.splits) return;
        const int begin = blockIdx.y * SPLIT;
        float largest[2] = {};
        Rows own = attend(tile, begin, begin + SPLIT, ConstantMaximum{unified, largest}, threadIdx.x);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (largest[i] > unified.largest_weight) own.l[i] = -MINUS_INFINITY;
        }
        share_rows(own);  // all warps have the same m, so that nothing is rescaled
    }
    const RowTile tile = row_tile_anew();
    const int t = threadIdx.x, rows = tile.rows, splits = tile.splits;
    const size_t first_part = tile.number * gridDim.y;
    {
        const size_t part = first_part + blockIdx.y - tile.first_split;
#pragma unroll 1
        for (int e = t; e < rows * D; e += THREADS) O_split[part * (BR * D) + e] = shared_O(e);
        if (t < rows) l_split[part * BR + t] = shared_l(t);
    }

    // The last block to come adds the sums of all splits, in their order.
    __threadfence();
    __syncthreads();
    if (t == 0) {
        is_last = atomicInc(&arrived[tile.number], splits - 1) == splits - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last) return;

    float l = 0.0f;
    if (t % BR < rows) {
        // Counted from the first of all keys, so that a row's bits do not depend on what the others see.
        const int before = tile.first_split % AT_ONCE;
        for (int s = t / BR - before; s < splits; s += AT_ONCE) {
            if (s >= 0) l += __ldcg(l_split + (first_part + s) * BR + t % BR);
        }
    }
    l_threads[t] = l;
    __syncthreads();
    bool is_unsafe = false;
    if (t < rows) {
        l = 0.0f;
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) l += l_threads[i * BR + t];
        logit[t] = sink.logit(tile.head_of_row(t, q_len, group));
        const float of_sink = Sink::WEIGHT * unified.weight(logit[t]);
        l += of_sink;
        // A row that sees no key has O = 0 and, without a sink, lse = -inf. Not safe: l is too small, infinite or NaN.
        const auto run = limits.of_sequence(blockIdx.z, q_len, kv_len);
        const bool sees_keys = run.first(tile.query_of_row(t, q_len)) < run.end(tile.query_of_row(t, q_len));
        const bool is_safe = l >= unified.smallest_sum && l < -MINUS_INFINITY && of_sink <= unified.largest_weight;
        is_unsafe = again[t] = sees_keys && !is_safe;
        inverse[t] = sees_keys ? 1.0f / l : 0.0f;
        lse_rows[t] = sees_keys ? unified.phi + logf(l) : logit[t];
    }
    if (__syncthreads_or(is_unsafe)) {
        // Rows that are not safe once more, with their maximum: this block reads all keys of the tile.
        // The compiler knows nothing of the thread's index here: what follows from it would take registers from above on.
        const RowTile whole = row_tile_anew();
        int row = threadIdx.x;
        asm volatile("" : "+r"(row));
        share_rows(attend(whole, whole.first_split * SPLIT, whole.end, RunningMaximum(), row), row);
        if (row < whole.rows && again[row]) {
            const FinishedRow finished(shared_l(row), shared_m(row), logit[row]);
            weight[row] = exp_below(shared_m(row), finished.m);
            inverse[row] = finished.inverse;
            lse_rows[row] = finished.lse;
        }
        __syncthreads();
    }
    const RowTile done = row_tile_anew();
    if (threadIdx.x < done.rows) lse[done.first_global_row + threadIdx.x] = lse_rows[threadIdx.x];
    const float *const O_parts = O_split + done.number * gridDim.y * (BR * D);
#pragma unroll 1
    for (int e = threadIdx.x * WIDTH; e < done.rows * D; e += THREADS * WIDTH) {
        const int row = e / D;
        Floats sum = {};
#pragma unroll 8
        for (int s = 0; s < done.splits; ++s) {
            const Floats of_split = load_cg(O_parts + (size_t)s * (BR * D) + e);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) sum.x[i] += of_split.x[i];
        }
        Stored result;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const float O_row = again[row] ? shared_O(e + i) * weight[row] : sum.x[i];
            result.x[i] = stored(O_row * inverse[row]);
        }
        *reinterpret_cast<Stored *>(O + done.first_global_row * D + e) = result;
    }
}
