// What the algorithms of the backward pass do with tiles in addition to tiles.cuh, which is put before this text. The Numba
// twin is numba_backward.py: same names, same order.
//
// A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. Such kernels use tiles.cuh
// with rows and keys exchanged: BR is the papers' B_c, BC their B_r, and the limits are mirrored. S, P, dP and dS are stored
// transposed, a key per row, so that add_P_V computes dV_j += P^T dO_i and dK_j += dS^T Q_i.

constexpr int KEYS = BR, ROWS = BC;       // per tile, if a block owns keys
constexpr int TQ = (ROWS + TY - 1) / TY;  // query rows per thread
constexpr int TK = elements_of(D);        // elements per thread and row of dQ and dK; TD of dV
constexpr int LDV = leading_dimension(DV);

// Which rows see the keys of a block that owns keys. In `mirrored` rows are keys, and keys are rows.
template <class Run> struct RowsSeeing {
    BlockLimits<Run> mirrored;
    int first_key, keys;     // of the block
    int start_row, end_row;  // some row sees a key: tiles of rows from start_row to end_row - 1
    __device__ __forceinline__ bool exist() const { return start_row < end_row; }

    // Which of a tile's `rows` rows see each of this thread's keys. `pairs`: of listed tiles, which are mirrored, too.
    template <class Pairs = AllTiles::Pairs>
    __device__ __forceinline__ auto in_tile(int first_row, int rows, const Pairs &pairs = {}) const
    {
        return seen_in_tile(mirrored, pairs, first_key, first_row, rows);
    }
};

// `block`: of keys.
template <class MirroredLimits>
__device__ __forceinline__ auto rows_seeing(const MirroredLimits &limits, const RowBlock &block, int q_len, int kv_len)
{
    const auto mirrored = limits.template of_block<KEYS>(block, kv_len, q_len);
    const int first_row = mirrored.first_key, end_row = mirrored.end_key;
    return RowsSeeing<decltype(mirrored.run)>{mirrored, block.first_row, block.rows, first_row / ROWS * ROWS,
                                              first_row < end_row ? end_row : 0};
}

// The sequence of a block that owns keys, and the keys that it owns, of a head of K and V. The grid is (heads, blocks of a head,
// sequences). `mirrored`: of Sequences, as of the limits, rows are keys, and keys are rows.
template <class MirroredSequences>
__device__ __forceinline__ auto own_sequence_across(const MirroredSequences &mirrored, int q_len, int kv_len)
{
    return mirrored.at(blockIdx.z, blockIdx.y * KEYS, kv_len, q_len);
}
template <class Own> __device__ __forceinline__ RowBlock own_keys_across(const Own &own)
{
    const int first_key = blockIdx.y * KEYS, keys = min(KEYS, own.q_len - first_key);
    return {(int)own.batch, (int)blockIdx.x, (int)blockIdx.y, (int)gridDim.y, first_key, keys};
}

// The first `rows` rows of X = 0.
__device__ __forceinline__ void zero_rows(float *X, int rows)
{
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) X[e] = 0.0f;
    }
}

// Of float32 -> as elements are stored.
__device__ __forceinline__ void round_rows(stored *rounded, const float *X, int rows)
{
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(X[e], &rounded[e]);
    }
}

// D_i = rowsum(dO_i o O_i). TX lanes share a row. All threads run the same number of iterations: shuffles need whole warps.
__device__ __forceinline__ void row_dots(float *delta_tile, const float *dO_tile, const float *O_tile)
{
#pragma unroll 1
    for (int i = 0; i < TQ; ++i) {
        const int r = min(row_of(i), ROWS - 1);
        float sum = 0.0f;
#pragma unroll 4
        for (int c = 0; c < TD; ++c) {
            const int e = key_of(c);
            if (e < DV) sum += dO_tile[r * LDV + e] * O_tile[r * LDV + e];
        }
        sum = row_sum(sum);
        if (thread_column() == 0 && row_of(i) < ROWS) delta_tile[r] = sum;
    }
}

// The same of ROWS rows in memory.
template <class GradientRows, class Rows>
__device__ __forceinline__ void row_dots_in_memory(float *delta, GradientRows dO, Rows O, int rows)
{
    __shared__ __align__(16) float O_tile[ROWS * LDV], dO_tile[ROWS * LDV], delta_tile[ROWS];
    load_tile<ROWS, DV>(O_tile, O, rows);
    load_tile<ROWS, DV>(dO_tile, dO, rows);
    __syncthreads();
    row_dots(delta_tile, dO_tile, O_tile);
    __syncthreads();
    if (thread_index() < rows) delta[thread_index()] = delta_tile[thread_index()];
}

// L_i and D_i of EXTENT rows, of which there are `rows`; zeros after these.
template <int EXTENT>
__device__ __forceinline__ void load_statistics(float *lse_tile, float *delta_tile, const float *lse, const float *delta,
                                                int rows)
{
    const int t = thread_index();
    if (t < EXTENT) {
        lse_tile[t] = t < rows ? lse[t] : 0.0f;
        delta_tile[t] = t < rows ? delta[t] : 0.0f;
    }
}

// P = exp(score(tau Q_i K_j^T) - L_i) and dS = P o (dP - D_i), where dP = dO_i V_j^T; P and dS are transposed, and 0 where the
// row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. dS_tile gets dS times the
// derivative of the score, which is the gradient of tau Q_i K_j^T.
//
// `tau`: divided by the cap, if there is one. `rows`: of the tile. Under dropout dP is 0 if the weight is dropped, and else
// multiplied by `factor`; P_tile gets the weights that are kept, and dV_j is multiplied by the factor later. A bias of
// -infinity hides a key, even from a row that sees no other one, whose L_i is -infinity. `dbias` adds dS to the bias's gradient.
// `pairs`: as for RowsSeeing::in_tile.
template <class Run, class Score, class Drawn, class DBiasOfHead, class Pairs = AllTiles::Pairs>
__device__ __forceinline__ void weights_and_gradients(float *P_tile, float *dS_tile, const float *K_tile,
                                                      const float *V_tile, const float *Q_tile, const float *dO_tile,
                                                      const float *lse_tile, const float *delta_tile, float tau,
                                                      const RowsSeeing<Run> &seeing, const Score &score, const Drawn &drawn,
                                                      float factor, const DBiasOfHead &dbias, int first_row, int rows,
                                                      const Pairs &pairs = {})
{
    const auto seen = seeing.in_tile(first_row, rows, pairs);
    float S[TM][TN], dP[TM][TN];
    multiply_Q_Kt(S, K_tile, Q_tile);
    multiply_Q_Kt<DV>(dP, V_tile, dO_tile);
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float lse_j = lse_tile[tile_key(j)], delta_j = delta_tile[tile_key(j)];
        // A thread's keys are TY apart, which is a multiple of 8.
        const auto kept = drawn.template kept<(KEYS + 7) / 8>(first_row + key_of(j), seeing.first_key, thread_row() % 8);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            bool sees = seen.sees(i, key_of(j));
            if constexpr (DBiasOfHead::IS_BIASED) sees = sees && row_of(i) < seeing.keys;
            const Scored s = !DBiasOfHead::IS_BIASED || sees
                                 ? score.with_derivative(tau * S[i][j], first_row + key_of(j), seeing.first_key + row_of(i))
                                 : Scored{0.0f, 1.0f};
            if constexpr (DBiasOfHead::IS_BIASED) sees = sees && s.score != MINUS_INFINITY;
            const float p = sees ? __expf(s.score - lse_j) : 0.0f, derivative = sees ? s.derivative : 1.0f;
            const float dp = kept.or_zero(factor * dP[i][j], row_of(i) / 8);
            P_tile[row_of(i) * LP + key_of(j)] = kept.or_zero(p, row_of(i) / 8);
            const float dS = sees ? p * (dp - delta_j) : 0.0f;
            dS_tile[row_of(i) * LP + key_of(j)] = derivative * dS;
            dP[i][j] = dS;
        }
    }
    dbias.add(dP, seeing.first_key, seeing.keys, first_row, rows);
}

// dQ_i += dS K_j over the tile's `keys` keys in ascending order, each only where the row sees it. dS_tile is dS^T.
template <bool ALL_SEEN, class Run, class Pairs>
__device__ __forceinline__ void add_dS_K(float (&dQ)[TQ][TK], const float *dS_tile, const float *K_tile, const Run &run,
                                         const Pairs &pairs, int first_key, int keys, int first_row)
{
#pragma unroll(ALL_SEEN ? 4 : 1)
    for (int k = 0; k < keys; ++k) {
        float key[TK];
#pragma unroll
        for (int j = 0; j < TK; ++j) key[j] = K_tile[k * LD + tile_element<D>(j)];
        const int first = ALL_SEEN ? 0 : run.first(first_key + k) - first_row;
        const int end = ALL_SEEN ? 0 : run.end(first_key + k) - first_row;
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
            bool sees = ALL_SEEN || (first <= row_of(i) && row_of(i) < end);
            if (!ALL_SEEN && pairs.hides_some()) sees = sees && pairs.sees(k, row_of(i));
            const float ds = dS_tile[k * LP + min(row_of(i), ROWS - 1)];
#pragma unroll
            for (int j = 0; j < TK; ++j) dQ[i][j] = sees ? dQ[i][j] + ds * key[j] : dQ[i][j];
        }
    }
}

// dQ_i = dS K_j, of `rows` rows and `keys` keys. `seen`: of the tile.
template <class Run, class Pairs>
__device__ __forceinline__ void multiply_dS_K(float (&dQ)[TQ][TK], const float *dS_tile, const float *K_tile,
                                              const RowsSeeing<Run> &seeing, const SeenInTile<Pairs> &seen, int keys,
                                              int first_row, int rows)
{
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
        for (int j = 0; j < TK; ++j) dQ[i][j] = 0.0f;
    if (seen.first_by_all == 0 && seen.end_by_all == rows && !seen.pairs.hides_some()) {
        add_dS_K<true>(dQ, dS_tile, K_tile, seeing.mirrored.run, seen.pairs, seeing.first_key, keys, first_row);
    } else {
        add_dS_K<false>(dQ, dS_tile, K_tile, seeing.mirrored.run, seen.pairs, seeing.first_key, keys, first_row);
    }
}

// What each thread has of dQ_i, times a factor -> a tile of ROWS rows.
__device__ __forceinline__ void gather_dQ(float *tile, const float (&dQ)[TQ][TK], float factor)
{
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
        for (int j = 0; j < TK; ++j) {
            if (row_of(i) < ROWS && has_element<D>(j)) tile[row_of(i) * LD + element_of<D>(j)] = factor * dQ[i][j];
        }
}

// Write dK_j, which is multiplied by tau, and dV_j, gathered where K_j and V_j were, once no thread reads these any more.
template <class KeyRows, class ValueRows>
__device__ __forceinline__ void store_dK_dV(KeyRows dK, ValueRows dV, float *K_tile, float *V_tile,
                                            const float (&dK_acc)[TM][TK], const float (&dV_acc)[TM][TD], float tau,
                                            float factor, int keys)
{
    __syncthreads();
    gather<D>(K_tile, dK_acc, tau);
    gather(V_tile, dV_acc, factor);
    __syncthreads();
    store_tile(dK, K_tile, keys);
    store_tile<DV>(dV, V_tile, keys);
}

// In a block that owns rows, so that S and dP have a row per row: dP becomes dS = P o (dP - D_i), and S the gradient of
// tau Q_i K_j^T, which is dS times the derivative of the score; both are 0 where the row does not see the key.
template <class DBias, class Score, class Pairs>
__device__ __forceinline__ void row_gradients(float (&S)[TM][TN], float (&dP)[TM][TN], const float *lse_tile,
                                              const float *delta_tile, float tau, const Score &score,
                                              const SeenInTile<Pairs> &seen, int first_row, int rows, int first_key)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const float lse_i = lse_tile[tile_row(i)], delta_i = delta_tile[tile_row(i)];
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            bool sees = seen.sees(i, key_of(j));
            if constexpr (DBias::IS_BIASED) sees = sees && row_of(i) < rows;
            const Scored s = !DBias::IS_BIASED || sees
                                 ? score.with_derivative(tau * S[i][j], first_row + row_of(i), first_key + key_of(j))
                                 : Scored{0.0f, 1.0f};
            if constexpr (DBias::IS_BIASED) sees = sees && s.score != MINUS_INFINITY;
            const float p = sees ? __expf(s.score - lse_i) : 0.0f, derivative = sees ? s.derivative : 1.0f;
            dP[i][j] = sees ? p * (dP[i][j] - delta_i) : 0.0f;
            S[i][j] = derivative * dP[i][j];
        }
    }
}
