// Lean Attention (Sanovar et al. 2024, arXiv 2405.10480, algorithm 2) over sequences of any lengths whose keys lie in pages
// (Kwon et al. 2023, arXiv 2309.06180). How the keys of all sequences are divided among blocks, and how parts are combined,
// is in _mma/equal_runs.cuh and segments.cuh; what a block does with the keys of one head is in split_attention.cuh, what
// kernels over pages share in _paged/sequences.cuh. Limits, Scores, Sink, Window and Pool, types that the plan chooses, are in
// _features/ and _paged/. attention/lean is the same for sequences of one length, side by side.
//
// Compile-time parameters besides those of equal_runs.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least).

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");

typedef decltype(elements(Pool()) + 0) Head;

// Keys of a head from lean tile to lean tile, up to `end`. The warp's lanes hold the pages of its next 32 tiles: lane n that of
// the tile that begins with key from + n LEAN_TILE.
struct KeysOfPages : FirstKey<Window> {
    Head K_head, V_head;  // in the pool's first page
    const int *entries;   // of the sequence's pages
    int begin, end, kv_heads;
    int from = -32 * LEAN_TILE, page = 0;

    __device__ __forceinline__ int first_tile(int warp) const { return first_tile_from(begin + warp * BC, LEAN_TILE); }
    __device__ __forceinline__ int tile_after(int key) const { return key + LEAN_TILE; }
    __device__ __forceinline__ void expect(int key)
    {
        const int own = key + (int)threadIdx.x % 32 * LEAN_TILE;
        from = key;
        page = own < end ? __ldg(entries + own / PAGE) : 0;
    }
    __device__ __forceinline__ auto source(bool of_V, int key)
    {
        if (key - from >= 32 * LEAN_TILE) expect(key);
        const int page_of_key = __shfl_sync(0xffffffff, page, (key - from) / LEAN_TILE);
        return rows_of_head(chosen(of_V, V_head, K_head), page_of_key, kv_heads, key % PAGE);
    }
};

struct SegmentOfSequence : Segment {
    int kv_len;
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
    __shared__ __align__(8) unsigned char segments[2 * sizeof(SegmentOfSequence)];
    const Parts parts = {O_parts, l_parts, m_parts};
    const Runs runs(places);
    const int t = threadIdx.x, lane = t % 32, group_rows = group * q_len;
    Search search = {lengths, batch, kv_heads, group_rows, q_len, 0, 0};

    const auto find = [&](SegmentOfSequence &to, unsigned at, unsigned run_end) {
        const Sequence sequence = search.find(at, limits, lane);
        if (lane == 0) {
            const unsigned head = (at - sequence.begin) / sequence.per_head;
            const auto run = limits.of_sequence(sequence.number, q_len, sequence.kv_len);
            static_cast<Segment &>(to) = segment_from(at, run_end, sequence.number * kv_heads + head,
                                                      sequence.begin + head * sequence.per_head, group_rows, q_len, run);
            to.kv_len = sequence.kv_len;
        }
    };
    const auto first_query = [](const OutputTile &tile) { return tile.heads_meet ? 0 : tile.first_query; };
    const auto keys_of = [&](const SegmentOfSequence &segment) {
        const int sequence = segment.kv_head / kv_heads, kv_head = segment.kv_head % kv_heads;
        const int first = Window::first(limits.of_sequence(sequence, q_len, segment.kv_len), first_query(segment.tile));
        const int first_key = (first / LEAN_TILE + (int)(segment.at - segment.begin)) * LEAN_TILE;
        const int end_key = min((first / LEAN_TILE + (int)(segment.to - segment.begin)) * LEAN_TILE, segment.tile.end);
        const size_t of_head = PlaceOfHead<Pool>::of(kv_head);
        return KeysOfPages{FirstKey<Window>(max(first_key, first)), elements(K) + of_head, elements(V) + of_head,
                           table + (size_t)sequence * table_len, first_key, end_key, kv_heads};
    };
    // Attention of this part of the output tile.
    const auto finish_segment = [&](const SegmentOfSequence &segment, const auto &keys, auto &ring, int Q_tile) {
        const OutputTile tile = segment.tile;
        const auto run = limits.of_sequence(segment.kv_head / kv_heads, q_len, segment.kv_len);
        const int query[2] = {(tile.first_row + lane / 4) % q_len, (tile.first_row + lane / 4 + 8) % q_len};
        const auto seen = seen_by_queries<Window>(run, query, first_query(tile), min(tile.last_query, q_len - 1));
        const auto head_of_row = [&](int row) {
            return segment.kv_head % kv_heads * group + min((tile.first_row + row) / q_len, group - 1);
        };
        const auto score_of_row = [&](int row) { return scores.of_head(head_of_row(row), q_len, segment.kv_len); };
        const decltype(score_of_row(0)) score[2] = {score_of_row(lane / 4), score_of_row(lane / 4 + 8)};
        const int kv_head = segment.kv_head % kv_heads;
        const float tau_of_head = times_scale(tau, K, kv_head);
        auto own = attend(Q_tile, tau_of_head, ring, keys, seen, score, query);
        scale_O(own, V, kv_head);
        share_rows(own);

        const size_t first_row = (size_t)segment.kv_head * group_rows + tile.first_row;
        finish(segment, parts, O + first_row * D, lse + first_row, group_rows,
               [&](int row) { return sink.logit(head_of_row(row)); });
    };
    take_run(reinterpret_cast<SegmentOfSequence *>(segments), Q, runs, group_rows, find, keys_of, finish_segment);
}
