// PagedAttention with the online softmax: Kwon et al. 2023, arXiv 2309.06180, section 4.1, in tiles as FlashAttention-2
// has them. What is loaded, multiplied and reduced is in _tiles/tiles.cuh; Limits, Scores, Sink, Window, Chunks and Pool, types
// that the plan chooses, are in _features/ and _paged/. The Numba twin is numba_kernel.py.
//
// Compile-time parameters besides: PAGE (rows of a page), a multiple of BC, so that no tile lies in two pages.

static_assert(PAGE % BC == 0, "a tile of keys lies in one page");

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void paged(
    const stored *__restrict__ Q, const Pool K, const Pool V,
    const int *__restrict__ table, const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse,
    Chunks chunks, int table_len, int group, float tau, Limits limits, Scores scores, Sink sink)
{
    __shared__ __align__(16) float Q_tile[BR * LD];
    __shared__ __align__(16) float KV_tile[BC * LD];  // K_j, then V_j
    __shared__ __align__(16) float P_tile[P_ROWS * LP];
    __shared__ __align__(16) float l_tile[P_ROWS];
    __shared__ __align__(16) float m_tile[P_ROWS];

    // The block owns rows of the query heads that share a key/value head of one sequence. They are counted through: row r of the
    // group is query r % q_len.
    const int sequence = blockIdx.z, kv_head = blockIdx.y, kv_heads = gridDim.y;
    const int first_row = blockIdx.x * BR;
    const auto chunk = chunk_of(chunks, sequence);
    const int q_len = chunk.q_len, rows = min(BR, group * q_len - first_row);
    if constexpr (decltype(chunk)::MAY_BE_EMPTY) {
        if (rows <= 0) return;
    }
    const auto own = chunk.rows(sequence, kv_head, kv_heads, group, first_row);
    const int *const pages = table + (size_t)sequence * table_len;
    const int kv_len = lengths[sequence];

    load_tile<BR>(Q_tile, own.of(Q), rows);

    // O = 0, l = 0, m = -inf, on chip. A sink is a key before all others, without a value. Each row of this thread is a query of
    // a head.
    float O_acc[TM][TD], l[TM], m[TM];
    int query[TM];
    decltype(scores.of_head(0, 0, 0)) score[TM];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = first_row + row_of(i), head = kv_head * group + min(row / q_len, group - 1);
        query[i] = row % q_len;
        score[i] = scores.of_head(head, q_len, kv_len);
        l[i] = Sink::WEIGHT;
        m[i] = sink.logit(head);
#pragma unroll
        for (int j = 0; j < TD; ++j) O_acc[i][j] = 0.0f;
    }

    // The keys of the block are those from the first that its first query sees to the last that its last one does, and some
    // rows see fewer. Where the rows of two heads meet, the last query of all is among them, and the first.
    const int first_of_rows = first_row % q_len, last_of_rows = first_of_rows + rows - 1;
    const bool heads_meet = last_of_rows >= q_len;
    const int first_query = heads_meet ? 0 : first_of_rows, last_query = min(last_of_rows, q_len - 1);
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int end_by_first = run.end(first_query), end_by_last = run.end(last_query);
    const int first_tile = Window::first(run, first_query) / BC * BC;
    size_t place = 0;
    for (int first_key = first_tile; first_key < end_by_last; first_key += BC) {
        const int keys = min(BC, kv_len - first_key);

        // Where the tile lies: the table says it of each page once.
        if (first_key % PAGE == 0 || (first_tile != 0 && first_key == first_tile))
            place = place_of_page(K, pages[first_key / PAGE], kv_heads, kv_head);
        const int row_of_page = first_key % PAGE;
        const auto K_rows = rows_of_place(K, place, kv_head, row_of_page), V_rows = rows_of_place(V, place, kv_head, row_of_page);

        // Load K_j, once no thread reads V_(j-1) any more.
        __syncthreads();
        load_tile<BC>(KV_tile, K_rows, keys);
        __syncthreads();

        // S = tau Q K_j^T.
        float S[TM][TN];
        multiply_Q_Kt(S, Q_tile, KV_tile);
        SeenInTile<AllTiles::Pairs> seen = {
            {}, {}, max(Window::first(run, last_query, first_key), 0), min(end_by_first - first_key, keys)};
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            seen.first[i] = Window::first(run, query[i], first_key);
            seen.end[i] = min(run.unclipped_end(query[i]) - first_key, keys);
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const float scored = score[i](tau * S[i][j], query[i], first_key + key_of(j));
                S[i][j] = seen.in_run(i, key_of(j)) ? scored : MINUS_INFINITY;
            }
        }

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

        // Load V_j, once no thread reads K_j any more.
        __syncthreads();
        load_tile<BC>(KV_tile, V_rows, keys);
        __syncthreads();

        // O = O + P V_j.
        add_P_V(O_acc, P_tile, KV_tile, keys, seen);
    }

    // O = O / l, gathered where Q was. A row that saw nothing has l = 0, or that of the sink: its O stays 0.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float inverse = l[i] == 0.0f ? 0.0f : 1.0f / l[i];
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (has_row(i) && has_element(j)) Q_tile[row_of(i) * LD + element_of(j)] = O_acc[i][j] * inverse;
        }
        if (thread_column() == 0) {
            l_tile[row_of(i)] = l[i];
            m_tile[row_of(i)] = m[i];
        }
    }
    __syncthreads();
    store_tile(own.of(O), Q_tile, rows);

    // lse = m + log(l), which is -inf, or the sink, where nothing was seen.
    const int t = thread_index();
    if (t < rows) lse[own.stat(t)] = m_tile[t] + logf(l_tile[t]);
}
