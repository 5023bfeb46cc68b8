// What the algorithms of the backward pass do with tiles besides tiles.cuh, which is put before this text. The Numba twin
// is numba_backward.py: same names, same order.
//
// A block that keeps dK_j and dV_j on chip owns keys, as a block of the forward pass owns rows. So the functions of
// tiles.cuh are used the other way round: what they call a row of a tile is a key, and what they call a key is a query
// row; BR is the papers' B_c and BC their B_r. S, P, dP and dS lie on chip transposed, a key per row.
constexpr int KEYS = BR;
constexpr int ROWS = BC;
constexpr int TQ = (ROWS + TY - 1) / TY;  // query rows per thread

// Query rows that see a key of a tile: first_seeing up to, not including, end_seeing; none where that is not beyond it.
__device__ __forceinline__ int first_seeing(int first_key, int q_len, int kv_len, int after)
{
    return max(first_key + q_len - kv_len - after, 0);
}
__device__ __forceinline__ int end_seeing(int first_key, int keys, int q_len, int kv_len, int before)
{
    return min(first_key + keys + q_len - kv_len + before, q_len);
}

// For each key of this thread the rows of a tile of `rows` rows that see it, counted from the tile's first.
__device__ __forceinline__ void seen_by_in_tile(int (&first)[TM], int (&end)[TM], int first_key, int first_row, int rows,
                                                int q_len, int kv_len, int before, int after)
{
    span_in_tile(first, end, first_key, first_row, rows, kv_len, q_len, after, before);
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

// X += W^T Y_i over the tile's `rows` rows in ascending order: dV_j += P^T dO_i, dK_j += dS^T Q_i. W_tile is W^T. Where
// not all keys are seen, a row is not even multiplied by its zero weight, for Y may hold NaN or inf.
__device__ __forceinline__ void add_Wt_Y(float (&X)[TM][TD], const float *W_tile, const float *Y_tile, int first_key,
                                         int keys, int first_row, int rows, int q_len, int kv_len, int before, int after,
                                         const int (&first)[TM], const int (&end)[TM])
{
    const int own_row = first_key + q_len - kv_len - first_row;
    add_P_V(X, W_tile, Y_tile, own_row + keys - 1 - after, own_row + before + 1, rows, first, end);
}

// dQ_i += dS K_j over the tile's `keys` keys in ascending order, each only where the row sees it; own_key: the key on whose
// diagonal the tile's first row lies. dS_tile is dS^T.
template <bool ALL_SEEN>
__device__ __forceinline__ void add_dS_K(float (&dQ)[TQ][TD], const float *dS_tile, const float *K_tile, int keys,
                                         int own_key, int before, int after)
{
#pragma unroll(ALL_SEEN ? 4 : 1)
    for (int k = 0; k < keys; ++k) {
        float key[TD];
#pragma unroll
        for (int j = 0; j < TD; ++j) key[j] = K_tile[k * LD + tile_element(j)];
#pragma unroll
        for (int i = 0; i < TQ; ++i) {
            const int own = own_key + row_of(i);
            const bool seen = ALL_SEEN || (own - before <= k && k < own + after + 1);
            const float ds = dS_tile[k * LP + min(row_of(i), ROWS - 1)];
#pragma unroll
            for (int j = 0; j < TD; ++j) dQ[i][j] = seen ? dQ[i][j] + ds * key[j] : dQ[i][j];
        }
    }
}

// dQ_i = dS K_j.
__device__ __forceinline__ void multiply_dS_K(float (&dQ)[TQ][TD], const float *dS_tile, const float *K_tile,
                                              int first_key, int keys, int first_row, int rows, int q_len, int kv_len,
                                              int before, int after)
{
    const int own_key = first_row + kv_len - q_len - first_key;  // of the tile's first row
    const bool all_seen = own_key + rows - 1 - before <= 0 && own_key + after + 1 >= keys;
#pragma unroll
    for (int i = 0; i < TQ; ++i)
#pragma unroll
        for (int j = 0; j < TD; ++j) dQ[i][j] = 0.0f;
    if (all_seen) {
        add_dS_K<true>(dQ, dS_tile, K_tile, keys, own_key, before, after);
    } else {
        add_dS_K<false>(dQ, dS_tile, K_tile, keys, own_key, before, after);
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
