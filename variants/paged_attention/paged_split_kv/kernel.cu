// Flash-Decoding (Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference") over sequences of any
// lengths whose keys lie in pages (Kwon et al. 2023, arXiv 2309.06180). _mma/mma.cuh, splits.cuh and combine.cuh are put
// before this text; attention/split_kv is the same for sequences of one length, side by side.
//
// Compile-time parameters besides those of splits.cuh: PAGE (rows of a page), BLOCKS_PER_SM (at least).
//
// Splits are counted through all sequences, each of which has as many as its length takes: a sequence without keys has
// none. A block takes one split, and 16 rows of the query heads that share one key/value head of its sequence.

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");
constexpr int PAGES = (SPLIT - 1) / PAGE + 2;  // that the keys of a split may lie in
static_assert(PAGES <= 2 * THREADS, "two entries of the table per thread");

__device__ __forceinline__ int splits_of(int length) { return (length + SPLIT - 1) / SPLIT; }

// Over the lanes of a warp: the sum of x of this lane and those before it.
__device__ __forceinline__ int lanes_before(int x, int lane)
{
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffff, x, distance);
        x += lane >= distance ? other : 0;
    }
    return x;
}

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

// Step 2: attention of each split on its own. O is not divided by l yet.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void paged_split_kv(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const int *__restrict__ table, const int *__restrict__ lengths, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int batch, int q_len, int table_len, int kv_heads,
    int group, float tau)
{
    __shared__ Work found;
    __shared__ int pages[PAGES];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;

    // Step 1: this block's rows, sequence, split and key/value head. Blocks with the same keys are neighbours, and so are
    // those whose keys lie in the same pages.
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
    const int first_row = blockIdx.x % row_tiles * BR, kv_head = blockIdx.x / row_tiles % kv_heads;
    const int split = blockIdx.x / row_tiles / kv_heads;
    const int rows = min(BR, group_rows - first_row);
    if (warp == 0) {
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
    const int split_first = (split - found.first_split) * SPLIT;
    const int end = min(split_first + SPLIT, end_seen(min(last_query, q_len - 1), q_len, kv_len, 0));
    const int to_for_all = end_seen(heads_meet ? 0 : first_query, q_len, kv_len, 0);
    if (split_first >= end) return;  // nobody will ask for it

    // Where they lie. All of it at once: a copy would wait for its entry of the table otherwise.
    const int first_page = split_first / PAGE, page_count = (end - 1) / PAGE - first_page + 1;
    const int *const entries = table + (size_t)sequence * table_len + first_page;
#pragma unroll
    for (int i = 0; i < (PAGES + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + t;
        if (at < page_count) pages[at] = entries[at];
    }
    const auto element_of_key = [&](int key) {
        return (((size_t)pages[key / PAGE - first_page] * kv_heads + kv_head) * PAGE + key % PAGE) * D;
    };

    if constexpr (D % 16 != 0) {
        // Rows are not copied as far as they are multiplied.
        for (int i = t; i < (Q_TILE + SLOT_BYTES) / 16; i += THREADS) reinterpret_cast<uint4 *>(shared)[i] = uint4();
    }
    __syncthreads();

    // Q, and then K and V of one tile after the other, SLOTS - 1 copies ahead of where they are read.
    const int ring = warp * RING_BYTES, first_key = split_first + warp * BC;
    int copied = 0, copied_key = first_key;
    auto copy_next = [&]() {
        if (copied_key < end) {
            const stored *const source = (copied % 2 == 0 ? K : V) + element_of_key(copied_key);
            copy_tile<32>(ring + copied % SLOTS * SLOT_BYTES, source, 0, end - copied_key, lane);
        }
        commit_copies();
        if (copied++ % 2 == 1) copied_key += WARPS * BC;
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
    int row_to[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) row_to[i] = end_seen((first_row + lane / 4 + 8 * i) % q_len, q_len, kv_len, 0);

#pragma unroll 1
    for (int key = first_key; key < end; key += WARPS * BC) {
        const int from[2] = {0, 0}, to[2] = {row_to[0] - key, row_to[1] - key};

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
                S[n][e] = k < to[e / 2] ? tau * S[n][e] : MINUS_INFINITY;
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
        if (min(key + BC, end) <= to_for_all) {
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

    const size_t split_stat = ((size_t)split * kv_heads + kv_head) * group_rows + first_row;
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
extern "C" __global__ __launch_bounds__(32 * MOST_COMBINE_WARPS) void paged_split_kv_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, int q_len, int sequence_rows)
{
    __shared__ Work found;
    const size_t row = blockIdx.x;
    const int sequence = blockIdx.x / sequence_rows, query = blockIdx.x % q_len;
    if (threadIdx.x < 32) {
        const Work work = work_of_sequence(lengths, sequence, threadIdx.x);
        if (threadIdx.x == 0) found = work;
    }
    __syncthreads();
    const int splits = splits_of(end_seen(query, q_len, found.kv_len, 0));
    const size_t first_stat = (size_t)found.first_split * sequence_rows + blockIdx.x % sequence_rows;
    combine_splits(O + row * D, lse + row, O_split, l_split, m_split, first_stat, sequence_rows, splits, 0.0f,
                   MINUS_INFINITY);
}
