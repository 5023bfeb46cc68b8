// Warps that look through tiles of V for values that are not finite, so that consumers need not. slots.cuh and turns.cuh are
// put before this text.
//
// Compile-time parameter: STAGES (tiles of V on chip).

// Whether there are such warps.
template <bool THERE_ARE> struct Inspection;

// The producer's other three warps. The producer marks the tiles that not all rows see all keys of; for these the warps report
// whether V has NaN or infinity, before consumers multiply it.
template <> struct Inspection<true> {
    static constexpr int WARPS = 3;
    enum Mark { PASS, INSPECT, END };

    typedef Slots<STAGES> Stages;
    u64 are_inspected[STAGES];
    int marks[STAGES], found[STAGES][WARPS];

    __device__ __forceinline__ void init()
    {
        for (u64 &barrier : are_inspected) init_barrier(barrier, WARPS);
    }

    // By the producer, of a tile that is about to be fetched.
    __device__ __forceinline__ void mark(int step, bool all_seen) { marks[Stages::slot(step)] = all_seen ? PASS : INSPECT; }

    // By the producer, behind the last tile: it fills a slot of `V` with none.
    __device__ __forceinline__ void end(Stages &V, int step)
    {
        V.wait_until_empty(step);
        marks[Stages::slot(step)] = END;
        arrive(V.full(step));
    }

    // By the warps, all of the launch: the tiles of `V`.
    template <class Tiles> __device__ __forceinline__ void inspect(const Tiles &V)
    {
        const int thread = threadIdx.x - 32, lane = thread % 32;
#pragma unroll 1
        for (int step = 0;; ++step) {
            V.wait_until_full(step);
            const int mark = marks[Stages::slot(step)];
            if (mark == END) return;
            unsigned carries = 0;
            if (mark == INSPECT) {
                const uint4 *const pieces = reinterpret_cast<const uint4 *>(shared_pointer(V.tile(step)));
#pragma unroll 4
                for (int e = thread; e < Tiles::PIECES; e += 32 * WARPS) {
                    const uint4 v = pieces[e];
                    carries |= carry(v.x) | carry(v.y) | carry(v.z) | carry(v.w);
                }
            }
            const bool any = __any_sync(0xffffffff, carries & 0x80008000);
            if (lane == 0) found[Stages::slot(step)][thread / 32] = any;
            __syncwarp();
            if (lane == 0) {
                arrive(are_inspected[Stages::slot(step)]);
                V.release(step);
            }
        }
    }

    // By consumers: whether V has NaN or infinity, of a tile so marked, and false of others.
    __device__ __forceinline__ bool finds(int step)
    {
        wait(are_inspected[Stages::slot(step)], Stages::phase(step));
        int any = 0;
        for (int warp = 0; warp < WARPS; ++warp) any |= found[Stages::slot(step)][warp];
        return any;
    }
};

// Where all rows see all keys, or consumers look themselves.
template <> struct Inspection<false> {
    static constexpr int WARPS = 0;
    __device__ __forceinline__ void init() {}
    __device__ __forceinline__ void mark(int, bool) {}
    __device__ __forceinline__ void end(Slots<STAGES> &, int) {}
    template <class Tiles> __device__ __forceinline__ void inspect(const Tiles &) {}
    __device__ __forceinline__ bool finds(int) { return false; }
};
