// FlashAttention-3, forward pass: Shah et al. 2024, arXiv 2407.08608, algorithms 1 (who does what) and 2 (a consumer:
// softmax of one tile of keys beside the products of the tile before). Q_i, K_j, V_j, S_next, P_cur, m, l are the
// paper's.
//
// _mma/mma.cuh, _hopper/hopper.cuh, _hopper/softmax.cuh and the products of the tile's sizes are put before this text.
//
// Compile-time parameters besides theirs: CONSUMERS (warpgroups of 64 rows each), STAGES (tiles of K, and of V, on
// chip), TURNS (whether two consumers take turns with the tensor cores), O_APART (whether O_i has a place of its own on
// its way out, so that the next Q_i arrives meanwhile, or takes that of Q_i). And SPANS, where what rows see is read from
// arrays, and VISITS, where it is no run of keys and tiles are listed: _tiles/spans.cuh, and _tiles/visits.cuh with BR, are
// put before this text then.

#ifndef BR
constexpr int BR = 64 * CONSUMERS;
#endif
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int THREADS = WARPGROUP + CONSUMER_THREADS;
constexpr int Q_BYTES = BR * D * (int)sizeof(stored);
constexpr int KV_BYTES = BC * D * (int)sizeof(stored);  // of K_j, and of V_j

// Registers per thread, of 65536 on a multiprocessor: addresses for the producer, S, P and O for consumers.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 56;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 152;

// Named barriers. 0 is __syncthreads().
constexpr int ALL_CONSUMERS = 1;
constexpr int TURN = 2;  // and the next: of the first consumer and of the second
constexpr int OWN = 4;   // and the next ones: of one warpgroup

// Full: what is awaited there has come. Empty: all consumers are done with it.
struct Barriers {
    u64 K_full[STAGES], K_empty[STAGES], V_full[STAGES], V_empty[STAGES];
    u64 Q_full[CONSUMERS], Q_empty[CONSUMERS];  // of a consumer's rows of Q_i
    u64 work_told, work_heard;                  // of which tile of rows comes next
};

// Of the tile of keys that is a block's `step`-th: where it lies, and the parity of the phase in which it is there.
__device__ __forceinline__ int stage(int step) { return step % STAGES; }
__device__ __forceinline__ int phase(int step) { return step / STAGES & 1; }

// Where what rows see begins and ends: of first_seen() and end_seen().
#ifndef SPANS
typedef int KeyLimit;
#define LIMITS_OF_ROWS int before, int after
#else
typedef const int *KeyLimit;  // of each row of each sequence
#define LIMITS_OF_ROWS const int *__restrict__ before, const int *__restrict__ after
#endif
#if defined(SPANS) || defined(VISITS)
#define PACKS_PARAMETER , int packs_per_sequence
#define PACKS_ARGUMENT , packs_per_sequence
#else
#define PACKS_PARAMETER
#define PACKS_ARGUMENT
#endif
#ifdef VISITS
#define LISTS_ARGUMENT , visits, lists_per_sequence, lists_per_head
#else
#define VISITS_PARAMETERS
#define LISTS_ARGUMENT
#endif

// Heads that share K and V are packed, as many as the plan says: a warpgroup has 1 << head_shift rows of each, one head
// behind the other. A pack is those heads; `packs` are those of all batches.
struct Problem {
    int q_len, kv_len, packs, packs_per_kv_head, head_shift;
    KeyLimit before, after;
    int row_tiles, packs_at_once;
#if defined(SPANS) || defined(VISITS)
    int packs_per_sequence;
#endif
#ifdef VISITS
    const int *visits;
    int lists_per_sequence, lists_per_head;

    // Of a pack, which is a single head then.
    __device__ __forceinline__ int list_of(int pack) const { return pack % packs_per_sequence * lists_per_head; }
    __device__ __forceinline__ Visits listed(int pack, int row_tile) const
    {
        const int lists = pack / packs_per_sequence * lists_per_sequence + list_of(pack);
        return visits_of(visits, lists, row_tile, row_tiles, kv_len);
    }
#endif
#ifndef SPANS
    __device__ __forceinline__ int of_sequence(KeyLimit limit, int) const { return limit; }
#else
    __device__ __forceinline__ Limit of_sequence(KeyLimit limit, int pack) const
    {
        return {limit + (size_t)(pack / packs_per_sequence) * q_len, 0};
    }
#endif
    __device__ __forceinline__ int first_of(int row, int pack) const
    {
        return first_seen(row, q_len, kv_len, of_sequence(before, pack));
    }
    __device__ __forceinline__ int end_of(int row, int pack) const
    {
        return end_seen(row, q_len, kv_len, of_sequence(after, pack));
    }
};

// The tiles of rows, over all heads, that a block has not begun with. Each block asks until it is told that there is no
// more, so each launch asks as often as there are tiles, and the last question sets it back to 0 for the next launch.
__device__ unsigned taken;

// --- Work ------------------------------------------------------------------------------------------------------------

// One tile of rows, from `first_row` of each head of the pack on, and the tiles of keys of which some row of it sees a
// key; none where end_tile <= first_tile.
struct Work {
    int pack, first_row, first_tile, end_tile;
#ifdef VISITS
    Visits listed;  // those tiles, in this order

    __device__ __forceinline__ int key_tile(int j) const { return listed[j].tile(); }
#else
    __device__ __forceinline__ int key_tile(int j) const { return j; }
#endif
};

// Rows of each head in a tile of rows.
__device__ __forceinline__ int tile_rows(const Problem &p) { return CONSUMERS << p.head_shift; }

// Where masked, the rows that may see most keys, the last ones, come first, of as many packs at once as have K and V in
// L2: short work is left for the end, when not all blocks find some.
__device__ __forceinline__ Work work_of(int index, const Problem &p)
{
    int pack, row_tile;
    if constexpr (MASKED) {
        const int first_pack = index / (p.packs_at_once * p.row_tiles) * p.packs_at_once;
        const int packs = min(p.packs_at_once, p.packs - first_pack);
        const int inside = index - first_pack * p.row_tiles;
        pack = first_pack + inside % packs;
        row_tile = p.row_tiles - 1 - inside / packs;
    } else {
        pack = index / p.row_tiles;
        row_tile = index % p.row_tiles;
    }
    const int first_row = row_tile * tile_rows(p);
#ifdef VISITS
    const Visits listed = p.listed(pack, row_tile);
    return {pack, first_row, 0, listed.count, listed};
#else
    if constexpr (!MASKED) return {pack, first_row, 0, (p.kv_len + BC - 1) / BC};
    const int last_row = min(first_row + tile_rows(p), p.q_len) - 1;
    return {pack, first_row, WINDOWED ? p.first_of(first_row, pack) / BC : 0, (p.end_of(last_row, pack) + BC - 1) / BC};
#endif
}

// The tiles of keys that all rows of the block see all of, from `from` to before `to`.
struct WholeTiles {
    int from, to;

    __device__ __forceinline__ bool has(int j) const { return !MASKED || (j >= from && j < to); }
};

__device__ __forceinline__ WholeTiles whole_tiles(const Work &work, const Problem &p)
{
    if constexpr (!MASKED) return {0, work.end_tile - 1};
    const int last_row = min(work.first_row + tile_rows(p), p.q_len) - 1;
    return {WINDOWED ? (p.first_of(last_row, work.pack) + BC - 1) / BC : 0, p.end_of(work.first_row, work.pack) / BC};
}

// --- The producer ----------------------------------------------------------------------------------------------------

// Algorithm 1, the producer's part, done by one lane: tiles are fetched in the order in which consumers ask for them.
__device__ __forceinline__ void produce(unsigned Q_tile, unsigned K_tiles, unsigned V_tiles, Barriers &barriers,
                                        int &told, const TensorMap &Q, const TensorMap &K, const TensorMap &V,
                                        const Problem &p)
{
    const int tiles = p.row_tiles * p.packs;
    int index = blockIdx.x;
    for (int round = 0, step = 0;; ++round) {
        wait(barriers.work_heard, (round & 1) ^ 1);
        told = index;
        arrive(barriers.work_told);
        if (index >= tiles) return;
        const Work work = work_of(index, p);
        const int kv_head = work.pack / p.packs_per_kv_head;
        int j = work.end_tile - 1;
        do {
            const bool seen = j >= work.first_tile;  // if not, it is rows that see no key, and have a Q_i nevertheless
            const int s = stage(step);
            int key_tile = j;
            if (seen) {
                key_tile = work.key_tile(j);
                wait(barriers.K_empty[s], phase(step) ^ 1);
                arrive_and_expect(barriers.K_full[s], KV_BYTES);
                load_tile<BC>(K_tiles + s * KV_BYTES, K, key_tile * BC, kv_head, barriers.K_full[s]);
            }
            if (j == work.end_tile - 1) {
#pragma unroll 1
                for (int w = 0; w < CONSUMERS; ++w) {
                    wait(barriers.Q_empty[w], (round & 1) ^ 1);
                    arrive_and_expect(barriers.Q_full[w], Q_BYTES / CONSUMERS);
                    load_rows<BR>(Q_tile + w * 64 * ROW_BYTES, Q, work.first_row + (w << p.head_shift), work.pack,
                                  barriers.Q_full[w]);
                }
            }
            if (!seen) break;
            wait(barriers.V_empty[s], phase(step) ^ 1);
            arrive_and_expect(barriers.V_full[s], KV_BYTES);
            load_tile<BC>(V_tiles + s * KV_BYTES, V, key_tile * BC, kv_head, barriers.V_full[s]);
            ++step;
        } while (--j >= work.first_tile);
        index = gridDim.x + atomicInc(&taken, tiles - 1);
    }
}

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
