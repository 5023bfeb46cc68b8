// A warp that looks through tiles of V which not all rows of a block see whole. A product takes all keys of a tile, and 0 times
// NaN or infinity is NaN: the warp replaces these by 0, and notes for each element from which key on rows see them. What a row
// sees are keys 0 to before its end, so that the first key of each kind decides. row_tiles.cuh and tiles.cuh are put before this
// text.

template <bool THERE_IS> struct Inspection;

template <> struct Inspection<true> {
    enum Kind { PLUS, MINUS, NOT_A_NUMBER, KINDS };
    static constexpr int NO_KEY = 0x7fffffff;

    Event is_clean[STAGES];  // inspection -> products, one after the other
    Handover notes;          // inspection -> correction, in each round
    int first[KINDS][D], some;

    __device__ __forceinline__ void init()
    {
        for (Event &each : is_clean) each.init(1);
        notes.init(1, LANES);
    }

    // By products: the block's n-th inspected tile.
    __device__ __forceinline__ void wait_until_clean(int n) { is_clean[n % STAGES].wait_for(n / STAGES); }

    // Eight elements of a row of V, from `element` on.
    __device__ __forceinline__ void clean(uint4 &piece, int key, int element)
    {
        unsigned *const words = reinterpret_cast<unsigned *>(&piece);
        for (int i = 0; i < 4; ++i) {
            const float2 v = unpacked(words[i]);
            note(v.x, key, element + 2 * i);
            note(v.y, key, element + 2 * i + 1);
            words[i] = finite_or_zero(words[i]);
        }
    }
    __device__ __forceinline__ void note(float v, int key, int element)
    {
        if (v - v == 0.0f) return;
        atomicMin(&first[v != v ? NOT_A_NUMBER : v > 0.0f ? PLUS : MINUS][element], key);
    }

    // By all lanes of the warp.
    __device__ __forceinline__ void inspect(unsigned V_tile, int first_key)
    {
        uint4 *const pieces = reinterpret_cast<uint4 *>(shared_pointer(V_tile));
        bool found = false;
#pragma unroll 4
        for (int e = threadIdx.x % 32; e < BC * D / 8; e += 32) {
            const uint4 v = pieces[e];
            if (!((carry(v.x) | carry(v.y) | carry(v.z) | carry(v.w)) & 0x80008000)) continue;
            const int row = e / 8 % BC, piece = e % 8 ^ row % 8, box = e / (8 * BC);
            clean(pieces[e], first_key + row, box * COLUMNS + piece * 8);
            found = true;
        }
        publish_to_async();
        if (__any_sync(0xffffffff, found) && threadIdx.x % 32 == 0) some = 1;
        __syncwarp();
    }

    // By correction: what row's element e becomes that would be `o` without keys before `end`.
    __device__ __forceinline__ float with_notes(float o, int e, int end) const
    {
        if (first[PLUS][e] < end) o += -MINUS_INFINITY;
        if (first[MINUS][e] < end) o += MINUS_INFINITY;
        return first[NOT_A_NUMBER][e] < end ? MINUS_INFINITY - MINUS_INFINITY : o;
    }
    __device__ __forceinline__ bool wait_for_notes(int round)
    {
        notes.wait_until_full(round);
        return some != 0;
    }
    __device__ __forceinline__ void release_notes() { notes.release(); }

    // By the warp, all of the launch. Items of V are in `keys`.
    __device__ __forceinline__ void run(Schedule &schedule, Slots<STAGES> &keys, const Tiles &tiles, const Problem &p)
    {
        const int lane = threadIdx.x % 32;
        int step = 0, inspected = 0;
        for (int round = 0, index = blockIdx.x; index >= 0; index = schedule.tile_after(round++)) {
            const RowTile tile = row_tile(index, p);
            notes.wait_until_empty(round);
            for (int e = lane; e < KINDS * D; e += 32) first[e / D][e % D] = NO_KEY;
            if (lane == 0) some = 0;
            __syncwarp();
            for (int j = tile.key_tiles - 1; j >= 0; --j, ++step) {
                if (!tile.is_inspected(j)) continue;
                keys.wait_until_full(item_of_K(step));  // every item in turn: parity tells only neighbouring phases apart
                keys.wait_until_full(item_of_V(step));
                inspect(tiles.item(item_of_V(step)), j * BC);
                if (lane == 0) is_clean[inspected % STAGES].arrive();
                ++inspected;
            }
            __syncwarp();
            if (lane == 0) notes.publish();
        }
    }
};

// Where all rows see all keys.
template <> struct Inspection<false> {
    __device__ __forceinline__ void init() {}
    __device__ __forceinline__ void wait_until_clean(int) {}
    __device__ __forceinline__ float with_notes(float o, int, int) const { return o; }
    __device__ __forceinline__ bool wait_for_notes(int) { return false; }
    __device__ __forceinline__ void release_notes() {}
    __device__ __forceinline__ void run(Schedule &, Slots<STAGES> &, const Tiles &, const Problem &) {}
};
