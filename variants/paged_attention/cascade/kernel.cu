// Attention of sequences that share their first keys: cascade inference (Ye et al. 2024, FlashInfer), Hydragen (Juravsky et
// al. 2024, arXiv 2402.05099). Keys lie in pages (Kwon et al. 2023, arXiv 2309.06180). What a warp does with a tile of keys,
// and a block with a split of one sequence's, is in _mma/split_attention.cuh, how parts are put together in _mma/combine.cuh,
// what kernels over pages share in _paged/sequences.cuh and _paged/split_pages.cuh. Limits, a type that the plan chooses, is
// in _features/. The Numba twin is numba_kernel.py.
//
// Compile-time parameters besides those of splits.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least), HAS_FEW_SPLITS (whether
// rows have at most FEW splits).
//
// A sequence has room for most_splits parts of each row: those of the prefix first, then those of its own keys.

constexpr int ROWS = WARPS * BR;  // of a block of the prefix
static_assert(ROWS <= THREADS, "a thread per row");

__device__ __forceinline__ int splits_of(int keys) { return (keys + SPLIT - 1) / SPLIT; }

// The keys of a sequence that lie in shared pages; `prefix`: of the sequence that has most, whole pages.
__device__ __forceinline__ int shared_keys(int length, int prefix) { return min(prefix, length / PAGE * PAGE); }

// One row of Q, zeros unless `wanted`, -> a row of a tile in shared memory, by a warp.
__device__ __forceinline__ void copy_row(int tile, int row, const stored *source, bool wanted, int lane)
{
    constexpr int UNIT = unit_over(D);
    for (int element = lane * UNIT; element < D; element += 32 * UNIT) {
        const int to = tile + swizzled<ROW_BYTES>(row, element / CHUNK) + element % CHUNK * (int)sizeof(stored);
        if constexpr (UNIT > 1) {
            copy_async<UNIT * (int)sizeof(stored)>(shared_address(shared) + to, source + element, wanted);
        } else {
            *reinterpret_cast<stored *>(shared + to) = wanted ? source[element] : stored();
        }
    }
}

// Tile w of S: registers have no index at run time.
__device__ __forceinline__ void choose_tile(ScoreTile &chosen, const ScoreTile (&S)[WARPS], int w)
{
#pragma unroll
    for (int other = 0; other < WARPS; ++other)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) chosen[n][e] = other == 0 || other == w ? S[other][n][e] : chosen[n][e];
}

// Rows of one key/value head from `first` on, counted through all sequences, each of which has group_rows of them; and a split
// of the prefix.
struct RowsOfHead {
    int first, split, group_rows, kv_head, kv_heads, most_splits;

    __device__ __forceinline__ int sequence(int row) const { return (first + row) / group_rows; }
    __device__ __forceinline__ size_t in_part(size_t part, int row) const
    {
        return (part * kv_heads + kv_head) * group_rows + (first + row) % group_rows;
    }
    __device__ __forceinline__ size_t in_Q(int row) const { return in_part(sequence(row), row); }
    __device__ __forceinline__ size_t in_parts(int row) const
    {
        return in_part((size_t)sequence(row) * most_splits + split, row);
    }
};

// Step 1: attention of the rows of all sequences to a split of the prefix. A warp has 16 rows to itself and copies every
// WARPS-th tile of keys; the block's warps read all of them. The prefix's pages are the first of sequence `owner`.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void cascade_prefix(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const int *__restrict__ table, const int *__restrict__ lengths, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int prefix, int owner, int batch, int most_splits, int q_len,
    int table_len, int kv_heads, int group, float tau, Limits limits)
{
    __shared__ int pages[PAGES], ends[ROWS];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32, kv_head = blockIdx.y;

    // This block's rows, and the keys of the prefix that each of them sees. Blocks with the same keys are neighbours.
    const int group_rows = group * q_len, row_tiles = (batch * group_rows + ROWS - 1) / ROWS;
    const int split = blockIdx.x / row_tiles, split_first = split * SPLIT;
    const RowsOfHead rows = {(int)blockIdx.x % row_tiles * ROWS, split, group_rows, kv_head, kv_heads, most_splits};
    const bool is_row = t < ROWS && rows.sequence(t) < batch;
    if (is_row) {
        const int sequence = rows.sequence(t), kv_len = lengths[sequence];
        const int end = limits.of_sequence(sequence, q_len, kv_len).end((rows.first + t) % q_len);
        ends[t] = min(end, shared_keys(kv_len, prefix));
    } else if (t < ROWS) {
        ends[t] = 0;
    }
    if (!__syncthreads_or(is_row && ends[t] > split_first)) return;  // no row asks for it

    const int end = min(split_first + SPLIT, prefix), first_page = split_first / PAGE;
    load_pages(pages, table + (size_t)owner * table_len + first_page, (end - 1) / PAGE - first_page + 1);

    // Q, and K and V of the first tiles.
    if constexpr (D % 16 != 0) {
        // Rows are not copied as far as they are multiplied.
        for (int i = t; i < (Q_TILE + WARPS * SLOT_BYTES) / 16; i += THREADS) reinterpret_cast<uint4 *>(shared)[i] = uint4();
        __syncthreads();
    }
    const int *const warp_ends = ends + warp * BR;
    const int Q_rows = Q_TILE + warp * SLOT_BYTES;
#pragma unroll 1
    for (int row = 0; row < BR; ++row) {
        const bool wanted = warp_ends[row] > split_first;
        copy_row(Q_rows, row, Q + (wanted ? rows.in_Q(warp * BR + row) : 0) * D, wanted, lane);
    }
    commit_copies();
    const KeysOfPages keys = {FirstKey<Window>(split_first), K, V, pages, split_first, end, first_page, kv_head, kv_heads};
    Ring<KeysOfPages> ring(keys, warp, lane, keys.first_tile(warp));
#pragma unroll 1
    for (int i = 0; i < SLOTS - 1; ++i) ring.copy_next();

    // Up to where some row of the warp sees keys, and up to where all do that are written.
    const int to[2] = {warp_ends[lane / 4], warp_ends[lane / 4 + 8]};
    int warp_end = max(to[0], to[1]);
    int to_for_all = min(to[0] > split_first ? to[0] : end, to[1] > split_first ? to[1] : end);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
        warp_end = max(warp_end, __shfl_xor_sync(0xffffffff, warp_end, distance));
        to_for_all = min(to_for_all, __shfl_xor_sync(0xffffffff, to_for_all, distance));
    }
    warp_end = min(warp_end, end);
    const EndsOfRows seen = {{to[0], to[1]}, to_for_all};
    const Terms<> score[2] = {};
    const int query[2] = {};  // no term of a score depends on it

    const unsigned by_row = shared_address(shared) + swizzled<ROW_BYTES>(lane % 16, lane / 16);
    const unsigned by_column = shared_address(shared) + swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    // The slots of all warps that are read next have come; those before them, which all warps have read, are filled anew.
    const auto wait_for_slots = [&] {
        wait_for_copies<SLOTS - 2>();
        __syncthreads();
        ring.copy_next();
    };
    Rows own = {{}, {}, {MINUS_INFINITY, MINUS_INFINITY}};
#pragma unroll 1
    for (int key = split_first; key < end; key += WARPS * BC) {
        // S = tau Q K^T.
        ScoreTile S[WARPS];
        wait_for_slots();
        int slot = ring.slot - ring.begin;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            const int first = key + w * BC;
            if (first < warp_end) {
                multiply_Q_Kt(S[w], by_row + Q_rows, by_column + w * RING_BYTES + slot);
                scale_and_mask(S[w], tau, score, seen.at(first), query, first, lane);
            }
        }
        ring.next_slot();

        // P = exp(S - m), l and m, and O = O + P V.
        wait_for_slots();
        slot = ring.slot - ring.begin;
        if (seen.all_see(key, min(key + WARPS * BC, warp_end))) {
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                if (key + w * BC < warp_end) {
                    RunningMaximum().exponentiate(own, S[w]);
                    add_P_V(own.O, S[w], by_row + w * RING_BYTES + slot);
                }
            }
        } else {
#pragma unroll 1
            for (int w = 0; w < WARPS && key + w * BC < warp_end; ++w) {
                ScoreTile P;
                choose_tile(P, S, w);
                RunningMaximum().exponentiate(own, P);
                add_P_V_where_seen(own.O, P, PairsInTile{w * RING_BYTES + slot, lane}, seen.at(key + w * BC), lane);
            }
        }
        ring.next_slot();
    }

    // O, l and m of the rows that see a key of the split: others may have no such part.
    __syncthreads();  // no warp reads a slot any more
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = lane / 4 + 8 * i;
        const float l = quad_sum(own.l[i]);
        if (lane % 4 == 0 && to[i] > split_first) {
            const size_t stat = rows.in_parts(warp * BR + row);
            l_split[stat] = l;
            m_split[stat] = own.m[i];
        }
#pragma unroll
        for (int n = 0; n < TD; ++n) {
            *reinterpret_cast<float2 *>(O_element(warp, row, 8 * n + lane % 4 * 2)) =
                make_float2(own.O[n][2 * i], own.O[n][2 * i + 1]);
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < BR; ++row) {
        if (warp_ends[row] <= split_first) continue;
        float *const O_row = O_split + rows.in_parts(warp * BR + row) * D;
        for (int e = lane; e < D; e += 32) O_row[e] = *O_element(warp, row, e);
    }
}

// Step 2: attention of 16 rows of the query heads that share a key/value head of one sequence, to a split of the keys that are
// its own.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void cascade_suffix(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const int *__restrict__ table, const int *__restrict__ lengths, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int prefix, int most_splits, int q_len, int table_len,
    int kv_heads, int group, float tau, Limits limits)
{
    __shared__ int pages[PAGES];
    const int lane = threadIdx.x % 32, sequence = blockIdx.z;
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
    const int first_row = blockIdx.x % row_tiles * BR, kv_head = blockIdx.x / row_tiles % kv_heads;
    const int split = blockIdx.x / row_tiles / kv_heads;
    const int rows = min(BR, group_rows - first_row);
    const int kv_len = lengths[sequence], shared_end = shared_keys(kv_len, prefix);

    // The keys of the split that a row of this tile sees: up to the last that its last query sees, and some rows see fewer.
    // Where the rows of two heads meet, the last query of all is among them, and the first.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= q_len;
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int split_first = shared_end + split * SPLIT;
    const int end = min(split_first + SPLIT, run.end(min(last_query, q_len - 1)));
    if (split_first >= end) return;  // no row asks for it

    const int first_page = split_first / PAGE;
    load_pages(pages, table + (size_t)sequence * table_len + first_page, (end - 1) / PAGE - first_page + 1);

    const int query[2] = {(first_row + lane / 4) % q_len, (first_row + lane / 4 + 8) % q_len};
    const KeysOfPages keys = {FirstKey<Window>(split_first), K, V, pages, split_first, end, first_page, kv_head, kv_heads};
    const EndsOfRows seen = {{run.end(query[0]), run.end(query[1])}, run.end(heads_meet ? 0 : first_query)};
    const Terms<> score[2] = {};
    const size_t first_of_Q = ((size_t)sequence * kv_heads + kv_head) * group_rows + first_row;
    const Rows own = attend_to_split(Q + first_of_Q * D, rows, tau, keys, seen, score, query);

    const size_t part = (size_t)sequence * most_splits + splits_of(shared_end) + split;
    const size_t stat = (part * kv_heads + kv_head) * group_rows + first_row;
    put_warps_together(own, O_split + stat * D, l_split + stat, m_split + stat, rows);
}

// Step 3: the parts of a row, of the prefix and of the sequence's own keys, put together. What a row sees nothing of is not
// read: it may not have been written.
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void cascade_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, int prefix, int most_splits, int q_len,
    int sequence_rows, Limits limits)
{
    const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
    const int sequence = row / sequence_rows, kv_len = lengths[sequence], shared_end = shared_keys(kv_len, prefix);
    const int end = limits.of_sequence(sequence, q_len, kv_len).end(row % q_len);
    const int splits = splits_of(min(end, shared_end)) + splits_of(max(end - shared_end, 0));
    const size_t first_stat = (size_t)sequence * most_splits * sequence_rows + row % sequence_rows;
    combine_splits<HAS_FEW_SPLITS>(O + (size_t)row * D, lse + row, O_split, l_split, m_split, first_stat, sequence_rows, splits,
                                   0.0f, MINUS_INFINITY);
}
