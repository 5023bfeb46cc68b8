// FlashAttention-3, forward pass: Shah et al. 2024, arXiv 2407.08608, algorithms 1 (who does what) and 2 (a consumer:
// softmax of one tile of keys beside the products of the tile before). Q_i, K_j, V_j, S_next, P_cur, m, l are the
// paper's.
//
// _mma/mma.cuh, _hopper/hopper.cuh, _hopper/softmax.cuh, pipeline.cuh, which has the producer, and the products of the
// tile's sizes are put before this text.
//
// Compile-time parameters besides theirs: TURNS (whether two consumers take turns with the tensor cores), O_APART (whether
// O_i has a place of its own on its way out, so that the next Q_i arrives meanwhile, or takes that of Q_i).

// --- Products --------------------------------------------------------------------------------------------------------

// S_next = Q_i K_j^T for the warpgroup's rows, under way.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, unsigned Q_rows, unsigned K_tile)
{
    const u64 Q = along_rows(Q_rows), K = along_rows(K_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) multiply(S, Q + steps_along<BR>(k), K + steps_along<BC>(k), k > 0);
    commit_products();
}

// O_i += P_cur V_j, under way.
__device__ __forceinline__ void add_P_V(Output &O, const Weights &P, unsigned V_tile)
{
    const u64 V = across_rows<BC>(V_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k) multiply_add(O, P + 4 * k, V + steps_across(k));
    commit_products();
}

// tau2 is positive: the warpgroup's rows of Q_i take the sign of tau, or become 0.
__device__ __forceinline__ void give_sign(unsigned char *Q_rows, int sign, int warpgroup)
{
    for (int e = threadIdx.x % WARPGROUP; e < BOXES * 64 * ROW_BYTES / 4; e += WARPGROUP) {
        constexpr int WORDS = 64 * ROW_BYTES / 4;
        unsigned &both = reinterpret_cast<unsigned *>(Q_rows + e / WORDS * BR * ROW_BYTES)[e % WORDS];
        both = sign < 0 ? both ^ 0x80008000 : packed(0.0f * unpacked(both).x, 0.0f * unpacked(both).y);
    }
    publish_to_async();
    sync_threads(OWN + warpgroup, WARPGROUP);
}

// --- V that is not finite --------------------------------------------------------------------------------------------

// Registers have no index at run time: what is wanted first moves by the first `STEP` of them, in a ring.
template <int STEP, typename T, int N>
__device__ __forceinline__ void move_up(T (&ring)[N])
{
    T first[STEP];
#pragma unroll
    for (int i = 0; i < STEP; ++i) first[i] = ring[i];
#pragma unroll
    for (int i = STEP; i < N; ++i) ring[i - STEP] = ring[i];
#pragma unroll
    for (int i = 0; i < STEP; ++i) ring[N - STEP + i] = first[i];
}

// O += p v for each v of a tile of so many keys that is NaN or infinity, in rows that see its key. It is to be short, and
// need not be fast.
__device__ __forceinline__ void add_not_finite(Output &O, Weights &P, const unsigned char *V_tile, int keys,
                                               const KeysSeen &seen)
{
    const int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll 1
    for (int j = 0; j < TD; ++j) {
#pragma unroll 1
        for (int first_key = 0; first_key < BC; first_key += 16) {
#pragma unroll 1
            for (int key = first_key; key < min(first_key + 16, keys); ++key) {
                const int at = 8 * j / COLUMNS * BC * ROW_BYTES + piece_of_row(key, j % (COLUMNS / 8)) + 4 * quarter;
                const unsigned both = *reinterpret_cast<const unsigned *>(V_tile + at);
                const float2 v = unpacked(both);
                if (!__any_sync(0xffffffff, not_finite(both))) continue;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    // Of the four lanes that share a row each has two keys of 8.
                    const unsigned pair = __shfl_sync(0xffffffff, key & 8 ? P[2 + h] : P[h], (lane & ~3) | key % 8 / 2);
                    const float p = key % 2 ? unpacked(pair).y : unpacked(pair).x;
                    const bool in_run = key - 2 * quarter >= seen.first[h] && key - 2 * quarter < seen.end[h];
                    const bool sees = in_run && !seen.hides(h, key);
                    if (sees && !isfinite(v.x)) O[2 * h] += p * v.x;
                    if (sees && !isfinite(v.y)) O[2 * h + 1] += p * v.y;
                }
            }
            move_up<4>(P);
        }
        move_up<4>(O);
    }
}

__device__ __forceinline__ bool not_finite(const uint4 &v)
{
    return not_finite(v.x) || not_finite(v.y) || not_finite(v.z) || not_finite(v.w);
}

// Before P V of a tile of keys that not all rows see all of: a row must not even multiply NaN or infinity by its zero
// weight. All consumers look through V together. What is not finite is added one by one, and then counts as 0, so rows
// that see none of it get the bits that they would get without.
__device__ __forceinline__ void take_not_finite(Output &O, Weights &P, unsigned char *V_tile, int keys,
                                                const KeysSeen &seen)
{
    const int thread = threadIdx.x - WARPGROUP;
    uint4 *const V = reinterpret_cast<uint4 *>(V_tile);
    bool found = false;
#pragma unroll 4
    for (int e = thread; e < KV_BYTES / 16; e += CONSUMER_THREADS) found |= not_finite(V[e]);
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, found)) return;
    add_not_finite(O, P, V_tile, keys, seen);
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
#pragma unroll 1
    for (int e = thread; e < KV_BYTES / 16; e += CONSUMER_THREADS) {
        const uint4 v = V[e];
        if (not_finite(v)) {
            V[e] = make_uint4(finite_or_zero(v.x), finite_or_zero(v.y), finite_or_zero(v.z), finite_or_zero(v.w));
        }
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
}

// --- The kernel ------------------------------------------------------------------------------------------------------

extern "C" __global__ __launch_bounds__(THREADS, 1) void fa3(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap O, float *__restrict__ lse, int q_len, int kv_len, int packs,
    int packs_per_kv_head, int head_shift, int row_tiles, int packs_at_once, float tau2, int sign, LIMITS_OF_ROWS
        PACKS_PARAMETER VISITS_PARAMETERS)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    __shared__ int told;
#ifdef VISITS
    __shared__ Noted noted;
#endif
    const unsigned Q_tile = (shared_address(dynamic) + 1023) / 1024 * 1024;
    const unsigned K_tiles = Q_tile + Q_BYTES, V_tiles = K_tiles + STAGES * KV_BYTES;
    const unsigned O_tile = O_APART ? V_tiles + STAGES * KV_BYTES : Q_tile;
    const Problem p = {q_len,  kv_len, packs,     packs_per_kv_head, head_shift,
                       before, after,  row_tiles, packs_at_once PACKS_ARGUMENT LISTS_ARGUMENT};

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            init_barrier(barriers.K_full[stage], 1);
            init_barrier(barriers.V_full[stage], 1);
            init_barrier(barriers.K_empty[stage], CONSUMERS);
            init_barrier(barriers.V_empty[stage], CONSUMERS);
        }
        for (int w = 0; w < CONSUMERS; ++w) {
            init_barrier(barriers.Q_full[w], 1);
            init_barrier(barriers.Q_empty[w], 1);
        }
        init_barrier(barriers.work_told, 1);
        init_barrier(barriers.work_heard, CONSUMER_THREADS);
        publish_barriers();
    }
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x == 0) produce(Q_tile, K_tiles, V_tiles, barriers, told, Q, K, V, p);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int warpgroup = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
        const bool speaks = threadIdx.x % WARPGROUP == 0;  // for its warpgroup
        const unsigned Q_rows = Q_tile + warpgroup * 64 * ROW_BYTES, O_rows = O_tile + warpgroup * 64 * ROW_BYTES;
        // With TURNS, products of one consumer are issued while the other has its softmax. The first one begins.
        const auto begin_turn = [&] {
            if constexpr (TURNS) sync_threads(TURN + warpgroup, CONSUMER_THREADS);
        };
        const auto end_turn = [&] {
            if constexpr (TURNS) arrive_threads(TURN + 1 - warpgroup, CONSUMER_THREADS);
        };
        const auto give_Q_back = [&] {
            if (speaks) arrive(barriers.Q_empty[warpgroup]);
        };
        if (TURNS && warpgroup == 1) end_turn();

        for (int round = 0, step = 0;; ++round) {
            wait(barriers.work_told, round & 1);
            const int index = told;
            arrive(barriers.work_heard);
            if (index >= row_tiles * packs) break;
            const Work work = work_of(index, p);
            // The lane's rows of the warpgroup's 64 are `mine` and mine + 8; in their heads they are row[0] and row[1].
            const int first_row = work.first_row + (warpgroup << head_shift), mine = 16 * warp + lane / 4;
            const int last = (1 << head_shift) - 1;
            const int row[2] = {first_row + (mine & last), first_row + (mine + 8 & last)};

            // O_i = 0, l = 0, m = -inf, in registers.
            Rows own;
#pragma unroll
            for (int e = 0; e < D / 2; ++e) own.O[e] = 0.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                own.m[h] = MINUS_INFINITY;
                own.l[h] = 0.0f;
            }
            wait(barriers.Q_full[warpgroup], round & 1);
            if (sign != 1) give_sign(shared_pointer(Q_rows), sign, warpgroup);

            if (work.first_tile < work.end_tile) {
                const WholeTiles whole = whole_tiles(work, p);
#ifndef SPANS
                const auto run_of = [&](int first_key) { return keys_seen(row, first_key, q_len, kv_len, before, after); };
#else
                KeysSeen limits;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int some_row = min(row[h], q_len - 1);  // behind the last one nothing is kept
                    limits.first[h] = p.first_of(some_row, work.pack);
                    limits.end[h] = p.end_of(some_row, work.pack);
                }
                const auto run_of = [&](int first_key) { return keys_seen(limits, first_key); };
#endif
#ifndef VISITS
                const auto seen_of = [&](int j) { return run_of(j * BC); };
                const auto is_whole = [&](int j) { return whole.has(j); };
                const auto note = [&] {};
#else
                Visit listed = work.listed[work.end_tile - 1];  // the one at work
                const auto seen_of = [&](int) {
                    KeysSeen seen = run_of(listed.tile() * BC);
                    seen.noted = listed.is_mixed() ? noted + 64 * warpgroup : nullptr;
                    return seen;
                };
                const auto is_whole = [&](int) { return !listed.is_mixed() && whole.has(listed.tile()); };
                // Each warp notes what its own rows see of it, before S takes its registers.
                const auto note = [&] {
                    if (!listed.is_mixed()) return;
                    const int first_key = listed.tile() * BC, rows = min(BR, q_len - work.first_row);
                    __syncwarp();
                    note_seen<16>(noted, RULE(p.list_of(work.pack)), work.first_row, rows, first_key,
                                  min(BC, kv_len - first_key), threadIdx.x - WARPGROUP);
                    __syncwarp();
                };
#endif
                Scores S;
                Weights P;
                PerRow correction;
                int j = work.end_tile - 1;

                // Before algorithm 2's loop: the first tile, which is the last one of keys and may not be full.
                note();
                wait(barriers.K_full[stage(step)], phase(step));
                begin_turn();
                multiply_Q_Kt(S, Q_rows, K_tiles + stage(step) * KV_BYTES);
                end_turn();
                wait_for_products<0>(S);
                if (speaks) arrive(barriers.K_empty[stage(step)]);
                mask(S, seen_of(j));
                exponentiate(own, S, correction, tau2);
                round_weights(P, S);

                // In the loop: S of this tile and P V of the one before are under way together, softmax beside P V.
                const auto visit = [&](bool masked) {
                    const int older = step++;
                    wait(barriers.K_full[stage(step)], phase(step));
                    begin_turn();
                    multiply_Q_Kt(S, Q_rows, K_tiles + stage(step) * KV_BYTES);
                    wait(barriers.V_full[stage(older)], phase(older));
                    add_P_V(own.O, P, V_tiles + stage(older) * KV_BYTES);
                    end_turn();
                    wait_for_products<1>(S);
                    if (speaks) arrive(barriers.K_empty[stage(step)]);
                    if (masked) mask(S, seen_of(j));
                    exponentiate(own, S, correction, tau2);
                    wait_for_products<0>(own.O);
                    if (speaks) arrive(barriers.V_empty[stage(older)]);
                    correct(own.O, correction);
                    round_weights(P, S);
                };
                // What a tile needs that not all rows see all of, before P V of it.
                const auto take = [&] {
                    if (is_whole(j)) return;
                    wait(barriers.V_full[stage(step)], phase(step));
#ifndef VISITS
                    const int keys = kv_len - j * BC;
#else
                    const int keys = kv_len - listed.tile() * BC;
#endif
                    take_not_finite(own.O, P, shared_pointer(V_tiles + stage(step) * KV_BYTES), keys, seen_of(j));
                };
                take();
                --j;
#ifndef VISITS
                for (; MASKED && j >= max(whole.to, work.first_tile); --j) {
                    visit(true);
                    take();
                }
                for (; j >= max(whole.from, work.first_tile); --j) visit(false);
                for (; WINDOWED && j >= work.first_tile; --j) {
                    visit(true);
                    take();
                }
#else
                for (; j >= work.first_tile; --j) {
                    listed = work.listed[j];
                    note();
                    visit(!is_whole(j));
                    take();
                }
#endif

                // Behind the loop.
                if (O_APART) give_Q_back();
                wait(barriers.V_full[stage(step)], phase(step));
                add_P_V(own.O, P, V_tiles + stage(step) * KV_BYTES);
                wait_for_products<0>(own.O);
                if (speaks) arrive(barriers.V_empty[stage(step)]);
                ++step;
            } else if (O_APART) {
                give_Q_back();
            }

            // O_i = diag(l)^-1 O_i, L_i = m + log(l). A row that saw nothing has l = 0: its O stays 0, its L is -inf.
            PerRow inverse;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float l = quad_sum(own.l[h]);
                inverse[h] = l == 0.0f ? 0.0f : 1.0f / l;
                if (lane % 4 == 0 && row[h] < q_len) {
                    const int head = (work.pack << 6 - head_shift) + (mine + 8 * h >> head_shift);
                    lse[(size_t)head * q_len + row[h]] = own.m[h] * LN_2 + logf(l);
                }
            }
            // Write O_i, by way of a place on chip: once the last one has gone, where it is O's own.
            if (O_APART) {
                if (speaks) wait_until_read();
                sync_threads(OWN + warpgroup, WARPGROUP);
            }
#pragma unroll
            for (int j = 0; j < TD; j += 2) {
                unsigned o[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    const int e = 4 * j + 2 * c;
                    o[c] = packed(own.O[e] * inverse[c % 2], own.O[e + 1] * inverse[c % 2]);
                }
                const int box = 8 * j / COLUMNS, piece = j % (COLUMNS / 8) + lane / 16;
                const unsigned at = O_rows + box * BR * ROW_BYTES + piece_of_row(16 * warp + lane % 16, piece);
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(o[0]),
                             "r"(o[1]), "r"(o[2]), "r"(o[3])
                             : "memory");
            }
            publish_to_async();
            sync_threads(OWN + warpgroup, WARPGROUP);
            if (speaks) store_rows<BR>(O_rows, O, first_row, work.pack);
            if (!O_APART) {
                if (speaks) wait_until_read();
                give_Q_back();
            }
        }
        if (O_APART && speaks) wait_until_read();
    }
}
