// Gradients of attention on tensor cores where a block owns keys: S^T = K Q^T has a key per row, so that P^T and dS^T
// are in the layout of A when dV_j += P^T dO_i and dK_j += dS^T Q_i want them. mma.cuh, tiles.cuh, not_finite.cuh,
// dq_fragments.cuh and _tiles/rows_seeing.cuh are put before this text.
//
// Four warps keep P^T and dS^T in registers and sum dV_j and dK_j of their own keys. Of eight, four sum dV_j and four dK_j,
// with larger tiles each: P^T and dS^T come to them through shared memory.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, BLOCKS_PER_SM, and SUMS_DQ
// where blocks add their parts to dQ in memory, all at once.

constexpr int STEPS = (D + 15) / 16;  // of 16 elements in which products over a row are summed; zeros fill the last
constexpr bool HANDS_WEIGHTS = WARPS > 4;  // P^T and dS^T go from warp to warp
#ifdef SUMS_DQ
constexpr bool SUMMING_DQ = true;
#else
constexpr bool SUMMING_DQ = false;
#endif
// What needs other warps' dS^T, or P^T, is summed one step later, so that one barrier for each step is enough.
constexpr int LAG = HANDS_WEIGHTS || SUMMING_DQ;

// S^T and dP^T: a warp's keys and rows.
constexpr int GROUPS_WANTED = BC / 32 > 16 * WARPS / BR ? BC / 32 : 16 * WARPS / BR;
constexpr int KEY_GROUPS = HANDS_WEIGHTS ? GROUPS_WANTED : WARPS;
constexpr int WARP_KEYS = BC / KEY_GROUPS, WARP_ROWS = BR / (WARPS / KEY_GROUPS);
constexpr int TM = WARP_KEYS / 16;                                     // tiles of 16 keys
// S^T and dP^T of so many are 64 registers; or 32, where rows are no whole lines, whose ends take some.
constexpr int FITTING_ROWS = (HANDS_WEIGHTS && D % 64 != 0 ? 32 : 64) / TM;
constexpr int ROWS_AT_ONCE = WARP_ROWS < FITTING_ROWS ? WARP_ROWS : FITTING_ROWS;
constexpr int TN = ROWS_AT_ONCE / 8;

// dV_j and dK_j: a warp's keys and columns, in steps of 16. Where several share columns, each has whole lines.
constexpr int LINES = ROW_BYTES / 128;
constexpr int COLUMN_GROUPS = !HANDS_WEIGHTS ? 1 : LINES == 3 ? 4 : LINES;
constexpr int SUM_KEYS = HANDS_WEIGHTS ? BC / (WARPS / 2 / COLUMN_GROUPS) : WARP_KEYS;
constexpr int SUM_TILES = SUM_KEYS / 16;
constexpr int SUM_STEPS = COLUMN_GROUPS == 1 ? STEPS : 4;
constexpr int SUMS = HANDS_WEIGHTS ? 1 : 2;  // of a warp

constexpr int KEYS_BYTES = BC * ROW_BYTES;  // of K_j, and of V_j
constexpr int ROWS_BYTES = BR * ROW_BYTES;  // of Q_i, and of dO_i
constexpr int STAGES = HANDS_WEIGHTS ? 3 : 2;
constexpr int W_ROW_BYTES = (2 * BR + 127) / 128 * 128;  // of dS^T and P^T, which have a row per key
constexpr int W_BYTES = BC * W_ROW_BYTES;
constexpr int W_STAGE_BYTES = LAG * (HANDS_WEIGHTS ? 2 : 1) * W_BYTES;  // dS^T, then P^T
constexpr int SHARED_ROWS = 2 * KEYS_BYTES;                           // where Q_i and dO_i of each stage begin
constexpr int SHARED_W = SHARED_ROWS + STAGES * 2 * ROWS_BYTES;       // dS^T and P^T, of this step and the one before
constexpr int SHARED_STATS = SHARED_W + 2 * W_STAGE_BYTES;            // L_i and D_i of each stage
static_assert(BR <= THREADS && BC <= THREADS, "a thread per row and key");

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

// Tiles of rows with one that sees a key of tile `block` of keys: `count` of them, from `first` on.
struct RowTiles {
    int first, count;
};

__device__ __forceinline__ RowTiles tiles_seeing(int block, int q_len, int kv_len, Limit ahead, Limit behind)
{
    const int first_key = block * BC, keys = min(BC, kv_len - first_key);
    const int first_row = first_seen(first_key, kv_len, q_len, ahead);
    const int end_row = end_seen(first_key + keys - 1, kv_len, q_len, behind);
    const int first = first_row / BR;
    return {first, first_row < end_row ? (end_row + BR - 1) / BR - first : 0};
}

// Rows that see a key, from `first` up to `end`.
struct Rows {
    int first, end;
};

// Of rows `row` to `last` and `keys` keys from `key` on, with more than there are at the end: whether all rows see all keys
// (without a branch, for which registers would spill), whether any row may see one, and which rows, counted from `row`, see
// the key that is `further` behind.
#ifndef SPANS
__device__ __forceinline__ bool all_see(int row, int last, int key, int keys, int q_len, int kv_len, int ahead, int behind)
{
    return (key >= first_seen(last, q_len, kv_len, behind)) & (key + keys <= end_seen(row, q_len, kv_len, ahead));
}
__device__ __forceinline__ bool some_see(int row, int last, int key, int keys, int q_len, int kv_len, int ahead, int behind)
{
    return key < end_seen(last, q_len, kv_len, ahead) && key + keys > first_seen(row, q_len, kv_len, behind);
}
__device__ __forceinline__ Rows rows_seeing(int further, int key, int row, int q_len, int kv_len, int ahead, int behind)
{
    const int own = further - (row + kv_len - q_len - key);  // the row on which the key lies
    return {own - ahead, further < kv_len - key ? min(own + behind + 1, q_len - row) : 0};
}
#else  // keys beyond the last are kept, too, and seen by nobody
__device__ __forceinline__ bool all_see(int row, int last, int key, int keys, int q_len, int kv_len, Limit ahead,
                                        Limit behind)
{
    return (first_seen(key + keys - 1, kv_len, q_len, ahead) <= row) & (last < end_seen(key, kv_len, q_len, behind));
}
__device__ __forceinline__ bool some_see(int row, int last, int key, int keys, int q_len, int kv_len, Limit ahead,
                                         Limit behind)
{
    return first_seen(key, kv_len, q_len, ahead) <= last && row < end_seen(key + keys - 1, kv_len, q_len, behind);
}
__device__ __forceinline__ Rows rows_seeing(int further, int key, int row, int q_len, int kv_len, Limit ahead, Limit behind)
{
    return {first_seen(key + further, kv_len, q_len, ahead) - row, end_seen(key + further, kv_len, q_len, behind) - row};
}
#endif

// threadIdx.x, read anew: what is worked out from it in the loop over rows is not kept around it, in registers that sums
// want.
__device__ __forceinline__ int thread_again()
{
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// copy_tile, by the thread read anew; `tile` is an address in shared memory.
template <int EXTENT>
__device__ __forceinline__ void copy_tile_again(unsigned tile, const stored *source, int rows)
{
    const int thread = thread_again();
    // Steps are whole lines of swizzled rows: constants.
    if (UNIT > 1 && EXTENT * UNITS % THREADS == 0 && THREADS % (8 * UNITS) == 0 && rows >= EXTENT) {
        const stored *const from = source + thread * UNIT;
        const unsigned to = tile + place(thread);
#pragma unroll
        for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
            copy_async<UNIT_BYTES>(to + further / UNITS * ROW_BYTES, from + further * UNIT);
        }
        return;
    }
#pragma unroll 1
    for (int e = thread; e < EXTENT * UNITS; e += THREADS) {
        const bool valid = e < rows * UNITS;
        if constexpr (UNIT > 1) {
            copy_async<UNIT_BYTES>(tile + place(e), valid ? source + e * UNIT : source, valid);
        } else {
            const unsigned short bits = valid ? reinterpret_cast<const unsigned short *>(source)[e] : 0;
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(tile + place(e)), "h"(bits) : "memory");
        }
    }
}

// copied_not_finite, by the thread read anew, and with one load for each unit.
template <int EXTENT>
__device__ __forceinline__ bool copied_not_finite_again(const unsigned char *tile)
{
    bool found = false;
#pragma unroll 1
    for (int e = thread_again(); e < EXTENT * UNITS; e += THREADS) {
        const unsigned char *const unit = tile + place(e);
        uint4 words = make_uint4(0, 0, 0, 0);
        if constexpr (UNIT == 8) words = *reinterpret_cast<const uint4 *>(unit);
        if constexpr (UNIT == 4) {
            const uint2 two = *reinterpret_cast<const uint2 *>(unit);
            words.x = two.x, words.y = two.y;
        }
        if constexpr (UNIT == 2) words.x = *reinterpret_cast<const unsigned *>(unit);
        if constexpr (UNIT == 1) words.x = *reinterpret_cast<const unsigned short *>(unit);
        found |= not_finite(words.x) || not_finite(words.y) || not_finite(words.z) || not_finite(words.w);
    }
    return found;
}

// A lane's part in loads of fragments, from the thread read anew: see lane_in_A and lane_in_K.
template <int BYTES = ROW_BYTES>
__device__ __forceinline__ unsigned again_in_A(int lane)
{
    return swizzled<BYTES>(lane % 16, lane / 16);
}
__device__ __forceinline__ unsigned again_in_K(int lane)
{
    return swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// X = A B^T over D elements, for the warp's keys and ROWS_AT_ONCE rows: S^T = K_j Q_i^T, dP^T = V_j dO_i^T.
__device__ __forceinline__ void multiply_A_Bt(Scores &X, unsigned A_lane, unsigned B_lane)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) X[i][j][c] = 0.0f;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        unsigned a[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) load_matrices(a[i], chunks_further(A_lane, 2 * k) + i * 16 * ROW_BYTES);
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            unsigned b[4];
            load_matrices(b, chunks_further(B_lane, 2 * k) + j * 8 * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                multiply_add(X[i][j], a[i], b[0], b[1]);
                multiply_add(X[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

// X += W^T Y over rows 16 s to 16 s + 15: dV_j += P^T dO_i, dK_j += dS^T Q_i. `steps` of 16 columns are there.
template <int TILES>
__device__ __forceinline__ void add_Wt_Y(Sums &X, const unsigned (&W)[TILES][4], unsigned Y_lane, int s, int steps)
{
#pragma unroll
    for (int k = 0; k < SUM_STEPS; ++k) {
        if (STEPS % SUM_STEPS != 0 && k >= steps) break;
        unsigned y[4];
        load_matrices_transposed(y, chunks_further(Y_lane, 2 * k) + s * 16 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < TILES && i < SUM_TILES; ++i) {
            multiply_add(X[i][2 * k], W[i], y[0], y[1]);
            multiply_add(X[i][2 * k + 1], W[i], y[2], y[3]);
        }
    }
}

// Rounded to 16 bits: what products left in C is the A of the next ones.
__device__ __forceinline__ void round_weights(Weights &W, const Scores &X)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) W[j / 2][i][j % 2 * 2 + h] = packed(X[i][j][2 * h], X[i][j][2 * h + 1]);
}

#ifdef DROPOUT
#define DRAWN_KEYS(head, first_key, first_row) \
    DrawnKeys<TM, TN> drawn;                   \
    drawn.draw(with_seed_anew(DROPOUT_OF(head, blockIdx.z)), thread_again() % 32, first_key, first_row);
#define DROP_KEYS(P) drop(P, drawn);

// 0 where a weight drops out, of what is rounded.
__device__ __forceinline__ void drop(Weights &P, DrawnKeys<TM, TN> &drawn)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) P[j / 2][i][j % 2 * 2 + h] &= drawn.mask(i, h, j);
}
#else
#define DRAWN_KEYS(head, first_key, first_row)
#define DROP_KEYS(P)
#endif

// P = 0 and dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there.
// Where it does, NaN in dS is brought to P, and with it to dV. The first key in P is `key`, the first row `row`.
__device__ __forceinline__ void mask(Scores &P, Scores &dS, int key, int row, int q_len, int kv_len, Limit ahead,
                                     Limit behind)
{
    const int lane = thread_again() % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Rows seeing = rows_seeing(16 * i + 8 * h + lane / 4, key, row, q_len, kv_len, ahead, behind);
            const int column = lane % 4 * 2;  // the lane's first row
            const int first = seeing.first - column, end = seeing.end - column;
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &p = P[i][j][2 * h + e], &ds = dS[i][j][2 * h + e];
                    const bool seen = 8 * j + e >= first && 8 * j + e < end;
                    p = seen ? fmaf(0.0f, ds, p) : 0.0f;
                    ds = seen ? ds : 0.0f;
                }
        }
}

// A fragment of A -> the rows that load_matrices takes it from (PTX ISA: stmatrix, sm_90).
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&x)[4])
{
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
#else
    // Lane t has the address of row t % 8 of matrix t / 8, and of each matrix row t / 4, two columns.
    const int lane = thread_again() % 32;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        const unsigned row = __shfl_sync(0xffffffff, address, 8 * m + lane / 4);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(x[m]) : "memory");
    }
#endif
}

// P^T or dS^T of the warp's keys and ROWS_AT_ONCE rows -> its tile, as fragments of A are loaded.
__device__ __forceinline__ void store_weights(unsigned W_lane, const Weights &W)
{
#pragma unroll
    for (int s = 0; s < TN / 2; ++s)
#pragma unroll
        for (int i = 0; i < TM; ++i) store_matrices(chunks_further(W_lane, 2 * s) + i * 16 * W_ROW_BYTES, W[s][i]);
}

// Line 15: dQ_i += dS K_j, in memory, while other blocks add theirs; not yet times tau. `dQ` is the head's.
__device__ __forceinline__ void add_dS_K(float *__restrict__ dQ, unsigned dS_tile, unsigned K_tile, int first_row,
                                         int q_len)
{
    const int thread = thread_again(), lane = thread % 32, warp = thread / 32;
    const int row_group = warp % ROW_GROUPS, column_group = warp / ROW_GROUPS;
    float part[2][DQ_STEPS][2][4];
    unsigned dS_lane[2], K_lane[DQ_STEPS];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // A, transposed as it is loaded: keys 0 to 7 of both runs of eight rows, then keys 8 to 15.
        const unsigned chunk = 4 * row_group + 2 * i + lane / 8 % 2;
        dS_lane[i] = dS_tile + swizzled<W_ROW_BYTES>(lane / 16 * 8 + lane % 8, chunk);
    }
#pragma unroll
    for (int k = 0; k < DQ_STEPS; ++k) {
        K_lane[k] = chunks_further(K_tile + again_in_A(lane), 2 * (k * DQ_GROUPS + column_group));
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e)
#pragma unroll
                for (int c = 0; c < 4; ++c) part[i][k][e][c] = 0.0f;
    }
#pragma unroll
    for (int s = 0; s < BC / 16; ++s) {
        unsigned ds[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) load_matrices_transposed(ds[i], dS_lane[i] + s * 16 * W_ROW_BYTES);
#pragma unroll
        for (int k = 0; k < DQ_STEPS; ++k) {
            if (STEPS % DQ_GROUPS != 0 && k * DQ_GROUPS + column_group >= STEPS) break;
            unsigned key[4];
            load_matrices_transposed(key, K_lane[k] + s * 16 * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                multiply_add(part[i][k][0], ds[i], key[0], key[1]);
                multiply_add(part[i][k][1], ds[i], key[2], key[3]);
            }
        }
    }
    const int row = first_row + 32 * row_group;
    float *const to = dQ + ((size_t)(row / 16) * DQ_TILES + 2 * column_group) * FRAGMENT + LANE_STRIDE * lane;
    constexpr bool ALL_THERE = STEPS % DQ_GROUPS == 0 && DQ_TILES % 2 == 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (row + 16 * i >= q_len) break;
#pragma unroll
        for (int k = 0; k < DQ_STEPS; ++k)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (!ALL_THERE && 2 * (k * DQ_GROUPS + column_group) + e >= DQ_TILES) break;
                add_fragment(to + (i * DQ_TILES + 2 * k * DQ_GROUPS + e) * FRAGMENT, part[i][k][e]);
            }
    }
}

// Line 18: `factor` X, in 16 bits, where K_j or V_j was.
__device__ __forceinline__ void gather(unsigned char *tile, const Sums &X, float factor, Share own)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SUM_TILES; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 2 * SUM_STEPS; ++j) {
                if (STEPS % SUM_STEPS != 0 && j >= 2 * (STEPS - own.step)) break;
                const unsigned at = swizzled<ROW_BYTES>(own.key + 16 * i + 8 * h + lane / 4, 2 * own.step + j);
                *reinterpret_cast<unsigned *>(tile + at + lane % 4 * 4) =
                    packed(factor * X[i][j][2 * h], factor * X[i][j][2 * h + 1]);
            }
}
