// Who does what, and when, where one warp fetches tiles of keys and warpgroups of 64 rows each multiply them: Shah et al.
// 2024, arXiv 2407.08608, algorithm 1. hopper.cuh and softmax.cuh are put before this text.
//
// Compile-time parameters: BC (keys per tile), CONSUMERS (warpgroups of 64 rows each), STAGES (tiles of K, and of V, on
// chip), MASKED and WINDOWED (see softmax.cuh).

constexpr int BR = 64 * CONSUMERS;
constexpr int WARPS = WARPGROUP / 32;
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int THREADS = WARPGROUP + CONSUMER_THREADS;

// Registers per thread, of 65536 on a multiprocessor: addresses for the producer, S, P and O for consumers.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 160;

// Named barriers. 0 is __syncthreads().
constexpr int ALL_CONSUMERS = 1;
constexpr int TURN = 2;  // and the next: of the first consumer and of the second
constexpr int OWN = 4;   // and the next ones: of one warpgroup

// Full: what is awaited there has come. Empty: all warps of consumers are done with it.
struct Barriers {
    u64 K_full[STAGES], K_empty[STAGES], V_full[STAGES], V_empty[STAGES];
    u64 Q_full, Q_empty;        // of the block's one Q_i, whose place O_i takes
    u64 work_told, work_heard;  // of which tile of rows comes next
};

// Of the tile of keys that is a block's `step`-th: where it lies, and the parity of the phase in which it is there.
__device__ __forceinline__ int stage(int step) { return step % STAGES; }
__device__ __forceinline__ int phase(int step) { return step / STAGES & 1; }

// By one thread.
__device__ __forceinline__ void init_barriers(Barriers &barriers)
{
    for (int stage = 0; stage < STAGES; ++stage) {
        init_barrier(barriers.K_full[stage], 1);
        init_barrier(barriers.V_full[stage], 1);
        init_barrier(barriers.K_empty[stage], CONSUMERS * WARPS);
        init_barrier(barriers.V_empty[stage], CONSUMERS * WARPS);
    }
    init_barrier(barriers.Q_full, 1);
    init_barrier(barriers.Q_empty, CONSUMERS * WARPS);
    init_barrier(barriers.work_told, 1);
    init_barrier(barriers.work_heard, CONSUMER_THREADS);
    publish_barriers();
}

// What does not change during a launch; `heads` are those of all batches.
struct Problem {
    int q_len, kv_len, heads, group, before, after;
    int row_tiles, heads_at_once;
};

// The tiles of rows, over all heads, that a block has not begun with. Each block asks until it is told that there is no
// more, so each launch asks as often as there are tiles, and the last question sets it back to 0 for the next launch.
__device__ unsigned taken;

// --- Work ------------------------------------------------------------------------------------------------------------

// One tile of rows, and the tiles of keys of which some row of it sees a key; none where end_tile <= first_tile.
struct Work {
    int head, first_row, first_tile, end_tile;
};

// Where masked, the rows that may see most keys, the last ones, come first, of as many heads at once as have K and V in
// L2: short work is left for the end, when not all blocks find some.
__device__ __forceinline__ Work work_of(int index, const Problem &p)
{
    int head, row_tile;
    if constexpr (MASKED) {
        const int first_head = index / (p.heads_at_once * p.row_tiles) * p.heads_at_once;
        const int heads = min(p.heads_at_once, p.heads - first_head);
        const int inside = index - first_head * p.row_tiles;
        head = first_head + inside % heads;
        row_tile = p.row_tiles - 1 - inside / heads;
    } else {
        head = index / p.row_tiles;
        row_tile = index % p.row_tiles;
    }
    const int first_row = row_tile * BR;
    if constexpr (!MASKED) return {head, first_row, 0, (p.kv_len + BC - 1) / BC};
    const int last_row = min(first_row + BR, p.q_len) - 1;
    return {head, first_row, WINDOWED ? first_seen(first_row, p.q_len, p.kv_len, p.before) / BC : 0,
            (end_seen(last_row, p.q_len, p.kv_len, p.after) + BC - 1) / BC};
}

// --- The producer ----------------------------------------------------------------------------------------------------

// Algorithm 1, the producer's part, done by one lane: tiles are fetched in the order in which consumers ask for them.
// `tell` is given the index of the work to come, `load_Q_i` the work, `load_K_j` and `load_V_j` a stage, a tile of keys
// and its head; they copy to a barrier.
template <int Q_BYTES, int KV_BYTES, typename Tell, typename LoadQ, typename LoadK, typename LoadV>
__device__ __forceinline__ void produce(Barriers &barriers, const Problem &p, const Tell &tell, const LoadQ &load_Q_i,
                                        const LoadK &load_K_j, const LoadV &load_V_j)
{
    const int tiles = p.row_tiles * p.heads;
    int index = blockIdx.x;
    for (int round = 0, step = 0;; ++round) {
        wait(barriers.work_heard, (round & 1) ^ 1);
        tell(index);
        arrive(barriers.work_told);
        if (index >= tiles) return;
        const Work work = work_of(index, p);
        const int kv_head = work.head / p.group;
        const auto load_Q = [&] {
            wait(barriers.Q_empty, (round & 1) ^ 1);
            arrive_and_expect(barriers.Q_full, Q_BYTES);
            load_Q_i(work, barriers.Q_full);
        };
        if (work.end_tile <= work.first_tile) load_Q();
        for (int j = work.end_tile - 1; j >= work.first_tile; --j, ++step) {
            const int s = stage(step);
            wait(barriers.K_empty[s], phase(step) ^ 1);
            arrive_and_expect(barriers.K_full[s], KV_BYTES);
            load_K_j(s, j, kv_head, barriers.K_full[s]);
            if (j == work.end_tile - 1) load_Q();
            wait(barriers.V_empty[s], phase(step) ^ 1);
            arrive_and_expect(barriers.V_full[s], KV_BYTES);
            load_V_j(s, j, kv_head, barriers.V_full[s]);
        }
        index = gridDim.x + atomicInc(&taken, tiles - 1);
    }
}

// --- O ---------------------------------------------------------------------------------------------------------------

// O_i, each row times its factor, rounded to 16 bits -> the warpgroup's rows of a tile.
__device__ __forceinline__ void stage_output(const Output &O, const PerRow &factor, unsigned rows)
{
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < TD; j += 2) {
        unsigned o[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int e = 4 * j + 2 * c;
            o[c] = packed(O[e] * factor[c % 2], O[e + 1] * factor[c % 2]);
        }
        const int box = 8 * j / COLUMNS, piece = j % (COLUMNS / 8) + lane / 16;
        const unsigned at = rows + box * BR * ROW_BYTES + piece_of_row(16 * warp + lane % 16, piece);
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(o[0]), "r"(o[1]),
                     "r"(o[2]), "r"(o[3])
                     : "memory");
    }
}

// --- Registers as a ring ---------------------------------------------------------------------------------------------

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
