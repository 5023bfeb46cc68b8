// Who does what, and when, in FlashAttention-3: Shah et al. 2024, arXiv 2407.08608, algorithm 1. Barriers, tiles of rows and
// which tiles of keys they visit, and the producer. _mma/mma.cuh, _hopper/hopper.cuh and _hopper/softmax.cuh are put before
// this text.
//
// Compile-time parameters besides theirs: CONSUMERS (warpgroups of 64 rows each), STAGES (tiles of K, and of V, on chip). And
// SPANS, where what rows see is read from arrays, and VISITS, where it is no run of keys and tiles are listed:
// _tiles/spans.cuh, and _tiles/visits.cuh with BR, are put before this text then.

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
