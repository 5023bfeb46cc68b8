// Flash-Decoding (Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference") over sequences of any
// lengths whose keys lie in pages (Kwon et al. 2023, arXiv 2309.06180). What a block does with its split is in
// _mma/split_attention.cuh, how splits are put together in _mma/combine.cuh, what kernels over pages share in
// _paged/sequences.cuh and _paged/split_pages.cuh. Limits, Scores, Sink, Window and Pool, types that the plan chooses, are in
// _features/ and _paged/. attention/split_kv is the same for sequences of one length, side by side.
//
// Compile-time parameters besides those of splits.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least), HAS_FEW_SPLITS (whether
// sequences have at most FEW).
//
// Splits are counted through all sequences, each of which has as many as its length takes, without those before its window: a
// sequence without keys has none. A block takes one split, and 16 rows of the query heads that share one key/value head of its sequence.

// Of a sequence: the splits that lie before its window, and how many it has.
template <class Run> __device__ __forceinline__ int evicted_splits(const Run &run) { return Window::first(run, 0) / SPLIT; }
template <class Run> __device__ __forceinline__ int splits_of(int length, const Run &run)
{
    return (length + SPLIT - 1) / SPLIT - evicted_splits(run);
}

// What a block works on, which one warp finds out.
struct Work {
    int sequence, kv_len;
    int first_split;  // of the sequence, counted through all sequences
};

// The sequence that has the split: the first one behind whose splits it does not lie. 32 lengths at a time.
__device__ __forceinline__ Work work_of_split(const int *lengths, int batch, int q_len, int split, const Limits &limits, int lane)
{
    Work work = {};
    int behind = 0;  // splits of the sequences before
#pragma unroll 1
    for (int start = 0; start < batch; start += 32) {
        const int length = start + lane < batch ? lengths[start + lane] : 0;
        const int own = splits_of(length, limits.of_sequence(start + lane, q_len, length)), end = behind + lanes_before(own, lane);
        const unsigned beyond = __ballot_sync(0xffffffff, end > split);
        if (beyond != 0) {
            const int at = __ffs(beyond) - 1;
            work.sequence = start + at;
            work.kv_len = __shfl_sync(0xffffffff, length, at);
            work.first_split = __shfl_sync(0xffffffff, end - own, at);
            break;
        }
        behind = __shfl_sync(0xffffffff, end, 31);
    }
    return work;
}

// The same of a sequence: the lengths up to its own.
__device__ __forceinline__ Work work_of_sequence(const int *lengths, int q_len, int sequence, const Limits &limits, int lane)
{
    Work work = {sequence};
#pragma unroll 1
    for (int start = 0; start <= sequence; start += 32) {
        const int length = start + lane <= sequence ? lengths[start + lane] : 0;
        const auto run = limits.of_sequence(start + lane, q_len, length);
        const int end = work.first_split + lanes_before(splits_of(length, run), lane);
        const int last = min(sequence - start, 31);
        work.kv_len = __shfl_sync(0xffffffff, length, last);
        work.first_split = __shfl_sync(0xffffffff, end, last);
    }
    work.first_split -= splits_of(work.kv_len, limits.of_sequence(sequence, q_len, work.kv_len));
    return work;
}

// Step 2: attention of each split on its own.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void paged_split_kv(
    const stored *__restrict__ Q, const Pool K, const Pool V,
    const int *__restrict__ table, const int *__restrict__ lengths, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int batch, int q_len, int table_len, int kv_heads,
    int group, float tau, Limits limits, Scores scores)
{
    __shared__ Work found;
    __shared__ int pages[PAGES];
    const int t = threadIdx.x, lane = t % 32;
    let_combination_begin();

    // Step 1: this block's rows, sequence, split and key/value head. Blocks with the same keys are neighbours, and so are
    // those whose keys lie in the same pages.
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
    const int first_row = blockIdx.x % row_tiles * BR, kv_head = blockIdx.x / row_tiles % kv_heads;
    const int split = blockIdx.x / row_tiles / kv_heads;
    const int rows = min(BR, group_rows - first_row);
    if (t < 32) {
        const Work work = work_of_split(lengths, batch, q_len, split, limits, lane);
        if (lane == 0) found = work;
    }
    __syncthreads();
    const int sequence = found.sequence, kv_len = found.kv_len;
    const size_t first_stat = ((size_t)sequence * kv_heads + kv_head) * group_rows + first_row;

    // The keys of the split that a row of this tile sees: from the first that its first query sees up to the last that its last
    // one does, and some rows see fewer. Where the rows of two heads meet, the last query of all is among them, and the first.
    const int first_of_rows = first_row % q_len, last_of_rows = first_of_rows + rows - 1;
    const bool heads_meet = last_of_rows >= q_len;
    const int first_query = heads_meet ? 0 : first_of_rows, last_query = min(last_of_rows, q_len - 1);
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int split_first = (split - found.first_split + evicted_splits(run)) * SPLIT;
    const int first = max(split_first, Window::first(run, first_query));
    const int end = min(split_first + SPLIT, run.end(last_query));
    if (first >= end) return;  // no row asks for it

    const int first_page = first / PAGE;
    load_pages(pages, table + (size_t)sequence * table_len + first_page, (end - 1) / PAGE - first_page + 1);

    const int query[2] = {(first_row + lane / 4) % q_len, (first_row + lane / 4 + 8) % q_len};
    const KeysOfPages keys = {FirstKey<Window>(first), K, V, pages, split_first, end, first_page, kv_head, kv_heads};
    const auto seen = seen_by_queries<Window>(run, query, first_query, last_query);
    const auto score_of_row = [&](int row) {
        return scores.of_head(kv_head * group + min((first_row + row) / q_len, group - 1), q_len, kv_len);
    };
    const decltype(score_of_row(0)) score[2] = {score_of_row(lane / 4), score_of_row(lane / 4 + 8)};
    auto own = attend_to_split(Q + first_stat * D, rows, times_scale(tau, K, kv_head), keys, seen, score, query);
    scale_O(own, V, kv_head);

    const size_t split_stat = ((size_t)split * kv_heads + kv_head) * group_rows + first_row;
    put_warps_together(own, O_split + split_stat * D, l_split + split_stat, m_split + split_stat, rows);
}

// Step 3: the splits put together, a block per row, or a warp if they are few. What a row sees nothing of is not read: it may not
// have been written. A sink is a key more, without a value, of the first warp's share: once per row.
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void paged_split_kv_combine(
    const float *O_split, const float *l_split, const float *m_split, const int *__restrict__ lengths,
    stored *__restrict__ O, float *__restrict__ lse, int q_len, int sequence_rows, Limits limits, Sink sink)
{
    __shared__ Work works[MOST_COMBINE_ROWS];
    Work &found = works[threadIdx.y];
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    const int sequence = row / sequence_rows, query = row % q_len;
    if (threadIdx.x < 32) {
        const Work work = work_of_sequence(lengths, q_len, sequence, limits, threadIdx.x);
        if (threadIdx.x == 0) found = work;
    }
    __syncthreads();
    const auto run = limits.of_sequence(sequence, q_len, found.kv_len);
    const int first_split = Window::first(run, query) / SPLIT, splits = (run.end(query) + SPLIT - 1) / SPLIT - first_split;
    const size_t first_stat =
        (size_t)(found.first_split + first_split - evicted_splits(run)) * sequence_rows + row % sequence_rows;
    const bool is_first_warp = threadIdx.x < 32;
    const float l = is_first_warp ? Sink::WEIGHT : 0.0f;
    float m = MINUS_INFINITY;
    if (is_first_warp) m = sink.logit(row % sequence_rows / q_len);
    wait_for_splits();
    combine_splits<HAS_FEW_SPLITS>(O + (size_t)row * D, lse + row, O_split, l_split, m_split, first_stat, sequence_rows, splits,
                                   l, m);
}
