// The gradient of a bias without atomics: dS, summed over the batch and the axes that the bias does not vary over. A block owns
// BR rows and BC keys of one head of dbias, or all rows, keys or heads along an axis that the bias does not vary over, and
// goes through all that is summed in one order; S and dP are computed once more. What is loaded, multiplied and reduced is in
// _tiles/tiles.cuh and backward.cuh. The Numba twin is numba_of_bias.py.

// The grid is (tiles of keys, tiles of rows, heads), 1 along such an axis, whose stride is 0.
extern "C" __global__ __launch_bounds__(THREADS) void bwd_fa2_ordered_of_bias(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ lse, const float *__restrict__ delta,
    float *__restrict__ dbias, int batch, int heads, int q_len, int kv_len, int group, float score_tau, int head_stride,
    int row_stride, int key_stride, Limits limits, TileOrder order, Scores scores, Layout layout, GradientLayout gradients)
{
    __shared__ __align__(16) float Q_tile[BR * LD], dO_tile[BR * LDV], K_tile[BC * LD], V_tile[BC * LDV];
    __shared__ __align__(16) float dS_tile[P_ROWS * LP], lse_tile[BR], delta_tile[BR];

    const int own_head = blockIdx.z, own_row = blockIdx.y * BR, own_key = blockIdx.x * BC;
    const int end_head = head_stride != 0 ? own_head + 1 : heads;
    const int end_row = row_stride != 0 ? min(own_row + BR, q_len) : q_len;
    const int end_key = key_stride != 0 ? min(own_key + BC, kv_len) : kv_len;
    float dS_acc[TM][TN] = {};

    for (int b = 0; b < batch; ++b) {
        for (int head = own_head; head < end_head; ++head) {
            const auto score = scores.of_head(head, q_len, kv_len);
            const size_t first_q = ((size_t)b * heads + head) * q_len;
            const size_t first_kv = ((size_t)b * (heads / group) + head / group) * kv_len;
            for (int first_row = own_row; first_row < end_row; first_row += BR) {
                // Which of the keys some row sees, once no thread reads the tiles of before any more.
                const int rows = min(BR, q_len - first_row);
                const RowBlock block = {b, head, first_row / BR, (q_len + BR - 1) / BR, first_row, rows};
                __syncthreads();
                const auto seen = limits.of_block<BR>(block, q_len, kv_len);
                const int start_key = max(seen.first_key / BC * BC, own_key), stop_key = min(seen.end_key, end_key);
                if (start_key >= stop_key) continue;
                const auto tiles = order.of_block(block, start_key, stop_key, q_len, kv_len);
                bool is_loaded = false;
                for (auto next = tiles.first(); next.exists();) {
                    const auto tile = next;
                    next = tiles.after(tile);
                    const int first_key = tile.first_key, keys = min(BC, kv_len - first_key);
                    if (first_key < start_key || stop_key <= first_key) continue;  // listed tiles are those of all keys
                    __syncthreads();
                    if (!is_loaded) {
                        load_tile<BR>(Q_tile, layout.Q_rows(Q, first_q + first_row, b, head, first_row), rows);
                        load_tile<BR, DV>(dO_tile, gradients.O_rows(dO, first_q + first_row, b, head, first_row), rows);
                        load_statistics<BR>(lse_tile, delta_tile, lse + first_q + first_row, delta + first_q + first_row,
                                            rows);
                        is_loaded = true;
                    }
                    load_tile<BC>(K_tile, layout.K_rows(K, first_kv + first_key, b, head / group, first_key), keys);
                    load_tile<BC, DV>(V_tile, layout.V_rows(V, first_kv + first_key, b, head / group, first_key), keys);
                    const auto pairs = tiles.pairs<THREADS>(tile, keys);  // of listed tiles; else nothing
                    __syncthreads();

                    // Lines 10, 11, 13 and 14: S = score(tau Q_i K_j^T), P = exp(S - L_i), dP = dO_i V_j^T, dS = P o (dP - D_i).
                    float S[TM][TN], dP[TM][TN];
                    multiply_Q_Kt(S, Q_tile, K_tile);
                    multiply_Q_Kt<DV>(dP, dO_tile, V_tile);
                    const auto seen_here = seen_in_tile(seen, pairs, first_row, first_key, keys);
                    row_gradients<DBias>(S, dP, lse_tile, delta_tile, score_tau, score, seen_here, first_row, rows, first_key);
#pragma unroll
                    for (int i = 0; i < TM; ++i)
#pragma unroll
                        for (int j = 0; j < TN; ++j) dS_acc[i][j] += dP[i][j];
                }
            }
        }
    }

    // Write dbias, after dS has been summed over the tile's keys or rows if the bias does not vary over these.
    const int t = thread_index();
    float *const dbias_head = dbias + (size_t)own_head * head_stride;
    if (row_stride != 0 && key_stride != 0) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                const int row = own_row + row_of(i), key = own_key + key_of(j);
                if (row < end_row && key < end_key && has_row(i) && key_of(j) < BC) {
                    dbias_head[(size_t)row * row_stride + key] = dS_acc[i][j];
                }
            }
        return;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) dS_tile[row_of(i) * LP + key_of(j)] = dS_acc[i][j];
    __syncthreads();
    float sum = 0.0f;
    if (key_stride != 0) {
        if (t < BC && own_key + t < end_key) {
            for (int r = 0; r < BR; ++r) sum += dS_tile[r * LP + t];
            dbias_head[own_key + t] = sum;
        }
        return;
    }
    if (t < BR) {
        for (int k = 0; k < BC; ++k) sum += dS_tile[t * LP + k];
        if (row_stride != 0) {
            if (own_row + t < end_row) dbias_head[own_row + t] = sum;
        } else {
            lse_tile[t] = sum;
        }
    }
    __syncthreads();
    if (row_stride == 0 && t == 0) {
        sum = 0.0f;
        for (int r = 0; r < BR; ++r) sum += lse_tile[r];
        dbias_head[0] = sum;
    }
}
