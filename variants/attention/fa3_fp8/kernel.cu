// FlashAttention-3 with factors of 8 bits, forward pass: Shah et al. 2024, arXiv 2407.08608, section 3.3. Who does what,
// and when, is as in fa3/kernel.cu; Q, K and V are e4m3, as factors.cu leaves them, and so is P, so that all products take
// half as long.
//
// _mma/mma.cuh, _hopper/hopper.cuh, _hopper/softmax.cuh, _hopper/e4m3.cuh, _hopper/e4m3_tiles.cuh, pipeline.cuh, which has
// the producer, and the products of the tile's sizes are put before this text.
//
// Compile-time parameter besides theirs: TURNS (whether two consumers take turns with the tensor cores).

typedef ByteTile<BR, D> QTile;
typedef ByteTile<BC, D> KTile;
typedef ByteTile<D, BC> VTile;  // transposed
constexpr int KV_BYTES = BC * D;  // of K_j, and of V_j
// P is 2^WEIGHT_OFFSET times exp(tau S - m), so that it uses more of the numbers of e4m3. m may be less than the maximum,
// so P is LARGEST_WEIGHT at most, e4m3's largest number, and 2^-9 at least.
constexpr int WEIGHT_OFFSET = 6, WEIGHT_HEADROOM = 2;
constexpr float LARGEST_WEIGHT = 448.0f;
constexpr float SMALLEST_FLOAT = 1.175494351e-38f, LARGEST_FLOAT = 3.402823466e38f;  // normal ones
constexpr float LARGEST_ADDEND = LARGEST_FLOAT / TN;  // a thread has TN / 2 fours of a row to add up

// --- Products --------------------------------------------------------------------------------------------------------

// S_next = Q_i K_j^T for the warpgroup's rows, under way.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, unsigned Q_rows, unsigned K_tile)
{
    const u64 Q = QTile::descriptor(Q_rows), K = KTile::descriptor(K_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 32; ++k) multiply(S, Q + QTile::steps(k), K + KTile::steps(k), k > 0);
    commit_products();
}

// O_i += P_cur V_j, under way.
__device__ __forceinline__ void add_P_V(Output &O, const ByteWeights &P, unsigned V_tile)
{
    const u64 V = VTile::descriptor(V_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < BC / 32; ++k) multiply_add(O, P + 4 * k, V + VTile::steps(k));
    commit_products();
}

// S = Q_i K_j^T once more, by one warp alone, where sums of its exponentials may have left float's range. It is to be short, and need not
// be fast.
__device__ __forceinline__ void multiply_alone(Scores &S, unsigned Q_tile, unsigned K_tile)
{
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread), "+r"(Q_tile), "+r"(K_tile));  // so that nothing takes registers before
    const unsigned char *const Q = shared_pointer(Q_tile), *const K = shared_pointer(K_tile);
    const auto word = [](const unsigned char *bytes) { return *reinterpret_cast<const unsigned *>(bytes); };
#pragma unroll 1
    for (int j = 0; j < TN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) S[e] = 0.0f;
#pragma unroll 1
        for (int byte = thread % 4 * 4; byte < D; byte += 32) {
            const int row = thread / 32 * 16 - WARPGROUP / 2 + thread % 32 / 4, key = 8 * j + thread % 32 / 4;
            asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(S[0]), "+f"(S[1]), "+f"(S[2]), "+f"(S[3])
                         : "r"(word(Q + QTile::place(row, byte))), "r"(word(Q + QTile::place(row + 8, byte))),
                           "r"(word(Q + QTile::place(row, byte + 16))), "r"(word(Q + QTile::place(row + 8, byte + 16))),
                           "r"(word(K + KTile::place(key, byte))), "r"(word(K + KTile::place(key, byte + 16))));
        }
        move_up<4>(S);
    }
    __syncwarp();
}

// --- Factors that are not finite --------------------------------------------------------------------------------------------

// S += q k for each k of a tile of `keys` keys that is infinite, of which K_tile has 0: -infinity where q has the other
// sign. `q` and `k` are the problem's own, the lane's first row and the tile's first key.
__device__ __forceinline__ void add_infinities(Scores &S, const stored *q, const stored *k, int rows, int keys,
                                               int head_dim, float sign)
{
    const unsigned short *const k_bits = reinterpret_cast<const unsigned short *>(k);
    const unsigned short *const q_bits = reinterpret_cast<const unsigned short *>(q);
#pragma unroll 1
    for (int j = 0; j < TN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = 8 * j + threadIdx.x % 4 * 2 + e % 2, row = 8 * (e / 2);
            if (key >= keys || row >= rows) continue;
#pragma unroll 1
            for (int i = 0; i < head_dim; ++i) {
                const unsigned x = k_bits[key * head_dim + i];
                if ((x & 0x7fff) == EXPONENT) S[e] += sign * unpacked(q_bits[row * head_dim + i]).x * unpacked(x).x;
            }
        }
        move_up<4>(S);
    }
}

// O = NaN for each NaN of a tile of V, in rows that see its key. It is to be short, and need not be fast.
__device__ __forceinline__ void add_nans(Output &O, const unsigned char *V_tile, const KeysSeen &seen)
{
    const int quarter = threadIdx.x % 4;
#pragma unroll 1
    for (int j = 0; j < TD; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll 1
            for (int place = 0; place < BC; ++place) {
                const unsigned char v = V_tile[VTile::place(8 * j + 2 * quarter + c, place)];
                const int key = key_of_place(place) - 2 * quarter;
                if ((v & 0x7f) != 0x7f) continue;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (key >= seen.first[h] && key < seen.end[h]) O[2 * h + c] = __int_as_float(0x7fffffff);
                }
            }
        }
        move_up<4>(O);
    }
}

// Before P V of a tile that holds keys which only some rows see: a row must not even multiply NaN by its zero weight. All
// consumers look through V together. NaN is added where it is seen, and then counts as 0, so rows that see none of it
// get the bits that they would get without.
__device__ __forceinline__ void take_nans(Output &O, unsigned char *V_tile, const KeysSeen &seen)
{
    const int thread = threadIdx.x - WARPGROUP;
    unsigned *const V = reinterpret_cast<unsigned *>(V_tile);
    bool found = false;
#pragma unroll 4
    for (int e = thread; e < KV_BYTES / 16; e += CONSUMER_THREADS) {
        const uint4 v = reinterpret_cast<const uint4 *>(V_tile)[e];
        found |= (nans_of_e4m3(v.x) | nans_of_e4m3(v.y) | nans_of_e4m3(v.z) | nans_of_e4m3(v.w)) != 0;
    }
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, found)) return;
    add_nans(O, V_tile, seen);
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
#pragma unroll 1
    for (int e = thread; e < KV_BYTES / 4; e += CONSUMER_THREADS) {
        const unsigned nans = nans_of_e4m3(V[e]);
        if (nans) V[e] &= ~((nans >> 7) * 0xff);
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
}

// --- The kernel ------------------------------------------------------------------------------------------------------

extern "C" __global__ __launch_bounds__(THREADS, 1) void fa3_fp8(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap O, const int *__restrict__ scales, const stored *__restrict__ own_Q,
    const stored *__restrict__ own_K, float *__restrict__ lse, int q_len, int kv_len, int heads, int group,
    int head_dim, int row_tiles, int heads_at_once, float tau2, float sign, int before, int after)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    __shared__ int told;
    const unsigned O_tile = (shared_address(dynamic) + 1023) / 1024 * 1024;
    const unsigned Q_tile = O_tile + BR * D * (int)sizeof(stored);
    const unsigned K_tiles = Q_tile + QTile::BYTES, V_tiles = K_tiles + STAGES * KV_BYTES;
    const Problem p = {q_len, kv_len, heads, group, before, after, row_tiles, heads_at_once};

    if (threadIdx.x == 0) {
        init_barriers(barriers);
    }
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) {
            produce<QTile::BYTES, KV_BYTES>(
                barriers, p, [&](int index) { told = index; },
                [&](const Work &work, u64 &full) { QTile::load(Q_tile, Q, 0, work.first_row, work.head, full); },
                [&](int s, int j, int head, u64 &full) { KTile::load(K_tiles + s * KV_BYTES, K, 0, j * BC, head, full); },
                [&](int s, int j, int head, u64 &full) { VTile::load(V_tiles + s * KV_BYTES, V, j * BC, 0, head, full); });
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        // Of lane 0, so that the compiler knows it to be one number per warp.
        const int warpgroup = __shfl_sync(0xffffffff, (int)threadIdx.x / WARPGROUP, 0) - 1;
        const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const bool speaks = lane == 0, stores = threadIdx.x % WARPGROUP == 0;  // for its warp, for its warpgroup
        const unsigned Q_rows = Q_tile + warpgroup * 64 * QTile::BOX, O_rows = O_tile + warpgroup * 64 * ROW_BYTES;
        // With TURNS, products of one consumer are issued while the other has its softmax. The first one begins.
        const auto begin_turn = [&] {
            if constexpr (TURNS) sync_threads(TURN + warpgroup, CONSUMER_THREADS);
        };
        const auto end_turn = [&] {
            if constexpr (TURNS) arrive_threads(TURN + 1 - warpgroup, CONSUMER_THREADS);
        };
        if (TURNS && warpgroup == 1) end_turn();

        for (int round = 0, step = 0;; ++round) {
            wait(barriers.work_told, round & 1);
            const int index = told;
            arrive(barriers.work_heard);
            if (index >= row_tiles * heads) {
                if (stores) wait_until_read();
                break;
            }
            const Work work = work_of(index, p);
            // Those of Q, of K and of V lie one behind the other, see factors.cu.
            const int of_Q = scales[work.head], of_K = scales[heads + work.head / group];
            // What S is multiplied by.
            const float2 scale_of_S = powers_of_two(max(-250, min((of_Q >> 1) + (of_K >> 1), 250)));
            // Neither 0 nor infinite: S may be 0, and -infinity behind a mask.
            const float tau2_S = fmaxf(SMALLEST_FLOAT, fminf(tau2 * scale_of_S.x * scale_of_S.y, LARGEST_FLOAT));
            const bool infinite_K = of_K & 1;
            const int row = work.first_row + 64 * warpgroup + 16 * warp + lane / 4;

            // O_i = 0, l = 0, m = -inf, in registers.
            Rows own;
#pragma unroll
            for (int e = 0; e < D / 2; ++e) own.O[e] = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                own.m[h] = MINUS_INFINITY;
                own.l[h] = 0.0f;
            }
            wait(barriers.Q_full, round & 1);

            if (work.first_tile < work.end_tile) {
                // All rows of the block see these tiles of keys, and every key of them.
                int whole_from = 0, whole_to = work.end_tile - 1;
                if constexpr (MASKED) {
                    const int last_row = min(work.first_row + BR, q_len) - 1;
                    if (WINDOWED) whole_from = (first_seen(last_row, q_len, kv_len, before) + BC - 1) / BC;
                    // One less where its first row would have seen no key before.
                    whole_to = (end_seen(work.first_row, q_len, kv_len, after) - 1) / BC;
                }
                const int rows[2] = {row, row + 8};
                const auto seen_of = [&](int j) { return keys_seen(rows, j * BC, q_len, kv_len, before, after); };
                Scores S;
                ByteWeights P;
                PerRow correction;
                bool corrects = false;  // in some row of the warp
                int j = work.end_tile - 1;
                const int first_step = step;
                const auto complete = [&] {
                    add_infinities(S, own_Q + ((size_t)work.head * q_len + row) * head_dim,
                                   own_K + ((size_t)(work.head / group) * kv_len + j * BC) * head_dim, q_len - row,
                                   kv_len - j * BC, head_dim, sign);
                };

                // From a tile that some row does not see all of to P V of it.
                const auto take = [&](int tile) {
                    if (!MASKED || (tile >= whole_from && tile < whole_to)) return;
                    wait(barriers.V_full[stage(step)], phase(step));
                    take_nans(own.O, shared_pointer(V_tiles + stage(step) * KV_BYTES), seen_of(tile));
                };
                // From softmax of a tile to P V of it, once P V of the tile before is done. It stands at the beginning
                // of the loops: in the middle the compiler waits for P V first, and has no softmax beside it.
                const auto settle = [&](int tile) {
                    wait_for_products<0>(own.O);
                    if (speaks && step > first_step) arrive(barriers.V_empty[stage(step - 1)]);
                    if (corrects) correct(own.O, correction);
                    round_weights(P, S);
                    take(tile);
                };

                const auto softmax = [&] {
                    mask(S, seen_of(j));
                    exponentiate<WEIGHT_OFFSET, WEIGHT_HEADROOM>(own, S, correction, tau2_S);
                    corrects = __any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f);
                };

                // Before algorithm 2's loop: the first tile, which is the last one of keys and may not be full.
                wait(barriers.K_full[stage(step)], phase(step));
                begin_turn();
                multiply_Q_Kt(S, Q_rows, K_tiles + stage(step) * KV_BYTES);
                end_turn();
                wait_for_products<0>(S);
                if (speaks) arrive(barriers.K_empty[stage(step)]);
                if (infinite_K) complete();
                softmax();
                --j;

                // In the loop: S of this tile and P V of the one before are under way together, softmax beside P V.
                const auto advance = [&] {
                    // Nothing is waited for between the tile's weights and both products.
                    wait(barriers.K_full[stage(step + 1)], phase(step + 1));
                    wait(barriers.V_full[stage(step)], phase(step));
                    settle(j + 1);
                    const int older = step++;
                    begin_turn();
                    multiply_Q_Kt(S, Q_rows, K_tiles + stage(step) * KV_BYTES);
                    add_P_V(own.O, P, V_tiles + stage(older) * KV_BYTES);
                    end_turn();
                    wait_for_products<1>(S);
                };
                const auto visit = [&] {
                    advance();
                    if (speaks) arrive(barriers.K_empty[stage(step)]);
                    softmax();
                };
                // Where all is seen exponentials do not wait for the maximum. Mostly m stays; else P tells.
                const auto visit_whole = [&] {
                    advance();
                    PerRow sums;
                    const float largest = exponentiate_with_m<WEIGHT_OFFSET>(own, S, sums, tau2_S);
                    corrects = __any_sync(0xffffffff, largest > LARGEST_WEIGHT);
                    if (!corrects) {
                        own.l[0] += sums[0];
                        own.l[1] += sums[1];
                    } else if (__any_sync(0xffffffff, largest > LARGEST_ADDEND)) {
                        multiply_alone(S, Q_tile, K_tiles + stage(step) * KV_BYTES);
                        exponentiate<WEIGHT_OFFSET, WEIGHT_HEADROOM>(own, S, correction, tau2_S);
                    } else {
                        raise_m<WEIGHT_OFFSET>(own, S, sums, correction);
                    }
                    if (speaks) arrive(barriers.K_empty[stage(step)]);
                };
                // The same one after the other, where some of K is infinite, which leaves room for what that takes.
                const auto visit_slowly = [&] {
                    settle(j + 1);
                    const int older = step++;
                    wait(barriers.V_full[stage(older)], phase(older));
                    begin_turn();
                    add_P_V(own.O, P, V_tiles + stage(older) * KV_BYTES);
                    end_turn();
                    wait_for_products<0>(own.O);
                    wait(barriers.K_full[stage(step)], phase(step));
                    multiply_Q_Kt(S, Q_rows, K_tiles + stage(step) * KV_BYTES);
                    wait_for_products<0>(S);
                    if (speaks) arrive(barriers.K_empty[stage(step)]);
                    complete();
                    softmax();
                };
                for (; infinite_K && j >= work.first_tile; --j) visit_slowly();
                for (; MASKED && j >= max(whole_to, work.first_tile); --j) visit();
                for (; j >= max(whole_from, work.first_tile); --j) visit_whole();
                for (; WINDOWED && j >= work.first_tile; --j) visit();

                // Behind the loop.
                if (speaks) arrive(barriers.Q_empty);
                settle(work.first_tile);
                wait(barriers.V_full[stage(step)], phase(step));
                add_P_V(own.O, P, V_tiles + stage(step) * KV_BYTES);
                wait_for_products<0>(own.O);
                if (speaks) arrive(barriers.V_empty[stage(step)]);
                ++step;
            } else if (speaks) {
                arrive(barriers.Q_empty);
            }

            // O_i = diag(l)^-1 O_i, L_i = m + log(l). A row that saw nothing has l = 0: its O stays 0, its L is -inf. l is
            // that of P, and of O_i the scale of V is left.
            const float2 scale_of_V = powers_of_two(scales[heads + heads / group + work.head / group] >> 1);
            PerRow factor;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float l = quad_sum(own.l[h]);
                factor[h] = l == 0.0f ? 0.0f : scale_of_V.x / l;
                if (lane % 4 == 0 && row + 8 * h < q_len) {
                    lse[(size_t)work.head * q_len + row + 8 * h] = (own.m[h] - WEIGHT_OFFSET) * LN_2 + logf(l);
                }
            }
            // Write O_i, by way of shared memory, once what was written before has left it.
            if (stores) wait_until_read();
            sync_threads(OWN + warpgroup, WARPGROUP);
#pragma unroll
            for (int e = 0; e < D / 2; ++e) own.O[e] *= scale_of_V.y;
            stage_output(own.O, factor, O_rows);
            publish_to_async();
            sync_threads(OWN + warpgroup, WARPGROUP);
            if (stores) store_rows<BR>(O_rows, O, work.first_row + 64 * warpgroup, work.head);
        }
    }
}
