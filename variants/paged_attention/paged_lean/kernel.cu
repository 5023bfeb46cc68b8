// Lean Attention (Sanovar et al. 2024, arXiv 2405.10480, algorithm 2) over sequences of any lengths whose keys lie in pages
// (Kwon et al. 2023, arXiv 2309.06180). How the keys of all sequences are divided among blocks, and how parts are combined,
// is in _mma/equal_runs.cuh; what a block does with the keys of one head is in split_attention.cuh, what kernels over pages
// share in _paged/sequences.cuh. Limits, Scores, Sink, Window and Pool, types that the plan chooses, are in _features/
// and _paged/. attention/lean is the same for sequences of one length, side by side.
//
// Compile-time parameters besides those of equal_runs.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least).

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");

// Keys from lean tile to lean tile, up to `end`. The warp's lanes hold the pages of its next 32 tiles: lane n that of the tile
// that begins with key from + n LEAN_TILE.
struct KeysOfPages : FirstKey<Window> {
    Pool K_pages, V_pages;
    const int *entries;  // of the sequence's pages
    int begin, end, kv_head, kv_heads, lane;
    mutable int from = -32 * LEAN_TILE, page = 0;

    __device__ __forceinline__ int first_tile(int warp) const { return first_tile_from(begin + warp * BC, LEAN_TILE); }
    __device__ __forceinline__ int tile_after(int key) const { return key + LEAN_TILE; }
    __device__ __forceinline__ size_t element_of_key(int key) const
    {
        if (key - from >= 32 * LEAN_TILE) {
            from = key;
            const int own = key + lane * LEAN_TILE;
            page = own < end ? __ldg(entries + own / PAGE) : 0;
        }
        const int page_of_key = __shfl_sync(0xffffffff, page, (key - from) / LEAN_TILE);
        return (((size_t)page_of_key * kv_heads + kv_head) * PAGE + key % PAGE) * D;
    }
    __device__ __forceinline__ auto K(int key) const { return elements(K_pages) + element_of_key(key); }
    __device__ __forceinline__ auto V(int key) const { return elements(V_pages) + element_of_key(key); }
};

// A sequence, whose places begin with `begin`, and how many each of its key/value heads has.
struct Sequence {
    int number, kv_len;
    unsigned begin, per_head;
};

// Looks for sequences in order, 32 lengths at a time: by one warp.
struct Search {
    const int *lengths;
    int batch, kv_heads, group_rows, q_len;
    int start;        // of the lengths that it looks at
    unsigned behind;  // places of the sequences before those

    __device__ __forceinline__ unsigned places_per_head(int sequence, int length, const Limits &limits) const
    {
        const auto run = limits.of_sequence(sequence, q_len, length);
        unsigned sum = 0;
        for (int tile = 0; tile * BR < group_rows; ++tile) sum += OutputTile(tile, group_rows, q_len, run).places();
        return sum;
    }
    // The sequence that has place `at`, which is none of those before `behind`.
    __device__ __forceinline__ Sequence find(unsigned at, const Limits &limits, int lane)
    {
        for (;; start += 32) {
            const int number = start + lane, length = number < batch ? lengths[number] : 0;
            const unsigned per_head = number < batch ? places_per_head(number, length, limits) : 0;
            const unsigned end = behind + lanes_before(per_head * kv_heads, lane);
            const unsigned beyond = __ballot_sync(0xffffffff, end > at);
            if (beyond != 0) {
                const int found = __ffs(beyond) - 1;
                const unsigned begin = end - per_head * kv_heads;
                return {start + found, __shfl_sync(0xffffffff, length, found), __shfl_sync(0xffffffff, begin, found),
                        __shfl_sync(0xffffffff, per_head, found)};
            }
            behind = __shfl_sync(0xffffffff, end, 31);
        }
    }
};

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void paged_lean(
    const stored *__restrict__ Q, const Pool K, const Pool V, const int *__restrict__ table,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, float *O_parts, float *l_parts,
    float *m_parts, int batch, int q_len, int table_len, int kv_heads, int group, unsigned places, float tau, Limits limits,
    Scores scores, Sink sink)
{
    __shared__ __align__(8) unsigned char found[sizeof(Segment)];
    Segment &segment = *reinterpret_cast<Segment *>(found);
    __shared__ int kv_len;  // of the segment's sequence
    const Parts parts = {O_parts, l_parts, m_parts};
    const Runs runs = {places};
    const int t = threadIdx.x, lane = t % 32, group_rows = group * q_len;
    Search search = {lengths, batch, kv_heads, group_rows, q_len, 0, 0};

    if (t == 0) {
        segment.to = runs.begin(blockIdx.x);
        segment.run_end = runs.begin(blockIdx.x + 1);
    }
#pragma unroll 1
    do {
        __syncthreads();  // nothing of the last segment is read in shared memory any more
        if (t < 32) {
            const Sequence sequence = search.find(segment.to, limits, lane);
            __syncwarp();  // all lanes have read segment.to
            if (lane == 0) {
                const unsigned head = (segment.to - sequence.begin) / sequence.per_head;
                const auto run = limits.of_sequence(sequence.number, q_len, sequence.kv_len);
                segment = segment_from(segment.to, segment.run_end, sequence.number * kv_heads + head,
                                       sequence.begin + head * sequence.per_head, group_rows, q_len, run);
                kv_len = sequence.kv_len;
            }
        }
        __syncthreads();
        const auto first_global_row = [&] { return (size_t)segment.kv_head * group_rows + segment.tile.first_row; };
        const auto head_of_row = [&](int row) {
            return segment.kv_head % kv_heads * group + min((segment.tile.first_row + row) / q_len, group - 1);
        };

        {
            // Attention of this part of the output tile.
            const OutputTile tile = segment.tile;
            const int sequence = segment.kv_head / kv_heads, kv_head = segment.kv_head % kv_heads;
            const auto run = limits.of_sequence(sequence, q_len, kv_len);
            const int first_query = tile.heads_meet ? 0 : tile.first_query, first = Window::first(run, first_query);
            const int first_key = (first / LEAN_TILE + (int)(segment.at - segment.begin)) * LEAN_TILE;
            const int end_key = min((first / LEAN_TILE + (int)(segment.to - segment.begin)) * LEAN_TILE, tile.end);
            const KeysOfPages keys = {FirstKey<Window>(max(first_key, first)), K, V, table + (size_t)sequence * table_len,
                                      first_key, end_key, kv_head, kv_heads, lane};
            const int query[2] = {(tile.first_row + lane / 4) % q_len, (tile.first_row + lane / 4 + 8) % q_len};
            const auto seen = seen_by_queries<Window>(run, query, first_query, min(tile.last_query, q_len - 1));
            const auto score_of_row = [&](int row) { return scores.of_head(head_of_row(row), q_len, kv_len); };
            const decltype(score_of_row(0)) score[2] = {score_of_row(lane / 4), score_of_row(lane / 4 + 8)};
            const float tau_of_head = times_scale(tau, K, kv_head);
            auto own = attend_to_split(Q + first_global_row() * D, tile.rows, tau_of_head, keys, seen, score, query);
            scale_O(own, V, kv_head);
            share_rows(own);
        }

        const auto logit_of_row = [&](int row) { return sink.logit(head_of_row(row)); };
        finish(segment, runs, parts, O + first_global_row() * D, lse + first_global_row(), group_rows, logit_of_row);
    } while (!segment.is_last());
}
