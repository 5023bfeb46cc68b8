// What a block has on chip: tiles, the barriers that announce them, and which warpgroup computes what of them. slots.cuh,
// seen.cuh, order.cuh with the type Order, and the products are put before this text.
//
// Compile-time parameters: D and HEAD_DIM (elements per row, on chip and in memory), BR and BC (rows and keys per tile), STAGES
// (tiles of Q, and of dO, on chip), KEPT (times 16 elements of each key in registers), LARGEST_DQ (columns of dQ_i for one
// warpgroup).

constexpr int CONSUMERS = BC / 64;
constexpr int CONSUMER_THREADS = WARPGROUP * CONSUMERS;
constexpr int WARPS = CONSUMER_THREADS / 32;  // of consumers
constexpr int THREADS = WARPGROUP + CONSUMER_THREADS;
constexpr int ADDER = 32;         // the thread that adds dQ in a fixed order, of the producer's warpgroup
constexpr int ALL_CONSUMERS = 1;  // number of a named barrier

constexpr int ROWS_BYTES = BR * D * (int)sizeof(stored);  // of Q_i, and of dO_i
constexpr int KEYS_BYTES = BC * D * (int)sizeof(stored);  // of K_j, and of V_j
constexpr int STAT_BYTES = BR * (int)sizeof(float);       // of L_i, and of D_i

// dS^T is in boxes of 64 rows: BC keys of 128 bytes each, in the order in which copies leave rows.
constexpr int KEY_BYTES = 128;
constexpr int DS_BOX_BYTES = BC * KEY_BYTES;
constexpr int DS_BYTES = BR / 64 * DS_BOX_BYTES;

// dQ_i = dS K_j: a warpgroup has 64 rows of it. Where these are all, and there are registers for all columns beside dK_j, dV_j,
// P and dS, the two take turns: one has dQ_i of this tile, the other of the next. Else one has the columns of a box, the other
// those that are left.
constexpr bool HALVE_ROWS = BR == 64 * CONSUMERS;
static_assert(HALVE_ROWS || BR == 64, "each warpgroup has 64 rows of dQ_i");
constexpr bool TAKE_TURNS = !HALVE_ROWS && HEAD_DIM <= LARGEST_DQ, HALVE_COLUMNS = !HALVE_ROWS && !TAKE_TURNS;
constexpr int FIRST_COLUMNS = HALVE_COLUMNS ? COLUMNS : HEAD_DIM;                          // of the first warpgroup
constexpr int LAST_COLUMNS = HALVE_COLUMNS ? HEAD_DIM - FIRST_COLUMNS : FIRST_COLUMNS;  // of the second one
constexpr int FRAGMENT = 128;            // floats of 16 rows and 8 columns (_mma_backward/dq.cuh)
constexpr int FRAGMENTS = HEAD_DIM / 8;  // side by side
constexpr int WARP_DQ_BYTES = FIRST_COLUMNS / 8 * FRAGMENT * (int)sizeof(float);  // 16 rows

// Whether the warpgroup has a part of dQ_i of the tile that the block visits as its `n`-th.
__device__ __forceinline__ bool has_dQ(int n, int consumer) { return !TAKE_TURNS || n % CONSUMERS == consumer; }

// Which consumers' warps have parts of dQ_i of a tile, and how many tiles' parts have places on chip.
constexpr int WARPS_WITH_DQ = TAKE_TURNS ? WARPS / CONSUMERS : WARPS, TILES_OF_DQ = TAKE_TURNS ? CONSUMERS : 1;

// In the layout of products: keys g and g + 8 of the warp's 16 are h = 0 and 1, at [4 j + 2 h] and the next, which are rows
// 8 j + 2 q and the next; or elements of a row.
typedef float Scores[BR / 2];      // S^T and dP^T, then P^T and dS^T
typedef unsigned Weights[BR / 4];  // A: P^T or dS^T, four registers for 16 rows
typedef float Sums[HEAD_DIM / 2];  // dK_j or dV_j

// Addresses. Tiles of dS^T are two, so that one is written while the one before is read.
struct Chip {
    unsigned K_tile;
    __device__ __forceinline__ unsigned V_tile() const { return K_tile + KEYS_BYTES; }
    __device__ __forceinline__ unsigned Q_tile(int n) const { return K_tile + 2 * KEYS_BYTES + n % STAGES * ROWS_BYTES; }
    __device__ __forceinline__ unsigned dO_tile(int n) const { return Q_tile(n) + STAGES * ROWS_BYTES; }
    __device__ __forceinline__ unsigned dS_tile(int n) const
    {
        return K_tile + 2 * KEYS_BYTES + 2 * STAGES * ROWS_BYTES + n % 2 * DS_BYTES;
    }
    // A warp's part of dQ_i on its way out, which is 16 rows.
    __device__ __forceinline__ unsigned dQ(int warp) const
    {
        return K_tile + 2 * KEYS_BYTES + 2 * STAGES * ROWS_BYTES + 2 * DS_BYTES + warp * WARP_DQ_BYTES;
    }
    __device__ __forceinline__ unsigned L(int n) const { return dQ(WARPS) + n % STAGES * STAT_BYTES; }
    __device__ __forceinline__ unsigned delta(int n) const { return L(n) + STAGES * STAT_BYTES; }
};

// Parts of dQ_i in their places, for the thread that adds them in a fixed order. Else the warps add them: nobody waits.
template <bool IS_FIXED> struct DQBarriers {
    __device__ __forceinline__ void init_dQ() {}
    __device__ __forceinline__ void wait_until_dQ_is_empty(int) {}
    __device__ __forceinline__ void fill_dQ(int) {}
    __device__ __forceinline__ void wait_until_dQ_is_full(int) {}
    __device__ __forceinline__ void release_dQ(int) {}
};
template <> struct DQBarriers<true> {
    Slots<TILES_OF_DQ> dQ;
    __device__ __forceinline__ void init_dQ() { dQ.init(1, WARPS_WITH_DQ); }
    __device__ __forceinline__ void wait_until_dQ_is_empty(int n) { dQ.wait_until_empty(n); }
    __device__ __forceinline__ void fill_dQ(int n) { dQ.fill(n); }
    __device__ __forceinline__ void wait_until_dQ_is_full(int n) { dQ.wait_until_full(n); }
    __device__ __forceinline__ void release_dQ(int n) { dQ.release(n); }
};

// Q_i comes with L_i, dO_i with D_i.
struct Barriers : DQBarriers<Order::IS_FIXED> {
    Slots<1> K, V;
    Slots<STAGES> Q, dO;
    Slots<2> dS;  // which all warps of consumers fill, and those that have a part of dQ_i read

    // By one thread.
    __device__ __forceinline__ void init()
    {
        K.init(1);
        V.init(1);
        Q.init(WARPS);
        dO.init(WARPS);
        dS.init(WARPS_WITH_DQ, WARPS);
        init_dQ();
        publish_barriers();
    }
};

// The tiles of rows that a block visits: those with a row that sees one of its keys, of all heads that share the keys. In a fixed
// order their numbers are negative: the last rows come first. Where causal, all blocks see these, and can follow each other soon.
struct Visits {
    int first_tile, tiles, count;

    // Rows `first` to `end` - 1 see the keys.
    static __device__ __forceinline__ Visits of(int first, int end, int heads)
    {
        const int tile = first / BR, tiles = first < end ? (end + BR - 1) / BR - tile : 0;
        // The compiler is not to count backwards instead, for which there are too few registers.
        return {Order::IS_FIXED ? unknown(1 - tile - tiles) : tile, tiles, heads * tiles};
    }
};

// One of them.
struct Visit {
    int number, head, tile;  // the head is counted from the first of those that share the keys
    __device__ __forceinline__ int first_row() const { return (Order::IS_FIXED ? -tile : tile) * BR; }

    static __device__ __forceinline__ Visit first(const Visits &all) { return {0, 0, all.first_tile}; }
    __device__ __forceinline__ void next(const Visits &all)
    {
        ++number;
        if (++tile == all.first_tile + all.tiles) {
            tile = all.first_tile;
            ++head;
        }
    }
};
