// Equal runs of keys (stream-K): Sanovar et al. 2024, arXiv 2405.10480, algorithm 2. The keys of all heads and sequences lie in
// one row of lean tiles, and each block takes an equal run of it, wherever heads end. splits.cuh, split_attention.cuh,
// parts.cuh and the type Sink are put before this text.
//
// Not in the paper: a block that begins an output tile waits for its first keys, and ends it with writing. That takes as long
// as START_TILES lean tiles do. So the row has as many empty places before the lean tiles of each output tile.
//
// Compile-time parameters besides those of splits.cuh: OUTPUT_TILES (room for their counters).

constexpr int START_TILES = 5;    // as in equal_runs.py
constexpr int LEAN_TILE = SPLIT;  // keys
static_assert(LEAN_TILE == BC * WARPS, "a tile of keys for each warp");

// 16 rows of the query heads that share one key/value head, counted through those heads: row r is query r % q_len. It has
// the lean tiles that hold the keys from the first to the last that one of its rows sees, or one if they see none.
struct OutputTile {
    int first_row, rows, first_query, last_query;
    bool heads_meet;  // the last queries of one head and the first of the next one
    int first, end;   // keys

    template <class Run>
    __device__ __forceinline__ OutputTile(int number, int group_rows, int q_len, const Run &run)
        : first_row(number * BR), rows(min(BR, group_rows - first_row)), first_query(first_row % q_len),
          last_query(first_query + rows - 1), heads_meet(last_query >= q_len),
          first(run.first(heads_meet ? 0 : first_query)), end(run.end(min(last_query, q_len - 1)))
    {
    }
    __device__ __forceinline__ int first_lean_tile() const { return first / LEAN_TILE; }
    __device__ __forceinline__ int lean_tiles() const
    {
        return end > first ? (end - 1) / LEAN_TILE - first_lean_tile() + 1 : 1;
    }
    __device__ __forceinline__ int places() const { return START_TILES + lean_tiles(); }
};

// The division of `total` places, counted through all heads and sequences, into equal runs, one per block. A run has more than
// START_TILES places, and so a lean tile.
struct Runs {
    unsigned total, each, left;  // total = each gridDim.x + left
    __device__ __forceinline__ explicit Runs(unsigned total) : total(total), each(total / gridDim.x), left(total % gridDim.x) {}
    // total block / gridDim.x, rounded down.
    __device__ __forceinline__ unsigned begin(unsigned block) const { return each * block + left * block / gridDim.x; }
    __device__ __forceinline__ unsigned block_of(unsigned place) const
    {
        unsigned block = min((unsigned)((float)place * gridDim.x / total), gridDim.x - 1);  // or a neighbour
        while (begin(block) > place) --block;
        while (begin(block + 1) <= place) ++block;
        return block;
    }
};

// What a block has of one output tile, which one of its threads finds out: the lean tiles in places `at` to `to` - 1, of
// those in `begin` to `end` - 1.
struct Segment {
    unsigned at, to, begin, end;
    unsigned run_end;  // of the block's run
    unsigned kv_head;  // counted through all sequences
    int number;        // of the output tile, of those of its head
    OutputTile tile;
    unsigned first_block, blocks;  // which have the output tile: see `count_blocks`
    __device__ __forceinline__ bool is_whole() const { return at == begin && to == end; }
    // Whether there is no lean tile of another output tile in the block's run.
    __device__ __forceinline__ bool is_last() const { return to + START_TILES >= run_end; }
    __device__ __forceinline__ void count_blocks(const Runs &runs)
    {
        first_block = runs.block_of(begin);
        blocks = runs.block_of(end - 1) - first_block + 1;
    }
};

// The segment that begins with the first lean tile from place `at` on, of a key/value head whose places begin with `head_begin`.
template <class Run>
__device__ __forceinline__ Segment segment_from(unsigned at, unsigned run_end, unsigned kv_head, unsigned head_begin,
                                                int group_rows, int q_len, const Run &run)
{
    Segment found = {at, 0, head_begin, 0, run_end, kv_head, 0, OutputTile(0, group_rows, q_len, run), 0, 0};
    while (at - found.begin >= found.tile.places()) {
        found.begin += found.tile.places();
        found.tile = OutputTile(++found.number, group_rows, q_len, run);
    }
    found.end = found.begin + found.tile.places();
    found.begin += START_TILES;
    found.at = max(at, found.begin);
    found.to = min(found.end, run_end);
    return found;
}

// Number of blocks that have come to the end of their part of an output tile of several. The last one to come increments it to
// that number, which wraps to 0 for the next launch.
__device__ unsigned arrived[OUTPUT_TILES];

// It releases what the block wrote before a barrier, and acquires what the others did (PTX ISA: atom): a fence of each thread
// takes longer, as it waits for copies of the keys that come next.
__device__ __forceinline__ unsigned count_arrival(unsigned *counter, unsigned last)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// Parts of output tiles: a block has at most two that are not whole, one that it begins with and one that it ends with.
struct Parts {
    float *O, *l, *m;
    __device__ __forceinline__ float *O_of(unsigned part) const { return O + (size_t)part * (BR * D); }
    __device__ __forceinline__ float *l_of(unsigned part) const { return l + (size_t)part * BR; }
    __device__ __forceinline__ float *m_of(unsigned part) const { return m + (size_t)part * BR; }
};
__device__ __forceinline__ unsigned part_at_begin(unsigned block) { return 2 * block; }
__device__ __forceinline__ unsigned part_at_end(unsigned block) { return 2 * block + 1; }

// Parts of which a thread asks for O, or a block for l and m, before it waits for any: nothing else hides the time that takes.
// Longer rows leave fewer registers.
constexpr int PARTS_AT_ONCE = D <= 128 ? 12 : 4, STATS_AT_ONCE = D <= 128 ? 32 : 16;

// WIDTH elements of some parts on their way, from element e and part `first` on.
struct PartsAsked {
    Floats of_part[PARTS_AT_ONCE];
    template <class OfPart>
    __device__ __forceinline__ void ask(const OfPart &of, int e, int first, int count)
    {
#pragma unroll
        for (int i = 0; i < PARTS_AT_ONCE; ++i) {
            if (first + i < count) of_part[i] = load_cg(of(first + i) + e);
        }
    }
};

// All parts of an output tile -> its O and lse. m, then the weight, of each part and row lies in shared memory, where O was,
// and l behind it.
__device__ __forceinline__ void put_parts_together(stored *O, float *lse, const Parts &parts, unsigned first_part,
                                                   unsigned next_part, int count, int rows, const float (&logit)[BR],
                                                   float (&inverse)[BR])
{
    __shared__ float lse_rows[BR];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    float *const weights = reinterpret_cast<float *>(shared + O_ROWS), *const l_parts = weights + count * BR;
    const auto part = [=](int p) { return p == 0 ? first_part : next_part + 2 * (p - 1); };
    const auto O_of = [&](int p) { return parts.O_of(part(p)); };
    PartsAsked asked;
    if (t * WIDTH < rows * D) asked.ask(O_of, t * WIDTH, 0, count);
#pragma unroll 1
    for (int first = 0; first < count; first += STATS_AT_ONCE) {
        float m[STATS_AT_ONCE * BR / THREADS], l[STATS_AT_ONCE * BR / THREADS];
#pragma unroll
        for (int i = 0; i < STATS_AT_ONCE * BR / THREADS; ++i) {
            const int p = first + (i * THREADS + t) / BR;
            if (p < count && t % BR < rows) {
                m[i] = __ldcg(parts.m_of(part(p)) + t % BR);
                l[i] = __ldcg(parts.l_of(part(p)) + t % BR);
            }
        }
#pragma unroll
        for (int i = 0; i < STATS_AT_ONCE * BR / THREADS; ++i) {
            const int p = first + (i * THREADS + t) / BR;
            if (p < count && t % BR < rows) {
                weights[p * BR + t % BR] = m[i];
                l_parts[p * BR + t % BR] = l[i];
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp; row < rows; row += WARPS) {
        float m = MINUS_INFINITY, l = 0.0f;
        for (int p = lane; p < count; p += 32) m = fmaxf(m, weights[p * BR + row]);
        m = warp_max(m);
        for (int p = lane; p < count; p += 32) l += exp_below(weights[p * BR + row], m) * l_parts[p * BR + row];
        const FinishedRow finished(warp_sum(l), m, logit[row]);
        for (int p = lane; p < count; p += 32) weights[p * BR + row] = exp_below(weights[p * BR + row], finished.m);
        if (lane == 0) {
            inverse[row] = finished.inverse;
            lse_rows[row] = finished.lse;
        }
    }
    __syncthreads();
    if (t < rows) lse[t] = lse_rows[t];
#pragma unroll 1
    for (int e = t * WIDTH; e < rows * D; e += THREADS * WIDTH) {
        const int row = e / D;
        Floats sum = {};
#pragma unroll 1
        for (int first = 0; first < count; first += PARTS_AT_ONCE) {
            if (e != t * WIDTH || first != 0) asked.ask(O_of, e, first, count);
#pragma unroll
            for (int i = 0; i < PARTS_AT_ONCE; ++i) {
                if (first + i >= count) break;
#pragma unroll
                for (int x = 0; x < WIDTH; ++x) sum.x[x] += weights[(first + i) * BR + row] * asked.of_part[i].x[x];
            }
        }
        Stored result;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) result.x[i] = stored(sum.x[i] * inverse[row]);
        *reinterpret_cast<Stored *>(O + e) = result;
    }
}

// A segment's O, l and m leave shared memory, where `share_rows` has put them: as O and lse if it is a whole output tile, and
// else as a part. O and lse: of the output tile's first row. `logit_of_row`: the logit of the sink of one of its rows.
template <class LogitOfRow>
__device__ __forceinline__ void finish(const Segment &segment, const Parts &parts, stored *O, float *lse, int group_rows,
                                       const LogitOfRow &logit_of_row)
{
    __shared__ bool is_last;
    __shared__ float logit[BR], weight[BR], inverse[BR];
    const int t = threadIdx.x, rows = segment.tile.rows;
    if (t < rows) logit[t] = logit_of_row(t);
    if (segment.is_whole()) {
        if (t < rows) {
            const FinishedRow row(shared_l(t), shared_m(t), logit[t]);
            weight[t] = exp_below(shared_m(t), row.m);
            inverse[t] = row.inverse;
            lse[t] = row.lse;
        }
        __syncthreads();
#pragma unroll 1
        for (int e = t; e < rows * D; e += THREADS) O[e] = stored(shared_O(e) * weight[e / D] * inverse[e / D]);
        return;
    }

    const unsigned part = segment.at == segment.begin ? part_at_end(blockIdx.x) : part_at_begin(blockIdx.x);
#pragma unroll 1
    for (int e = t * WIDTH; e < rows * D; e += THREADS * WIDTH) {
        Floats sum = {};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const Floats of_warp = *reinterpret_cast<const Floats *>(O_element(w, e / D, e % D));
#pragma unroll
            for (int x = 0; x < WIDTH; ++x) sum.x[x] += of_warp.x[x];
        }
        *reinterpret_cast<Floats *>(parts.O_of(part) + e) = sum;
    }
    if (t < rows) {
        parts.l_of(part)[t] = shared_l(t);
        parts.m_of(part)[t] = shared_m(t);
    }
    // The last block to come puts the parts together in their order, so that bits do not depend on which one it is: the first
    // part is the end of a block's run, the others are the beginnings of the next blocks' runs.
    const unsigned first_block = segment.first_block, count = segment.blocks;
    __syncthreads();
    if (t == 0) {
        const int tiles_per_head = (group_rows + BR - 1) / BR;
        is_last = count_arrival(arrived + segment.kv_head * tiles_per_head + segment.number, count - 1) == count - 1;
    }
    __syncthreads();
    if (is_last) {
        put_parts_together(O, lse, parts, part_at_end(first_block), part_at_begin(first_block + 1), count, rows, logit,
                           inverse);
    }
}
