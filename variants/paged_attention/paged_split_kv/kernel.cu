// Flash-Decoding (Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference") over sequences of any
// lengths whose keys lie in pages (Kwon et al. 2023, arXiv 2309.06180). What a block does with its split is in
// _mma/split_attention.cuh, how splits are put together in _mma/combine.cuh, what kernels over pages share in
// _paged/sequences.cuh. Limits, a type that the plan chooses, is in _features/. attention/split_kv is the same for sequences of
// one length, side by side.
//
// Compile-time parameters besides those of splits.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least), HAS_FEW_SPLITS (whether
// sequences have at most FEW).
//
// Splits are counted through all sequences, each of which has as many as its length takes: a sequence without keys has
// none. A block takes one split, and 16 rows of the query heads that share one key/value head of its sequence.

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");
constexpr int PAGES = (SPLIT - 1) / PAGE + 2;  // that the keys of a split may lie in
static_assert(PAGES <= 2 * THREADS, "two entries of the table per thread");

__device__ __forceinline__ int splits_of(int length) { return (length + SPLIT - 1) / SPLIT; }

// What a block works on, which one warp finds out.
struct Work {
    int sequence, kv_len;
    int first_split;  // of the sequence, counted through all sequences
};

// The sequence that has the split: the first one behind whose splits it does not lie. 32 lengths at a time.
__device__ __forceinline__ Work work_of_split(const int *lengths, int batch, int split, int lane)
{
    Work work = {};
    int behind = 0;  // splits of the sequences before
#pragma unroll 1
    for (int start = 0; start < batch; start += 32) {
        const int length = start + lane < batch ? lengths[start + lane] : 0;
        const int own = splits_of(length), end = behind + lanes_before(own, lane);
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
__device__ __forceinline__ Work work_of_sequence(const int *lengths, int sequence, int lane)
{
    Work work = {sequence};
#pragma unroll 1
    for (int start = 0; start <= sequence; start += 32) {
        const int length = start + lane <= sequence ? lengths[start + lane] : 0;
        const int end = work.first_split + lanes_before(splits_of(length), lane);
        const int last = min(sequence - start, 31);
        work.kv_len = __shfl_sync(0xffffffff, length, last);
        work.first_split = __shfl_sync(0xffffffff, end, last);
    }
    work.first_split -= splits_of(work.kv_len);
    return work;
}

// The keys of a split, up to `end`: pages[n] is where page first_page + n lies.
struct KeysOfPages {
    const stored *K_pages, *V_pages;
    const int *pages;
    int split_first, end, first_page, kv_head, kv_heads;
    static constexpr int first = 0;

    __device__ __forceinline__ int first_tile(int warp) const { return split_first + warp * BC; }
    __device__ __forceinline__ int tile_after(int key) const { return key + WARPS * BC; }
    __device__ __forceinline__ int skipped(int) const { return 0; }
    __device__ __forceinline__ size_t element_of_key(int key) const
    {
        return (((size_t)pages[key / PAGE - first_page] * kv_heads + kv_head) * PAGE + key % PAGE) * D;
    }
    __device__ __forceinline__ const stored *K(int key) const { return K_pages + element_of_key(key); }
    __device__ __forceinline__ const stored *V(int key) const { return V_pages + element_of_key(key); }
};

// Step 2: attention of each split on its own.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void paged_split_kv(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const int *__restrict__ table, const int *__restrict__ lengths, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int batch, int q_len, int table_len, int kv_heads,
    int group, float tau, Limits limits)
{
    __shared__ Work found;
    __shared__ int pages[PAGES];
    const int t = threadIdx.x, lane = t % 32;

    // Step 1: this block's rows, sequence, split and key/value head. Blocks with the same keys are neighbours, and so are
    // those whose keys lie in the same pages.
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
    const int first_row = blockIdx.x % row_tiles * BR, kv_head = blockIdx.x / row_tiles % kv_heads;
    const int split = blockIdx.x / row_tiles / kv_heads;
    const int rows = min(BR, group_rows - first_row);
    if (t < 32) {
        const Work work = work_of_split(lengths, batch, split, lane);
        if (lane == 0) found = work;
    }
    __syncthreads();
    const int sequence = found.sequence, kv_len = found.kv_len;
    const size_t first_stat = ((size_t)sequence * kv_heads + kv_head) * group_rows + first_row;

    // The keys of the split that a row of this tile sees: up to the last that its last query sees, and some rows see fewer.
    // Where the rows of two heads meet, the last query of all is among them, and the first.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= q_len;
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int split_first = (split - found.first_split) * SPLIT;
    const int end = min(split_first + SPLIT, run.end(min(last_query, q_len - 1)));
    if (split_first >= end) return;  // no row asks for it

    // Where they lie. All of it at once: a copy would wait for its entry of the table otherwise.
    const int first_page = split_first / PAGE, page_count = (end - 1) / PAGE - first_page + 1;
    const int *const entries = table + (size_t)sequence * table_len + first_page;
#pragma unroll
    for (int i = 0; i < (PAGES + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + t;
        if (at < page_count) pages[at] = entries[at];
    }
    __syncthreads();

    const int query[2] = {(first_row + lane / 4) % q_len, (first_row + lane / 4 + 8) % q_len};
    const KeysOfPages keys = {K, V, pages, split_first, end, first_page, kv_head, kv_heads};
    const EndsOfRows seen = {{run.end(query[0]), run.end(query[1])}, run.end(heads_meet ? 0 : first_query)};
    const Terms<> score[2] = {};
    const Rows own = attend_to_split(Q + first_stat * D, rows, tau, keys, seen, score, query);

    const size_t split_stat = ((size_t)split * kv_heads + kv_head) * group_rows + first_row;
    put_warps_together(own, O_split + split_stat * D, l_split + split_stat, m_split + split_stat, rows);
}

// Step 3: the splits put together, a block per row, or a warp if they are few. What a row sees nothing of is not read: it may not
// have been written.
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void paged_split_kv_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, int q_len, int sequence_rows,
    Limits limits)
{
    __shared__ Work works[MOST_COMBINE_ROWS];
    Work &found = works[threadIdx.y];
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    const int sequence = row / sequence_rows, query = row % q_len;
    if (threadIdx.x < 32) {
        const Work work = work_of_sequence(lengths, sequence, threadIdx.x);
        if (threadIdx.x == 0) found = work;
    }
    __syncthreads();
    const int splits = splits_of(limits.of_sequence(sequence, q_len, found.kv_len).end(query));
    const size_t first_stat = (size_t)found.first_split * sequence_rows + row % sequence_rows;
    combine_splits<HAS_FEW_SPLITS>(O + (size_t)row * D, lse + row, O_split, l_split, m_split, first_stat, sequence_rows, splits,
                                   0.0f, MINUS_INFINITY);
}
