// Lean Attention: Sanovar et al. 2024, arXiv 2405.10480, algorithm 2, for few queries and many keys. How the keys are divided
// among blocks, and how parts are put together, is in _mma/equal_runs.cuh; what a block does with the keys of one head is in
// split_attention.cuh and runs_of_rows.cuh. Limits, Scores and Sink, types that the plan chooses, are in _features/.
//
// Compile-time parameters besides those of equal_runs.cuh: BLOCKS_PER_SM (at least).

// Keys of one head from `first` to before `end`. `begin` is where the lean tile of the first one begins.
struct KeysOfRun {
    const stored *K_head, *V_head;
    int begin, first, end;

    __device__ __forceinline__ int first_tile(int warp) const
    {
        const int key = begin + warp * BC;
        return key + BC <= first ? key + LEAN_TILE : key;
    }
    __device__ __forceinline__ int tile_after(int key) const { return key + LEAN_TILE; }
    __device__ __forceinline__ void expect(int) {}
    __device__ __forceinline__ int skipped(int key) const { return first - key; }
    __device__ __forceinline__ const stored *source(bool of_V, int key) const
    {
        return (of_V ? V_head : K_head) + (size_t)key * D;
    }
};

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void lean(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, float *O_parts, float *l_parts, float *m_parts, int q_len, int kv_len, int kv_heads, int group,
    unsigned places, unsigned places_per_head, float tau, Limits limits, Scores scores, Sink sink)
{
    __shared__ __align__(8) unsigned char segments[2 * sizeof(Segment)];
    const Parts parts = {O_parts, l_parts, m_parts};
    const Runs runs(places);
    const int t = threadIdx.x, lane = t % 32, group_rows = group * q_len;

    const auto find = [&](Segment &to, unsigned at, unsigned run_end) {
        if (lane != 0) return;
        const unsigned kv_head = at / places_per_head;
        const auto run = limits.of_sequence(kv_head / kv_heads, q_len, kv_len);
        to = segment_from(at, run_end, kv_head, kv_head * places_per_head, group_rows, q_len, run);
    };
    const auto keys_of = [&](const Segment &segment) {
        const int first_key = (segment.tile.first_lean_tile() + (segment.at - segment.begin)) * LEAN_TILE;
        const int end_key = (segment.tile.first_lean_tile() + (segment.to - segment.begin)) * LEAN_TILE;
        const size_t kv_elements = (size_t)segment.kv_head * kv_len * D;
        return KeysOfRun{K + kv_elements, V + kv_elements, first_key, max(first_key, segment.tile.first),
                         min(end_key, segment.tile.end)};
    };
    // Attention of this part of the output tile.
    const auto finish_segment = [&](const Segment &segment, const auto &keys, auto &ring, int Q_tile) {
        const OutputTile tile = segment.tile;
        const auto head_of_row = [&](int row) {
            return segment.kv_head % kv_heads * group + min((tile.first_row + row) / q_len, group - 1);
        };
        const auto run = limits.of_sequence(segment.kv_head / kv_heads, q_len, kv_len);
        const int query[2] = {(tile.first_row + lane / 4) % q_len, (tile.first_row + lane / 4 + 8) % q_len};
        const auto score_of_row = [&](int row) { return scores.of_head(head_of_row(row), q_len, kv_len); };
        const decltype(score_of_row(0)) score[2] = {score_of_row(lane / 4), score_of_row(lane / 4 + 8)};
        const RunsOfRows seen = {{run.first(query[0]), run.first(query[1])},
                                 {run.end(query[0]), run.end(query[1])},
                                 run.first(min(tile.last_query, q_len - 1)),
                                 run.end(tile.heads_meet ? 0 : tile.first_query)};
        share_rows(attend(Q_tile, tau, ring, keys, seen, score, query));

        const size_t first_row = (size_t)segment.kv_head * group_rows + tile.first_row;
        finish(segment, parts, O + first_row * D, lse + first_row, group_rows,
               [&](int row) { return sink.logit(head_of_row(row)); });
    };
    take_run(reinterpret_cast<Segment *>(segments), Q, runs, group_rows, find, keys_of, finish_segment);
}
