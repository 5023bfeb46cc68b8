// Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are below.
// mma.cuh, tiles.cuh, not_finite.cuh and backward.cuh are put before this text; what comes before and after is
// backward_ends.cu.
//
// Compile-time parameters: those of backward.cuh, and SUMS_DQ where blocks add their parts to dQ in memory, all at once.

// A block owns K_j and V_j of one head, and the query heads that share them. L is lse times log2 e, D = rowsum(dO o O), tau2
// is tau times log2 e. The grid is (tiles of keys, heads of K and V, batch).
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_mma_of_keys(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ L, const float *__restrict__ delta,
#ifdef SUMS_DQ
    float *__restrict__ dQ,
#endif
    stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group, float tau, float tau2, int before,
    int after)
{
    extern __shared__ __align__(128) unsigned char K_tile[];
    unsigned char *const V_tile = K_tile + KEYS_BYTES, *const row_tiles = V_tile + KEYS_BYTES;
#ifdef SUMS_DQ
    unsigned char *const dS_tile = row_tiles + STAGES * 2 * ROWS_BYTES;
#endif
    float *const stats = reinterpret_cast<float *>(K_tile + SHARED_STATS);  // L_i, D_i of one stage, then of the next

    const size_t kv_head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) {
        for (int i = threadIdx.x * 16; i < SHARED_STATS; i += THREADS * 16) {
            *reinterpret_cast<uint4 *>(K_tile + i) = make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
    }

    // Lines 8 and 9: all Q_i, dO_i, L_i, D_i with a row that sees some key of the tile, of all heads that share it, one
    // tile ahead of its use.
    const auto copy_rows = [&](int step, RowTiles seeing) {
        const int thread = thread_again(), stage = step % STAGES;
        const int member = step / seeing.count, i = seeing.first + step % seeing.count;
        const int first_row = i * BR, rows = min(BR, q_len - first_row);
        const size_t first = (kv_head * group + member) * q_len + first_row;
        unsigned char *const Q_tile = row_tiles + stage * 2 * ROWS_BYTES;
        copy_tile_again<BR>(Q_tile, Q + first * D, rows, thread);
        copy_tile_again<BR>(Q_tile + ROWS_BYTES, dO + first * D, rows, thread);
        float *const L_tile = stats + stage * 2 * BR;
        if (thread < BR) {
            const size_t from = thread < rows ? first + thread : first;
            copy_async<4>(shared_address(L_tile + thread), L + from, thread < rows);
            copy_async<4>(shared_address(L_tile + BR + thread), delta + from, thread < rows);
        }
    };

    // Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers.
    Sums dK_acc, dV_acc;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < 2 * OWN_STEPS; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) dK_acc[i][j][c] = dV_acc[i][j][c] = 0.0f;
    __shared__ bool keys_not_finite;
    const auto rows_seeing = [&] { return tiles_seeing(block_again(), q_len, kv_len, before, after); };
    if (rows_seeing().count > 0) {
        const int first_key = blockIdx.x * BC, keys = min(BC, kv_len - first_key);
        const size_t first_kv = kv_head * kv_len + first_key;
        copy_tile<BC>(K_tile, K + first_kv * D, keys);
        copy_tile<BC>(V_tile, V + first_kv * D, keys);
        copy_rows(0, rows_seeing());
        commit_copies();
        wait_for_copies<0>();
        const bool found = __syncthreads_or(copied_not_finite<BC>(K_tile));
        if (threadIdx.x == 0) keys_not_finite = found;
        if (found && threadIdx.x < BC) move_not_finite(K_tile, V_tile, threadIdx.x);
    }
#pragma unroll 1
    for (int step = 0; step < group * rows_seeing().count; ++step) {
        // Q_i and dO_i have come, and nobody reads dS any more, nor the tiles that the next copies overwrite. In a
        // tile with a row that does not see all keys, both must be finite: products of 0 are not.
        const int first_key = block_again() * BC;
        const RowTiles seeing = rows_seeing();
        const int first_row = (seeing.first + step % seeing.count) * BR, last_row = min(first_row + BR, q_len) - 1;
        unsigned char *const Q_tile = row_tiles + step % STAGES * 2 * ROWS_BYTES, *const dO_tile = Q_tile + ROWS_BYTES;
        float *const L_tile = stats + step % STAGES * 2 * BR, *const D_tile = L_tile + BR;
        const int seen_from = first_seen(last_row, q_len, kv_len, before);
        const int seen_to = end_seen(first_row, q_len, kv_len, after);
        wait_for_copies<0>();
        if (first_key < seen_from || first_key + BC > seen_to) {
            if (__syncthreads_or(copied_not_finite<BR>(Q_tile) || copied_not_finite<BR>(dO_tile))) {
                const int r = threadIdx.x;
                if (r < BR) {
                    const bool in_Q = clear_not_finite(Q_tile, r), in_dO = clear_not_finite(dO_tile, r);
                    if (in_Q || in_dO) L_tile[r] = __int_as_float(0x7fffffff);
                }
                __syncthreads();
            }
        } else {
            __syncthreads();
        }
        if (step + 1 < group * seeing.count) copy_rows(step + 1, seeing);
        commit_copies();

#pragma unroll 1
        for (int above = 0; above < BR; above += ROWS_AT_ONCE) {
            // Rows of the tile from `above` on, with the warp's keys.
            const int thread = thread_again(), warps_key = first_key_of(thread), first_step = first_step_of(thread);
            const int key = first_key + warps_key, row = first_row + above;
            const int last = min(row + ROWS_AT_ONCE, q_len) - 1;
            const bool all_seen = key >= first_seen(last, q_len, kv_len, before) &&
                                  key + WARP_KEYS <= end_seen(row, q_len, kv_len, after);
            const bool some_seen = row < q_len && key < end_seen(last, q_len, kv_len, after) &&
                                   key + WARP_KEYS > first_seen(row, q_len, kv_len, before);
            Weights P, dS;
            if (some_seen) {
                const int lane = thread % 32;
                const unsigned rows_at = above * ROW_BYTES;
                const unsigned K_lane = shared_address(K_tile) + again_in_A(lane) + warps_key * ROW_BYTES;
                // Line 10: S = Q_i K_j^T. Line 11: P = exp(tau S - lse_i).
                Scores S, dP;
                multiply_A_Bt(S, K_lane, shared_address(Q_tile) + again_in_K(lane) + rows_at);
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float2 L_j = *reinterpret_cast<const float2 *>(L_tile + above + 8 * j + lane % 4 * 2);
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            S[m][j][c] = exp2_approx(fmaf(S[m][j][c], tau2, -(c % 2 ? L_j.y : L_j.x)));
                }
                // Line 13: dP = dO_i V_j^T. Line 14: dS = P o (dP - D_i).
                multiply_A_Bt(dP, K_lane + KEYS_BYTES, shared_address(dO_tile) + again_in_K(lane) + rows_at);
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float2 D_j = *reinterpret_cast<const float2 *>(D_tile + above + 8 * j + lane % 4 * 2);
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            dP[m][j][c] = S[m][j][c] * (dP[m][j][c] - (c % 2 ? D_j.y : D_j.x));
                }
                if (!all_seen || keys_not_finite) {
                    mask(S, dP, row + kv_len - q_len - key, kv_len - key, q_len - row, before, after);
                }
                round_weights(P, S);
                round_weights(dS, dP);

                // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i, not yet times tau.
                const unsigned own_at = again_in_A(lane) + rows_at + first_step * 32;
                add_Wt_Y(dV_acc, P, shared_address(dO_tile) + own_at, STEPS - first_step);
                add_Wt_Y(dK_acc, dS, shared_address(Q_tile) + own_at, STEPS - first_step);
            } else {
                // In dS there are others' keys besides.
#pragma unroll
                for (int s = 0; s < TN / 2; ++s)
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c) dS[s][m][c] = 0;
            }
#ifdef SUMS_DQ
            if (first_step == 0) store_dSt(dS_tile, dS, warps_key, above);
#endif
        }
#ifdef SUMS_DQ
        // Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
        __syncthreads();
        const size_t fragments = (kv_head * group + step / rows_seeing().count) * ((q_len + 15) / 16) * DQ_TILES;
        add_dS_K(dQ + fragments * FRAGMENT, dS_tile, K_tile, first_row, q_len);
#endif
    }

    // Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
    __syncthreads();
    gather(K_tile, dK_acc, tau);
    gather(V_tile, dV_acc, 1.0f);
    __syncthreads();
    const int first_key = blockIdx.x * BC, keys = min(BC, kv_len - first_key);
    const size_t first_kv = kv_head * kv_len + first_key;
    store_tile<BC>(dK + first_kv * D, K_tile, keys);
    store_tile<BC>(dV + first_kv * D, V_tile, keys);
}
