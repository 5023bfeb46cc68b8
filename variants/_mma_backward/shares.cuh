// What each warp of a block that owns keys has of each product, and where in shared memory its tiles lie. mma.cuh and
// tiles.cuh, and dq.cuh with the type DQ, are put before this text.
//
// S^T = K Q^T has a key per row, so that P^T and dS^T are in the layout of A when dV_j += P^T dO_i and dK_j += dS^T Q_i want
// them. Four warps keep P^T and dS^T in registers and sum dV_j and dK_j of their own keys. Of eight, four sum dV_j and four
// dK_j, with larger tiles each: P^T and dS^T come to them through shared memory.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS.

constexpr int STEPS = (D + 15) / 16;  // of 16 elements in which products over a row are summed; zeros fill the last
constexpr bool HANDS_WEIGHTS = WARPS > 4;  // P^T and dS^T go from warp to warp
// What needs other warps' dS^T, or P^T, is summed one turn later, so that one barrier for each turn is enough.
constexpr int LAG = HANDS_WEIGHTS || DQ::IS_ADDED;

// S^T and dP^T: a warp's keys and rows.
constexpr int GROUPS_WANTED = BC / 32 > 16 * WARPS / BR ? BC / 32 : 16 * WARPS / BR;
constexpr int KEY_GROUPS = HANDS_WEIGHTS ? GROUPS_WANTED : WARPS;
constexpr int WARP_KEYS = BC / KEY_GROUPS, WARP_ROWS = BR / (WARPS / KEY_GROUPS);
constexpr int TM = WARP_KEYS / 16;  // tiles of 16 keys
// S^T and dP^T of so many are 64 registers; or 32, where rows are no whole lines, whose ends take some, and with a cap.
constexpr bool CAPS = has_term<ApproximateSoftcap, ScoreTerms>;
constexpr int FITTING_ROWS = (CAPS || (HANDS_WEIGHTS && D % 64 != 0) ? 32 : 64) / TM;
constexpr int ROWS_AT_ONCE = WARP_ROWS < FITTING_ROWS ? WARP_ROWS : FITTING_ROWS;
constexpr int TN = ROWS_AT_ONCE / 8;

// dV_j and dK_j: a warp's keys and columns, in steps of 16. Where several share columns, each has whole lines.
constexpr int LINES = ROW_BYTES / 128;
constexpr int COLUMN_GROUPS = !HANDS_WEIGHTS ? 1 : LINES == 3 ? 4 : LINES;
constexpr int SUM_KEYS = HANDS_WEIGHTS ? BC / (WARPS / 2 / COLUMN_GROUPS) : WARP_KEYS;
constexpr int SUM_TILES = SUM_KEYS / 16;
constexpr int SUM_STEPS = COLUMN_GROUPS == 1 ? STEPS : 4;
constexpr int SUMS = HANDS_WEIGHTS ? 1 : 2;  // of a warp: dV_j, dK_j, or one of them

// dQ_i is 32 rows of so many columns per warp.
constexpr int ROW_GROUPS = BR / 32;
constexpr int DQ_GROUPS = WARPS / ROW_GROUPS;
constexpr int DQ_STEPS = (STEPS + DQ_GROUPS - 1) / DQ_GROUPS;

// In the layout of C: keys g and g + 8 of each tile of 16, rows 2 q and 2 q + 1 of each tile of 8.
typedef float Scores[TM][TN][4];
typedef float Sums[SUM_TILES][2 * SUM_STEPS][4];
typedef unsigned Weights[TN / 2][TM][4];  // A: keys, over 16 rows at a time

// Of dV_j and dK_j: the warp's first key, its first step of columns, and which of the two, where it has one.
struct Share {
    int key, step;
    bool of_dV;
};

__device__ __forceinline__ Share share_of(int thread)
{
    const int warp = thread / 32, own = warp % (WARPS / 2);
    if (!HANDS_WEIGHTS) return {warp * SUM_KEYS, 0, false};
    return {own / COLUMN_GROUPS * SUM_KEYS, own % COLUMN_GROUPS * SUM_STEPS, warp >= WARPS / 2};
}

// --- Shared memory ----------------------------------------------------------------------------------------------------

constexpr int KEYS_BYTES = BC * ROW_BYTES;  // of K_j, and of V_j
constexpr int ROWS_BYTES = BR * ROW_BYTES;  // of Q_i, and of dO_i
constexpr int STAGES = HANDS_WEIGHTS ? 3 : 2;
constexpr int W_ROW_BYTES = (2 * BR + 127) / 128 * 128;  // of dS^T and P^T, which have a row per key
constexpr int W_BYTES = BC * W_ROW_BYTES;
constexpr int W_STAGE_BYTES = LAG * (HANDS_WEIGHTS ? 2 : 1) * W_BYTES;  // dS^T, then P^T
constexpr int SHARED_ROWS = 2 * KEYS_BYTES;                             // where Q_i and dO_i of each stage begin
constexpr int SHARED_W = SHARED_ROWS + STAGES * 2 * ROWS_BYTES;         // dS^T and P^T, of this turn and the one before
constexpr int SHARED_STATS = SHARED_W + 2 * W_STAGE_BYTES;              // L_i and D_i of each stage
static_assert(BR <= THREADS && BC <= THREADS, "a thread per row and key");

struct Chip {
    unsigned char *K_tile, *V_tile;  // V_j follows K_j
    float *stats;
    unsigned address;  // of K_j

    __device__ __forceinline__ explicit Chip(unsigned char *shared)
        : K_tile(shared), V_tile(shared + KEYS_BYTES), stats(reinterpret_cast<float *>(shared + SHARED_STATS)),
          address(shared_address(shared))
    {
    }

    // Q_i, and dO_i after it.
    __device__ __forceinline__ unsigned Q_tile(int stage) const { return address + SHARED_ROWS + stage * 2 * ROWS_BYTES; }
    // L of row r of the tile; D of it is BR further.
    __device__ __forceinline__ float *L(int stage, int r) const { return stats + (stage * 2 * BR + r); }
    // dS^T, and P^T after it.
    __device__ __forceinline__ unsigned dS_tile(int turn) const { return address + SHARED_W + turn % 2 * W_STAGE_BYTES; }
};
