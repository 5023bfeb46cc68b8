// What a thread keeps in registers, of which there are 255. _mma/mma.cuh and _mma/tiles.cuh are put before this text.
//
// Compile-time parameters: D and DV (elements per row of Q and K, and of V and O), BR and BC (rows and keys per tile), WARPS,
// and, from registers.py, KEPT_REGISTERS (for S, O_i and as much of Q_i as fits).

constexpr int WARP_ROWS = BR / WARPS;  // a warp owns so many rows of Q_i, S, P and O_i from end to end
constexpr int TM = WARP_ROWS / 16;     // tiles of 16 rows
constexpr int TN = BC / 8;             // tiles of 8 keys
constexpr int STEPS = (D + 15) / 16;   // of 16 elements in which Q K^T is summed; zeros fill the last
constexpr int TD = 2 * ((DV + 15) / 16);  // tiles of 8 elements of O
constexpr int V_ROW_BYTES = row_bytes(DV);  // of V and O in shared memory
constexpr int Q_BYTES = BR * (ROW_BYTES < V_ROW_BYTES ? V_ROW_BYTES : ROW_BYTES);  // of Q_i, and later O_i
constexpr int K_BYTES = BC * ROW_BYTES, V_BYTES = BC * V_ROW_BYTES;
constexpr int KV_BYTES = K_BYTES + V_BYTES;  // of a stage

// As many steps of Q_i stay in registers as have room beside S and O_i; the others are read anew for every tile of keys.
constexpr int SPARE = (KEPT_REGISTERS - TM * 4 * (TN + TD)) / (TM * 4);
constexpr int KEPT = SPARE < 0 ? 0 : SPARE < STEPS ? SPARE : STEPS;

// In the layout of C: rows g and g + 8 of each tile of 16 are h = 0 and 1, with two neighbouring columns each.
typedef float ScoreTile[TM][TN][4];
typedef float Output[TM][TD][4];
typedef float PerRow[TM][2];
typedef unsigned Weights[TM][4];  // A: P for 16 keys

// What is computed again where it is needed, and not kept in registers: the warp's rows, where the rows of K and V, and of O
// and L, begin, and what a thread copies of K and V. The plan chooses which of these `Again` has, see registers.py.
template <bool ROWS, bool KEYS, bool OUTPUT, bool COPIES> struct ComputedAgain {
    static constexpr bool rows = ROWS, keys = KEYS, output = OUTPUT, copies = COPIES;
};

// What takes fewer registers in one form, and less time in the other; the plan chooses `Forms`, see registers.py. ONE_BODY: the
// loop's body is the same for masked tiles and others. WARPS_WRITE: each warp writes its own rows of O_i. SUMS: in so many a
// lane looks for NaN in V_j.
template <bool ONE_BODY, bool WARPS_WRITE, int SUMS> struct FormsOf {
    static constexpr bool one_body = ONE_BODY, warps_write = WARPS_WRITE;
    static constexpr int sums = SUMS;
};

// The same value. What follows from it is not computed ahead of a loop, where it would take registers.
template <bool AGAIN = true> __device__ __forceinline__ int anew(int x)
{
    if constexpr (AGAIN) asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ Band::Run anew(const Band::Run &run)
{
    return {anew(run.before), anew(run.after), anew(run.q_len), anew(run.kv_len)};
}
__device__ __forceinline__ Spans::Run anew(const Spans::Run &run) { return run; }

// The warp's first row, if the block's first one is `first_row`.
__device__ __forceinline__ int first_row_of_warp(int first_row) { return first_row + (int)threadIdx.x / 32 * WARP_ROWS; }

// Row (i, h) of the lane, if the warp's first one is `first`.
__device__ __forceinline__ int row_from(int first, int i, int h)
{
    return first + 16 * i + 8 * h + (int)threadIdx.x % 32 / 4;
}
// The same, counted from the block's first one.
__device__ __forceinline__ int row_of(int i, int h) { return row_from((int)threadIdx.x / 32 * WARP_ROWS, i, h); }

// What a warp carries from tile to tile. m is in powers of two; l is that of the lane's own columns.
struct Rows {
    Output O;
    PerRow m, l;
};

// Line 5: O_i = 0, l_i = 0, m_i = -inf.
__device__ __forceinline__ void clear(Rows &rows)
{
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            rows.m[i][h] = MINUS_INFINITY;
            rows.l[i][h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < TD; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) rows.O[i][j][c] = 0.0f;
    }
}

// Q_i of the warp's rows: as A, as far as it is kept, and where this lane reads the rest.
struct Query {
    unsigned kept[TM][KEPT ? KEPT : 1][4];
    unsigned lane;

    __device__ __forceinline__ explicit Query(const unsigned char *Q_tile)
        : lane(shared_address(Q_tile) + threadIdx.x / 32 * WARP_ROWS * ROW_BYTES + lane_in_A())
    {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int k = 0; k < KEPT; ++k) load(kept[i][k], i, k);
    }

    // Step k of row tile i.
    __device__ __forceinline__ void load(unsigned (&q)[4], int i, int k) const
    {
        load_matrices(q, chunks_further(lane, 2 * k) + i * 16 * ROW_BYTES);
    }
};

// tau2 is positive: Q_i takes the sign of tau, or becomes 0.
__device__ __forceinline__ void give_sign(unsigned char *Q_tile, int sign)
{
    constexpr int CHUNKS = 2 * STEPS;  // per row
    for (int e = threadIdx.x; e < BR * CHUNKS * 4; e += THREADS) {
        const unsigned at = swizzled<ROW_BYTES>(e / (CHUNKS * 4), e / 4 % CHUNKS) + e % 4 * 4;
        unsigned &both = *reinterpret_cast<unsigned *>(Q_tile + at);
        both = sign < 0 ? both ^ 0x80008000 : packed(0.0f * unpacked(both).x, 0.0f * unpacked(both).y);
    }
}
