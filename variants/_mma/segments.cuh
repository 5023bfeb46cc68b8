// A block's run, segment by segment: the first keys and rows of Q of a segment arrive while the block ends the one before.
// equal_runs.cuh is put before this text.

// A warp's ring, as `Ring` in split_attention.cuh, which goes on with the next keys where these end. `Keys` has, instead of
// K(key) and V(key) there,
//     source(of_V, key)    where K or V begins in memory
//     expect(key)          that keys are asked for next, from this one on
template <class Keys> struct ContinuedRing {
    typedef decltype(tiles_of(static_cast<Keys *>(nullptr)->source(false, 0))) Tiles;
    Keys keys = {}, next = {};  // of which tiles are copied, and those behind
    bool has_next = false;
    int slot = begin();                         // which is read next
    int copied = 0, copied_key = 0, ahead = 0;  // tiles of K or V, the next one's first key, and how many have not been read

    __device__ __forceinline__ static int warp() { return threadIdx.x / 32; }
    __device__ __forceinline__ static int begin() { return warp() * RING_BYTES; }

    // COUNT - 1 copies ahead, or as many as there are keys: then `wait_for_slot` waits for the right one.
    __device__ __forceinline__ void continue_with(const Keys &following)
    {
        next = following;
        next.expect(next.first_tile(warp()));
        has_next = true;
        if (!CONTINUES) begin_next();
#pragma unroll 1
        for (int missing = Tiles::COUNT - 1 - ahead; missing > 0; --missing) copy_next();
    }

    __device__ __forceinline__ void begin_next()
    {
        keys = next;
        has_next = false;
        copied_key = keys.first_tile(warp());
    }
    __device__ __forceinline__ void copy_next()
    {
        if (CONTINUES && copied_key >= keys.end && has_next) begin_next();
        if (copied_key < keys.end) {
            const int to = begin() + copied % Tiles::COUNT * Tiles::SLOT;
            const bool is_V = copied % 2 == 1;
            Tiles::copy(to, keys.source(is_V, copied_key), keys.skipped(copied_key), keys.end - copied_key, threadIdx.x % 32,
                        !is_V);
            if (copied++ % 2 == 1) copied_key = keys.tile_after(copied_key);
            ++ahead;
        }
        commit_copies();
    }
    // Before a warp's `tile`-th tile, as far as all warps have so many: none of them has keys left when others have none.
    __device__ __forceinline__ void keep_step(const Keys &own, int tile) const
    {
        if (tile < (own.end - own.begin) / LEAN_TILE - (own.first > own.begin)) __syncthreads();
    }
    __device__ __forceinline__ void wait_for_slot()
    {
        wait_for_copies<Tiles::COUNT - 2>();
        __syncwarp();
        copy_next();
    }
    __device__ __forceinline__ void next_slot()
    {
        slot = slot + Tiles::SLOT == begin() + Tiles::COUNT * Tiles::SLOT ? begin() : slot + Tiles::SLOT;
        --ahead;
    }
};

// find(to, at, run_end), by the first warp: the segment that begins there -> `to`. keys_of(segment): its keys. finish(segment,
// keys, ring, Q_tile): attention, of which nothing is read in shared memory any more when all warps return. `segments`: room for
// two.
template <class Found, class Find, class KeysOf, class Finish>
__device__ __forceinline__ void take_run(Found *segments, const stored *Q, const Runs &runs, int group_rows, const Find &find,
                                         const KeysOf &keys_of, const Finish &finish)
{
    const int t = threadIdx.x;
    typedef ContinuedRing<decltype(keys_of(segments[0]))> Ring;
    typedef typename Ring::Tiles Tiles;
    Ring ring;
    bool has_own = false;  // at first there is only the next one
    clear_padding(Q_ROWS_END, t);
#pragma unroll 1
    for (int number = 0;; number ^= 1) {
        Found &own = segments[number], &next = segments[number ^ 1];
        const int Q_tile = Q_TILE + CONTINUES * number * SLOT_BYTES;
        const int next_Q_tile = Q_TILE + CONTINUES * (number ^ 1) * SLOT_BYTES;
        const bool has_next = !has_own || !own.is_last();
        const auto begin_next = [&] {
            const size_t first_row = (size_t)next.kv_head * group_rows + next.tile.first_row;
            copy_tile<THREADS>(next_Q_tile, Q + first_row * D, 0, next.tile.rows, t);
            commit_copies();
            ring.continue_with(keys_of(next));
        };
        if (t < 32 && has_next) {
            find(next, has_own ? own.to : runs.begin(blockIdx.x), has_own ? own.run_end : runs.begin(blockIdx.x + 1));
        }
        if (t == THREADS - 1 && has_own) own.count_blocks(runs);
        __syncthreads();  // all warps have copied of Q, and the next segment has been found
        if (CONTINUES && has_next) begin_next();
        if (has_own) {
            Tiles::arrange_Q(Q_tile, t);
            finish(own, keys_of(own), ring, Q_tile);
            if (!has_next) return;
            __syncthreads();  // nothing of it is read in shared memory any more
            if (!CONTINUES) clear_padding(Q_ROWS_END, t);  // O lay there
            wait_for_copies<0>();                          // the next rows of Q
        }
        if (!CONTINUES) begin_next();
        if (!CONTINUES || !has_own) wait_for_copies<Tiles::COUNT - 1>();  // the same, without waiting for keys
        has_own = true;
    }
}
