// What the algorithms of the backward pass do with tiles besides tiles.cuh, which is put before this text. The Numba twin
// is numba_backward.py: same names, same order.
//
// A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. So the functions of
// tiles.cuh are used the other way round: what they call a row of a tile is a key, and what they call a key is a query
// row; BR is the papers' B_c and BC their B_r. S, P, dP and dS lie on chip transposed, a key per row, so that add_P_V sums
// dV_j += P^T dO_i and dK_j += dS^T Q_i.
constexpr int KEYS = BR;
constexpr int ROWS = BC;
constexpr int TQ = (ROWS + TY - 1) / TY;  // query rows per thread

// Which rows see keys from first_key to last_key: some of them no row ahead of that which the tile of rows at `start` begins
// with, and none from `end` on, which is 0 where nobody does; all of them the rows from first_by_all to before end_by_all.
struct RowsSeeing {
    int start, end, first_by_all, end_by_all;
};

__device__ __forceinline__ RowsSeeing rows_seeing(int first_key, int last_key, int q_len, int kv_len, Limit ahead,
                                                  Limit behind)
{
    const int first = first_seen(first_key, kv_len, q_len, ahead), end = end_seen(last_key, kv_len, q_len, behind);
    const int first_by_all = first_seen(last_key, kv_len, q_len, ahead);
    const int end_by_all = end_seen(first_key, kv_len, q_len, behind);
    return {first / ROWS * ROWS, first < end ? end : 0, first_by_all, end_by_all};
}

// D_i = rowsum(dO_i o O_i). TX lanes share a row; all threads go round equally often, for shuffles want whole warps.
__device__ __forceinline__ void row_dots(float *delta_tile, const float *dO_tile, const float *O_tile)
{
#pragma unroll 1
    for (int i = 0; i < TQ; ++i) {
        const int r = min(row_of(i), ROWS - 1);
        float sum = 0.0f;
#pragma unroll 4
        for (int c = 0; c < TD; ++c) {
            const int e = key_of(c);
            if (e < D) sum += dO_tile[r * LD + e] * O_tile[r * LD + e];
        }
        sum = row_sum(sum);
        if (thread_column() == 0 && row_of(i) < ROWS) delta_tile[r] = sum;
    }
}

#ifdef DROPOUT
// Of the query head, and where its tile of rows begins; KEYS is a multiple of 8.
#define DROPOUT_PARAMETERS , const Dropout &dropout, int first_key, int first_row, float kept_factor
#else
#define DROPOUT_PARAMETERS
#endif

// P = exp(tau Q_i K_j^T - lse_i) and dS = P o (dO_i V_j^T - D_i), transposed, both 0 where the row does not see the key:
// chosen, not multiplied, so that NaN behind the mask stays there. first[i] to end[i]: the rows that see key i. Where a
// weight drops out P and dP are 0; elsewhere dP grows here, and P's product later.
__device__ __forceinline__ void weights_and_gradients(float *P_tile, float *dS_tile, const float *K_tile,
                                                      const float *V_tile, const float *Q_tile, const float *dO_tile,
                                                      const float *lse_tile, const float *delta_tile, float tau,
                                                      const int (&first)[TM], const int (&end)[TM] DROPOUT_PARAMETERS)
{
    float S[TM][TN], dP[TM][TN];
    multiply_Q_Kt(S, K_tile, Q_tile);
    multiply_Q_Kt(dP, V_tile, dO_tile);
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const float lse_j = lse_tile[tile_key(j)], delta_j = delta_tile[tile_key(j)];
#ifdef DROPOUT  // a thread's keys are TY apart
        const unsigned kept = dropout.kept<(KEYS + 7) / 8>(first_row + key_of(j), first_key, thread_row() % 8);
#endif
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const bool seen = first[i] <= key_of(j) && key_of(j) < end[i];
            const float p = seen ? __expf(tau * S[i][j] - lse_j) : 0.0f;
#ifdef DROPOUT
            const float dp = DROPPED(kept_factor * dP[i][j], kept, row_of(i) / 8);
            P_tile[row_of(i) * LP + key_of(j)] = DROPPED(p, kept, row_of(i) / 8);
#else
            const float dp = dP[i][j];
            P_tile[row_of(i) * LP + key_of(j)] = p;
#endif
            dS_tile[row_of(i) * LP + key_of(j)] = seen ? p * (dp - delta_j) : 0.0f;
        }
    }
}

// dQ_i += dS K_j over the tile's `keys` keys in ascending order, each only where the row sees it. dS_tile is dS^T.
template <bool ALL_SEEN>
__device__ __forceinline__ void add_dS_K(float (&dQ)[TQ][TD], const float *dS_tile, const float *K_tile, int first_key,
                                         int keys, int first_row, int q_len, int kv_len, Limit ahead, Limit behind)
{
#pragma unroll(ALL_SEEN ? 4 : 1)
    for (int k = 0; k < keys; ++k) {
        float key[TD];
#pragma unroll
        for (int j = 0; j < TD; ++j) key[j] = K_tile[k * LD + tile_element(j)];
        const int first = ALL_SEEN ? 0 : first_seen(first_key + k, kv_len, q_len, ahead) - first_row;
        const int end = ALL_SEEN ? 0 : end_seen(first_key + k, kv_len, q_len, behind) - first_row;
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
            const bool seen = ALL_SEEN || (first <= row_of(i) && row_of(i) < end);
            const float ds = dS_tile[k * LP + min(row_of(i), ROWS - 1)];
#pragma unroll
            for (int j = 0; j < TD; ++j) dQ[i][j] = seen ? dQ[i][j] + ds * key[j] : dQ[i][j];
        }
    }
}

// dQ_i = dS K_j, where all keys are seen by the tile's rows from first_by_all to end_by_all.
__device__ __forceinline__ void multiply_dS_K(float (&dQ)[TQ][TD], const float *dS_tile, const float *K_tile,
                                              int first_by_all, int end_by_all, int first_key, int keys, int first_row,
                                              int rows, int q_len, int kv_len, Limit ahead, Limit behind)
{
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) dQ[i][j] = 0.0f;
    if (first_by_all <= 0 && end_by_all >= rows) {
        add_dS_K<true>(dQ, dS_tile, K_tile, first_key, keys, first_row, q_len, kv_len, ahead, behind);
    } else {
        add_dS_K<false>(dQ, dS_tile, K_tile, first_key, keys, first_row, q_len, kv_len, ahead, behind);
    }
}

// Each thread's part of `factor` X -> a tile of EXTENT rows.
template <int EXTENT, int T>
__device__ __forceinline__ void gather(float *tile, const float (&X)[T][TD], float factor)
{
#pragma unroll
    for (int i = 0; i < T; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            if (row_of(i) < EXTENT && has_element(j)) tile[row_of(i) * LD + element_of(j)] = factor * X[i][j];
        }
}
