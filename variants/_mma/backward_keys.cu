// Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are below.
// _dropout/dropout.cuh and fragments.cuh, mma.cuh, tiles.cuh, not_finite.cuh, dq_fragments.cuh and backward.cuh are put
// before this text; what comes before and after is backward_ends.cu.
//
// Compile-time parameters: those of backward.cuh.

// A block owns K_j and V_j of one head, and the query heads that share them. L is lse times log2 e, D = rowsum(dO o O), tau2
// is tau times log2 e. The grid is (heads of K and V, tiles of keys, batch).
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_mma_of_keys(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ L, const float *__restrict__ delta,
#ifdef SUMS_DQ
    float *__restrict__ dQ,
#endif
    stored *__restrict__ dK, stored *__restrict__ dV, int q_len, int kv_len, int group, float tau, float tau2,
    LIMITS_OF_KEYS DRAW_PARAMETERS FACTOR_PARAMETER)
{
    extern __shared__ __align__(128) unsigned char K_tile[];
    unsigned char *const V_tile = K_tile + KEYS_BYTES;
    float *const stats = reinterpret_cast<float *>(K_tile + SHARED_STATS);  // L_i, D_i of each stage
    const unsigned shared = shared_address(K_tile);

    // The first keys, which most rows see where causal, of all heads start first.
    const size_t kv_head = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    const int first_key = blockIdx.y * BC, keys = min(BC, kv_len - first_key);
    KEEP_LIMITS_OF_KEYS(BC, first_key, keys)
    const RowTiles seeing = tiles_seeing(blockIdx.y, q_len, kv_len, ahead, behind);

    // The loop's limits are read anew, too: the first row, the end, and how often a tile of rows is
    // scored or summed.
    __shared__ int limits[3];
    __shared__ bool keys_not_finite;
    if (threadIdx.x == 0) {
        limits[0] = seeing.first * BR;
        limits[1] = (seeing.first + seeing.count) * BR;
        limits[2] = seeing.count > 0 ? group * seeing.count + LAG : 0;
    }
    const volatile int &begin = limits[0], &end = limits[1], &turns = limits[2];

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) {
        for (int i = threadIdx.x * 16; i < SHARED_STATS; i += THREADS * 16) {
            *reinterpret_cast<uint4 *>(K_tile + i) = make_uint4(0, 0, 0, 0);
        }
    }
    __syncthreads();

    // Lines 8 and 9: Q_i, dO_i, L_i, D_i.
    const auto copy_rows = [&](int member, int first_row, int stage) {
        const int rows = min(BR, q_len - first_row);
        const size_t first = (kv_head * group + member) * q_len + first_row;
        const unsigned Q_tile = shared + SHARED_ROWS + stage * 2 * ROWS_BYTES;
        copy_tile_again<BR>(Q_tile, Q + first * D, rows);
        copy_tile_again<BR>(Q_tile + ROWS_BYTES, dO + first * D, rows);
        const int thread = thread_again();
        if (thread < BR) {
            const unsigned L_at = shared_address(stats + stage * 2 * BR + thread);
            const size_t from = thread < rows ? first + thread : first;
            copy_async<4>(L_at, L + from, thread < rows);
            copy_async<4>(L_at + BR * sizeof(float), delta + from, thread < rows);
        }
    };

    // Lines 10 to 14: P and dS of the tile, under dropout with 0 for dP that drops out. Then lines 12 and 16, or their
    // weights for others to sum. `all_seen`: whether every row sees every key.
    Sums sums[SUMS];  // dV_j, dK_j, not yet times tau; or one of them
    const auto score = [&](int member, int first_row, int stage, unsigned W_tile, bool all_seen) {
        const int thread = thread_again(), lane = thread % 32, warp = thread / 32;
        const int warps_key = warp % KEY_GROUPS * WARP_KEYS, key = first_key + warps_key;
        const unsigned Q_tile = shared + SHARED_ROWS + stage * 2 * ROWS_BYTES, dO_tile = Q_tile + ROWS_BYTES;
        const float *const L_lane = stats + stage * 2 * BR + lane % 4 * 2, *const D_lane = L_lane + BR;
        const unsigned K_lane = shared + again_in_A(lane) + warps_key * ROW_BYTES;
        const unsigned W_lane = W_tile + again_in_A<W_ROW_BYTES>(lane) + warps_key * W_ROW_BYTES;
#pragma unroll 1
        for (int beyond = 0; beyond < WARP_ROWS; beyond += ROWS_AT_ONCE) {
            // Rows of the tile from `above` on, with the warp's keys.
            const int above = warp / KEY_GROUPS * WARP_ROWS + beyond, row = first_row + above;
            const unsigned rows_at = above * ROW_BYTES;
            bool by_all = true, by_some = true;
            if (!all_seen) {
                const int last = min(row + ROWS_AT_ONCE, q_len) - 1;
                by_all = all_see(row, last, key, WARP_KEYS, q_len, kv_len, ahead, behind) && !keys_not_finite;
                by_some = row < q_len && some_see(row, last, key, WARP_KEYS, q_len, kv_len, ahead, behind);
            }
            Weights P, dS;
            if (by_some) {
                // Line 10: S = Q_i K_j^T. Line 11: P = exp(tau S - lse_i).
                Scores S, dP;
                multiply_A_Bt(S, K_lane, Q_tile + again_in_K(lane) + rows_at);
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float2 L_j = *reinterpret_cast<const float2 *>(L_lane + above + 8 * j);
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            S[m][j][c] = exp2_approx(fmaf(S[m][j][c], tau2, -(c % 2 ? L_j.y : L_j.x)));
                }
                DRAWN_KEYS(blockIdx.x * group + member, key, row)
                // Line 13: dP = dO_i V_j^T. Line 14: dS = P o (dP - D_i).
                multiply_A_Bt(dP, K_lane + KEYS_BYTES, dO_tile + again_in_K(lane) + rows_at);
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const float2 D_j = *reinterpret_cast<const float2 *>(D_lane + above + 8 * j);
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            dP[m][j][c] = S[m][j][c] * GROWN_LESS(dP[m][j][c], c % 2 ? D_j.y : D_j.x, m, c / 2, j, c % 2);
                }
                if (!by_all) mask(S, dP, key, row, q_len, kv_len, ahead, behind);
                round_weights(P, S);
                DROP_KEYS(P)
                round_weights(dS, dP);

                // Line 12: dV_j = dV_j + P^T dO_i. Line 16: dK_j = dK_j + dS^T Q_i.
                if constexpr (!HANDS_WEIGHTS) {
                    const unsigned own_at = again_in_A(lane) + rows_at;
#pragma unroll
                    for (int s = 0; s < TN / 2; ++s) add_Wt_Y(sums[0], P[s], dO_tile + own_at, s, STEPS);
#pragma unroll
                    for (int s = 0; s < TN / 2; ++s) add_Wt_Y(sums[SUMS - 1], dS[s], Q_tile + own_at, s, STEPS);
                }
            } else {
                // What others sum has these keys and rows, too.
#pragma unroll
                for (int s = 0; s < TN / 2; ++s)
#pragma unroll
                    for (int m = 0; m < TM; ++m)
#pragma unroll
                        for (int c = 0; c < 4; ++c) P[s][m][c] = dS[s][m][c] = 0;
            }
            if constexpr (LAG) {
                const unsigned to = chunks_further(W_lane, above / CHUNK);
                store_weights(to, dS);
                if constexpr (HANDS_WEIGHTS) store_weights(to + W_BYTES, P);
            }
        }
    };

    // What is summed of others' dS^T and P^T: line 12 or 16, and line 15.
    const auto sum = [&](int member, int first_row, int stage, unsigned W_tile) {
        if constexpr (HANDS_WEIGHTS) {
            const int thread = thread_again(), lane = thread % 32;
            const Share own = share_of(thread);
            const unsigned W_lane =
                W_tile + own.of_dV * W_BYTES + own.key * W_ROW_BYTES + again_in_A<W_ROW_BYTES>(lane);
            const unsigned Y_lane = shared + SHARED_ROWS + (2 * stage + own.of_dV) * ROWS_BYTES + again_in_A(lane) +
                                    own.step * 2 * CHUNK_BYTES;
#pragma unroll
            for (int s = 0; s < BR / 16; ++s) {
                unsigned W[SUM_TILES][4];
#pragma unroll
                for (int i = 0; i < SUM_TILES; ++i) load_matrices(W[i], chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES);
                add_Wt_Y(sums[0], W, Y_lane, s, STEPS - own.step);
            }
        }
#ifdef SUMS_DQ
        // Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
        const size_t fragments = (kv_head * group + member) * ((q_len + 15) / 16) * DQ_TILES;
        add_dS_K(dQ + fragments * FRAGMENT, W_tile, shared, first_row, q_len);
#endif
    };

    // Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers.
#pragma unroll
    for (int of = 0; of < SUMS; ++of)
#pragma unroll
        for (int i = 0; i < SUM_TILES; ++i)
#pragma unroll
            for (int j = 0; j < 2 * SUM_STEPS; ++j)
#pragma unroll
                for (int c = 0; c < 4; ++c) sums[of][i][j][c] = 0.0f;
    if (seeing.count > 0) {
        const size_t first_kv = kv_head * kv_len + first_key;
        copy_tile<BC>(K_tile, K + first_kv * D, keys);
        copy_tile<BC>(V_tile, V + first_kv * D, keys);
        copy_rows(0, seeing.first * BR, 0);
        commit_copies();
        wait_for_copies<0>();
        const bool found = __syncthreads_or(copied_not_finite<BC>(K_tile));
        if (threadIdx.x == 0) keys_not_finite = found;
        if (found && threadIdx.x < BC) move_not_finite(K_tile, V_tile, threadIdx.x);
    }

    // All tiles of rows with one that sees some key, of all heads that share the keys, one tile ahead of its use.
    int member = 0, first_row = seeing.first * BR;
#pragma unroll 1
    for (int step = 0; step < turns; ++step) {
        // Q_i and dO_i have come, and nobody reads the tiles any more that the next copies overwrite, nor weights of two
        // steps before. In a tile with a row that does not see all keys, both must be finite: products of 0 are not.
        const int stage = step % STAGES, last_row = min(first_row + BR, q_len) - 1;
        const bool all_seen = all_see(first_row, last_row, first_key, BC, q_len, kv_len, ahead, behind);
        wait_for_copies<0>();
        if (!all_seen && step < turns - LAG) {
            unsigned char *const Q_tile = K_tile + SHARED_ROWS + stage * 2 * ROWS_BYTES, *const dO_tile = Q_tile + ROWS_BYTES;
            if (__syncthreads_or(copied_not_finite_again<BR>(Q_tile) || copied_not_finite_again<BR>(dO_tile))) {
                const int r = threadIdx.x;
                if (r < BR) {
                    const bool in_Q = clear_not_finite(Q_tile, r), in_dO = clear_not_finite(dO_tile, r);
                    if (in_Q || in_dO) stats[stage * 2 * BR + r] = __int_as_float(0x7fffffff);
                }
                __syncthreads();
            }
        } else {
            __syncthreads();
        }
        if (step + 1 < turns - LAG) {
            const bool is_last = first_row + BR == end;
            copy_rows(member + is_last, is_last ? begin : first_row + BR, (step + 1) % STAGES);
        }
        commit_copies();

        // Half of eight warps score while the others sum: exponentials, and products, at the same time.
        const unsigned W_tile = shared + SHARED_W + step % 2 * W_STAGE_BYTES;
        const int scores_in = HANDS_WEIGHTS && thread_again() >= THREADS / 2;
#pragma unroll(HANDS_WEIGHTS ? 1 : 2)
        for (int half = 0; half < 1 + LAG; ++half) {
            if (half == scores_in) {
                if (step < turns - LAG) score(member, first_row, stage, W_tile, all_seen && !keys_not_finite);
            } else if (step > 0) {
                const bool is_first = first_row == begin;
                const unsigned W_before = shared + SHARED_W + (step + 1) % 2 * W_STAGE_BYTES;
                sum(member - is_first, (is_first ? end : first_row) - BR, (step - 1) % STAGES, W_before);
            }
        }
        first_row += BR;
        if (first_row == end) {
            first_row = begin;
            ++member;
        }
    }

    // Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
    __syncthreads();
    const Share own = share_of(threadIdx.x);
    if constexpr (HANDS_WEIGHTS) {
        gather(own.of_dV ? V_tile : K_tile, sums[0], own.of_dV ? KEPT_FACTOR : tau, own);
    } else {
        gather(K_tile, sums[SUMS - 1], tau, own);
        gather(V_tile, sums[0], KEPT_FACTOR, own);
    }
    __syncthreads();
    const size_t first_kv = kv_head * kv_len + first_key;
    store_tile<BC>(dK + first_kv * D, K_tile, keys);
    store_tile<BC>(dV + first_kv * D, V_tile, keys);
}
