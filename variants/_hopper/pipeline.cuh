// The pipeline between a producer, one lane that fetches tiles, and consumers, warpgroups of 64 rows each that multiply them:
// Shah et al. 2024, arXiv 2407.08608, algorithm 1. slots.cuh, turns.cuh, row_tiles.cuh and inspection.cuh are put before this
// text.
//
// Compile-time parameter: STAGES (tiles of K, and of V, on chip).

constexpr int THREADS = WARPGROUP + CONSUMER_THREADS;

// The barriers. K and V have a slot for each stage; Q_i and O_i one, or one for each consumer; the tile of rows that comes next
// has one.
template <int Q_SLOTS, class VInspection> struct Pipeline {
    Slots<STAGES> K, V;
    Slots<1> Q[Q_SLOTS], work;
    int index;  // of the next tile of rows
    TileNumbers<Sequences> numbers;
    VInspection inspection;

    // Line 1, by one thread: `readers` threads of each consumer release what it has read.
    __device__ __forceinline__ void init(int readers)
    {
        K.init(CONSUMERS * readers);
        V.init(CONSUMERS * readers + VInspection::WARPS);
        for (int q = 0; q < Q_SLOTS; ++q) Q[q].init(CONSUMERS * readers / Q_SLOTS);
        work.init(CONSUMER_THREADS);
        inspection.init();
        numbers.init();
        publish_barriers();
    }

    // By the producer, and by all consumers: the index of the tile of rows that is the block's `round`-th.
    __device__ __forceinline__ void announce(int round, int next)
    {
        work.wait_until_empty(round);
        index = next;
        arrive(work.full(round));
    }
    __device__ __forceinline__ int next_tile(int round)
    {
        work.wait_until_full(round);
        const int next = index;
        work.release(round);
        return next;
    }
};

// K or V on chip: a circular buffer of tiles of BYTES bytes. Item `step` is the tile that the block visits as its `step`-th.
template <int BYTES> struct TileBuffer {
    static constexpr int PIECES = BYTES / 16;
    Slots<STAGES> &slots;
    unsigned tiles;
    __device__ __forceinline__ unsigned tile(int step) const { return tiles + step % STAGES * BYTES; }
    __device__ __forceinline__ void wait_until_full(int step) const { slots.wait_until_full(step); }
    __device__ __forceinline__ void release(int step) const { slots.release(step); }
};

// Number of tiles of rows that blocks have taken after their first ones. Each launch increments it once for each tile of rows,
// so that it wraps to 0 for the next launch.
__device__ unsigned taken;

// Lines 4 to 10, by one lane: tiles are fetched in the order in which consumers ask for them. `load_Q(slot, rows, barrier)`
// begins to copy Q_i, `load_K` and `load_V(to, rows, first_key, barrier)` a tile of the keys of a tile of rows.
template <int Q_BYTES, int KV_BYTES, int Q_SLOTS, class VInspection, class LoadQ, class LoadK, class LoadV>
__device__ __forceinline__ void produce(Pipeline<Q_SLOTS, VInspection> &pipeline, const TileBuffer<KV_BYTES> &K,
                                        const TileBuffer<KV_BYTES> &V, const Problem &p, const LoadQ &load_Q,
                                        const LoadK &load_K, const LoadV &load_V)
{
    const auto after = [&] { return gridDim.x + atomicInc(&taken, p.sequences.tiles(p.packs) - 1); };
    int index = pipeline.numbers.index(blockIdx.x, p);
    for (int round = 0, step = 0;; ++round) {
        pipeline.announce(round, index);
        if (index >= p.packs.tiles()) return pipeline.inspection.end(V.slots, step);
        const RowTile rows = row_tile(index, p);
        WholeTiles whole = {};
        if (rows.sees_some_key()) whole = whole_tiles(rows, p);
        int j = rows.keys.end - 1;
        bool is_first = true;
        KeyTiles<TileOrder>::Tile tile = {};
        do {
            const bool sees_keys = j >= rows.keys.first;  // rows that see no key have a Q_i nevertheless
            if (sees_keys) {
                tile = rows.keys[j];
                K.slots.wait_until_empty(step);
                K.slots.expect(step, KV_BYTES);
                load_K(K.tile(step), rows, rows.own.key(tile.first_key()), K.slots.full(step));
            }
            if (is_first) {
                is_first = false;
#pragma unroll 1
                for (int q = 0; q < Q_SLOTS; ++q) {
                    pipeline.Q[q].wait_until_empty(round);
                    pipeline.Q[q].expect(round, Q_BYTES / Q_SLOTS);
                    load_Q(q, rows, pipeline.Q[q].full(round));
                }
            }
            if (!sees_keys) break;
            V.slots.wait_until_empty(step);
            pipeline.inspection.mark(step, whole.has(tile));
            V.slots.expect(step, KV_BYTES);
            load_V(V.tile(step), rows, rows.own.key(tile.first_key()), V.slots.full(step));
            ++step;
        } while (--j >= rows.keys.first);
        index = pipeline.numbers.index(after(), p);
    }
}
