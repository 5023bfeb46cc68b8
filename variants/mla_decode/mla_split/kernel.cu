// Latent attention, decoding, in absorbed form: DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1, with the
// keys of a sequence split over blocks (Flash-Decoding: Dao, Haziza, Massa and Sizov 2023). What is loaded, multiplied and
// reduced is in _tiles/tiles.cuh, for the latent part of rows; Limits, a type that the plan chooses, is in _features/. The
// Numba twin is numba_kernel.py.
//
// Compile-time parameters besides: D = DV (elements of the latent part), ROPE (elements of the rest), PAGE (rows of a
// page), a multiple of BC, so that no tile lies in two pages, and SPLIT (keys per block), a multiple of BC.

static_assert(PAGE % BC == 0 && SPLIT % BC == 0, "a tile of keys lies in one page, and in one split");
static_assert(D == DV, "values are the latent part of keys");

constexpr int WIDTH = D + ROPE;  // elements of a row of Q and of the cache
constexpr int LR = leading_dimension(ROPE);
constexpr int ROPE_STEP = step_over(ROPE);

// `rows` rows of the cache or of Q, COLUMNS elements of each -> a tile.
template <int EXTENT, int COLUMNS>
__device__ __forceinline__ void load_columns(float *tile, const stored *first, int rows)
{
    load_tile<EXTENT, COLUMNS>(tile, StridedRows<const stored, 1, COLUMNS>{first, WIDTH}, rows);
}

// S += Q^R (K^R)^T, the rest of each sum.
__device__ __forceinline__ void add_rope_scores(float (&S)[TM][TN], const float *Q_rope, const float *C_rope)
{
#pragma unroll 2
    for (int k = 0; k < ROPE; k += ROPE_STEP) {
        float key[TN][ROPE_STEP], q[TM][ROPE_STEP];
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int e = 0; e < ROPE_STEP; ++e) key[j][e] = C_rope[tile_key(j) * LR + k + e];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int e = 0; e < ROPE_STEP; ++e) q[i][e] = Q_rope[tile_row(i) * LR + k + e];
#pragma unroll
        for (int e = 0; e < ROPE_STEP; ++e)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) S[i][j] += q[i][e] * key[j][e];
    }
}

// Attention of a split of the keys on its own.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void mla_split(
    const stored *__restrict__ Q, const stored *__restrict__ C, const int *__restrict__ table,
    const int *__restrict__ lengths, float *__restrict__ O_split, float *__restrict__ l_split,
    float *__restrict__ m_split, int q_len, int table_len, int heads, float tau, Limits limits)
{
    extern __shared__ __align__(16) float Q_tile[];
    float *const C_tile = Q_tile + BR * LD;  // the latent part of keys, which is their values, too
    float *const Q_rope = C_tile + BC * LD, *const C_rope = Q_rope + BR * LR;
    float *const P_tile = C_rope + BC * LR;
    float *const l_tile = P_tile + P_ROWS * LP, *const m_tile = l_tile + P_ROWS;

    // All heads of a sequence read the same rows of the cache. Their rows of Q lie one after the other, and are counted
    // through: row r of a sequence is query r % q_len. The block owns BR of them, and a split of the keys. Blocks with the
    // same keys are neighbours.
    const int sequence = blockIdx.z, split = blockIdx.y, splits = gridDim.y;
    const int sequence_rows = heads * q_len, first_row = blockIdx.x * BR;
    const int rows = min(BR, sequence_rows - first_row);
    const int *const pages = table + (size_t)sequence * table_len;
    const int kv_len = lengths[sequence];

    // The keys of the split that a row of this tile sees: up to the last that its last query sees, and some rows see fewer.
    // Where the rows of two heads meet, the last query of all is among them, and the first.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= q_len;
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int end_by_first = run.end(heads_meet ? 0 : first_query);
    const int split_first = split * SPLIT, end = min(split_first + SPLIT, run.end(min(last_query, q_len - 1)));
    if (split_first >= end) return;  // no row asks for it

    const stored *const Q_rows = Q + ((size_t)sequence * sequence_rows + first_row) * WIDTH;
    load_columns<BR, D>(Q_tile, Q_rows, rows);
    load_columns<BR, ROPE>(Q_rope, Q_rows + D, rows);

    // O = 0, l = 0, m = -inf, on chip.
    float O_acc[TM][TD], l[TM], m[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        l[i] = 0.0f;
        m[i] = MINUS_INFINITY;
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    size_t page_row = 0;
    for (int first_key = split_first; first_key < end; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        // Where the tile lies: the table says it of each page once.
        if (first_key % PAGE == 0 || first_key == split_first) page_row = (size_t)pages[first_key / PAGE] * PAGE;
        const stored *const C_rows = C + (page_row + first_key % PAGE) * WIDTH;

        // Load C_j, once no thread reads C_(j-1) any more. It is loaded once for all that follows.
        __syncthreads();
        load_columns<BC, D>(C_tile, C_rows, keys);
        load_columns<BC, ROPE>(C_rope, C_rows + D, keys);
        __syncthreads();

        // S = tau (Q^C C_j^T + Q^R (K_j^R)^T).
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, C_tile);
        add_rope_scores(S, Q_rope, C_rope);
        SeenInTile<AllTiles::Pairs> seen = {{}, {}, 0, min(end_by_first - first_key, keys)};
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            seen.end[i] = min(run.unclipped_end((first_row + row_of(i)) % q_len) - first_key, keys);
        }
        scale_and_mask(S, tau, Terms<>(), seen, first_row, first_key);

        // m = max(m, rowmax(S)), P = exp(S - m), l = exp(m_old - m) l + rowsum(P), O = exp(m_old - m) O.
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float m_new = fmaxf(m[i], row_max(S[i]));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;

            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float p = exp_below(S[i][j], m_new);
                P_tile[row_of(i) * LP + key_of(j)] = p;
                sum += p;
            }
            l[i] = correction * l[i] + row_sum(sum);
#pragma unroll
            for (int j = 0; j < TD; ++j) O_acc[i][j] *= correction;
        }

        // O = O + P C_j, once P is complete.
        __syncthreads();
        add_P_V(O_acc, P_tile, C_tile, keys, seen);
    }

    // O, which is not divided yet, gathered where Q was, and l and m.
    __syncthreads();
    gather(Q_tile, O_acc);
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        if (thread_column() == 0) {
            l_tile[row_of(i)] = l[i];
            m_tile[row_of(i)] = m[i];
        }
    }
    __syncthreads();
    const size_t first_stat = ((size_t)sequence * splits + split) * sequence_rows + first_row;
    store_tile(O_split + first_stat * D, Q_tile, rows);
    const int t = thread_index();
    if (t < rows) {
        l_split[first_stat + t] = l_tile[t];
        m_split[first_stat + t] = m_tile[t];
    }
}
