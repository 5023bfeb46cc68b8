// Gradients of attention on tensor cores where a block owns keys: S^T = K Q^T has a key per row, so that P^T and dS^T
// are in the layout of A, in registers, when dV_j += P^T dO_i and dK_j += dS^T Q_i want them. mma.cuh, tiles.cuh and
// not_finite.cuh are put before this text.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, BLOCKS_PER_SM.

constexpr int STEPS = (D + 15) / 16;  // of 16 elements in which products over a row are summed; zeros fill the last
constexpr int KEY_GROUPS = WARPS < BC / 16 ? WARPS : BC / 16;
constexpr int COLUMN_GROUPS = WARPS / KEY_GROUPS;   // warps that have the same keys, and columns of dK_j and dV_j each
constexpr int TM = BC / 16 / KEY_GROUPS;            // tiles of 16 keys of a warp
constexpr int WARP_KEYS = 16 * TM;
constexpr int ROWS_AT_ONCE = BR < 64 / TM ? BR : 64 / TM;  // S^T and dP^T of so many are 64 registers of a thread
constexpr int TN = ROWS_AT_ONCE / 8;
// Columns of dK_j and dV_j that a warp has, in steps of 16: whole lines where several share them, as swizzles want it.
constexpr int OWN_STEPS = COLUMN_GROUPS == 1 ? STEPS : (STEPS + 4 * COLUMN_GROUPS - 1) / (4 * COLUMN_GROUPS) * 4;

constexpr int KEYS_BYTES = BC * ROW_BYTES;            // of K_j, and of V_j
constexpr int ROWS_BYTES = BR * ROW_BYTES;            // of Q_i, and of dO_i
constexpr int DS_ROW_BYTES = (2 * BR + 127) / 128 * 128;  // of dS^T, which has a row per key
constexpr int STAGES = 2;
static_assert(BR <= THREADS && BC <= THREADS, "a thread per row and key");
constexpr int SHARED_STATS = 2 * KEYS_BYTES + STAGES * 2 * ROWS_BYTES + BC * DS_ROW_BYTES;  // where L and D begin

// dQ_i is 32 rows of so many columns per warp.
constexpr int ROW_GROUPS = BR / 32;
constexpr int DQ_GROUPS = WARPS / ROW_GROUPS;
constexpr int DQ_STEPS = (STEPS + DQ_GROUPS - 1) / DQ_GROUPS;

// dQ is summed in fragments of C: 16 rows and 8 columns are 128 floats, c0 of all lanes, then c1, c2 and c3. So a warp
// adds 128 bytes at once.
constexpr int DQ_TILES = (D + 7) / 8;
constexpr int FRAGMENT = 128;

// In the layout of C: keys g and g + 8 of each tile of 16, rows 2 q and 2 q + 1 of each tile of 8.
typedef float Scores[TM][TN][4];
typedef float Sums[TM][2 * OWN_STEPS][4];
typedef unsigned Weights[TN / 2][TM][4];  // A: keys, over 16 rows at a time

// A warp's first key in the tile, and its first step of columns of dK_j and dV_j.
__device__ __forceinline__ int first_key_of(int thread) { return thread / 32 % KEY_GROUPS * WARP_KEYS; }
__device__ __forceinline__ int first_step_of(int thread)
{
    return COLUMN_GROUPS == 1 ? 0 : thread / 32 / KEY_GROUPS * OWN_STEPS;
}

// Tiles of rows with one that sees a key of tile `block` of keys: `count` of them, from `first` on.
struct RowTiles {
    int first, count;
};

__device__ __forceinline__ RowTiles tiles_seeing(int block, int q_len, int kv_len, int before, int after)
{
    const int first_key = block * BC, keys = min(BC, kv_len - first_key), on = q_len - kv_len;
    const int first_row = max(first_key + on - after, 0), end_row = min(first_key + keys + on + before, q_len);
    const int first = first_row / BR;
    return {first, first_row < end_row ? (end_row + BR - 1) / BR - first : 0};
}

// threadIdx.x and blockIdx.x, read anew: what is worked out from them in the loop over rows is not kept around it, in
// registers that sums want.
__device__ __forceinline__ int thread_again()
{
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}
__device__ __forceinline__ int block_again()
{
    unsigned block;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    return block;
}

// copy_tile, by the thread read anew.
template <int EXTENT>
__device__ __forceinline__ void copy_tile_again(unsigned char *tile, const stored *source, int rows, int thread)
{
    const stored *const from = source + thread * UNIT;
#pragma unroll(UNIT == 8 ? EXTENT * UNITS / THREADS + 1 : 1)
    for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
        const int e = thread + further;
        if (EXTENT * UNITS % THREADS != 0 && e >= EXTENT * UNITS) break;
        const bool valid = e < rows * UNITS;
        if constexpr (UNIT > 1) {
            // Whole lines of swizzled rows further: a constant.
            const unsigned at = THREADS % (8 * UNITS) == 0 ? place(thread) + further / UNITS * ROW_BYTES : place(e);
            copy_async<UNIT_BYTES>(shared_address(tile) + at, valid ? from + further * UNIT : source, valid);
        } else {
            *reinterpret_cast<stored *>(tile + place(e)) = valid ? from[further] : stored();
        }
    }
}

// See lane_in_A and lane_in_K.
__device__ __forceinline__ unsigned again_in_A(int lane) { return swizzled<ROW_BYTES>(lane % 16, lane / 16); }
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

// X += W^T Y over ROWS_AT_ONCE rows: dV_j += P^T dO_i, dK_j += dS^T Q_i. `steps` of 16 columns are there.
__device__ __forceinline__ void add_Wt_Y(Sums &X, const Weights &W, unsigned Y_lane, int steps)
{
#pragma unroll
    for (int s = 0; s < TN / 2; ++s)
#pragma unroll
        for (int k = 0; k < OWN_STEPS; ++k) {
            if (STEPS % OWN_STEPS != 0 && k >= steps) break;
            unsigned y[4];
            load_matrices_transposed(y, chunks_further(Y_lane, 2 * k) + s * 16 * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                multiply_add(X[i][2 * k], W[s][i], y[0], y[1]);
                multiply_add(X[i][2 * k + 1], W[s][i], y[2], y[3]);
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

// P = 0 and dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there.
// Where it does, NaN in dS is brought to P, and with it to dV. Of the warp's keys the first row in P lies on `own_key`;
// `keys` and `rows` are how many there are from the first key and row in P on.
__device__ __forceinline__ void mask(Scores &P, Scores &dS, int own_key, int keys, int rows, int before, int after)
{
    const int lane = thread_again() % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int key = 16 * i + 8 * h + lane / 4, column = lane % 4 * 2;  // the lane's first row
            const int first = key - own_key - after - column;
            const int end = (key < keys ? min(key - own_key + before + 1, rows) : 0) - column;
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

// dS^T of the warp's keys -> its tile, from row `first_row` of the tile on.
__device__ __forceinline__ void store_dSt(unsigned char *dS_tile, const Weights &dS, int first_key, int first_row)
{
    const int lane = thread_again() % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned at = swizzled<DS_ROW_BYTES>(first_key + 16 * i + 8 * h + lane / 4, first_row / 8 + j);
                *reinterpret_cast<unsigned *>(dS_tile + at + lane % 4 * 4) = dS[j / 2][i][j % 2 * 2 + h];
            }
}

// Line 15: dQ_i += dS K_j, in memory, while other blocks add theirs; not yet times tau. `dQ` is the head's.
__device__ __forceinline__ void add_dS_K(float *__restrict__ dQ, const unsigned char *dS_tile,
                                         const unsigned char *K_tile, int first_row, int q_len)
{
    const int thread = thread_again(), lane = thread % 32, warp = thread / 32;
    const int row_group = warp % ROW_GROUPS, column_group = warp / ROW_GROUPS;
    float part[2][DQ_STEPS][2][4];
    unsigned dS_lane[2], K_lane[DQ_STEPS];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        // A, transposed as it is loaded: keys 0 to 7 of both runs of eight rows, then keys 8 to 15.
        const unsigned chunk = 4 * row_group + 2 * i + lane / 8 % 2;
        dS_lane[i] = shared_address(dS_tile) + swizzled<DS_ROW_BYTES>(lane / 16 * 8 + lane % 8, chunk);
    }
#pragma unroll
    for (int k = 0; k < DQ_STEPS; ++k) {
        K_lane[k] = chunks_further(shared_address(K_tile) + again_in_A(lane), 2 * (k * DQ_GROUPS + column_group));
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
        for (int i = 0; i < 2; ++i) load_matrices_transposed(ds[i], dS_lane[i] + s * 16 * DS_ROW_BYTES);
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
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = first_row + 32 * row_group + 16 * i;
        if (row >= q_len) break;
#pragma unroll
        for (int k = 0; k < DQ_STEPS; ++k)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int tile = 2 * (k * DQ_GROUPS + column_group) + e;
                if (tile >= DQ_TILES) break;
                float *const to = dQ + ((size_t)(row / 16) * DQ_TILES + tile) * FRAGMENT + lane;
#pragma unroll
                for (int c = 0; c < 4; ++c) atomicAdd(to + 32 * c, part[i][k][e][c]);
            }
    }
}

// Line 18: `factor` X, in 16 bits, where K_j or V_j was.
__device__ __forceinline__ void gather(unsigned char *tile, const Sums &X, float factor)
{
    const int thread = threadIdx.x, lane = thread % 32, first_key = first_key_of(thread);
    const int first_step = first_step_of(thread), steps = STEPS - first_step;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 2 * OWN_STEPS; ++j) {
                if (STEPS % OWN_STEPS != 0 && j >= 2 * steps) break;
                const unsigned at = swizzled<ROW_BYTES>(first_key + 16 * i + 8 * h + lane / 4, 2 * first_step + j);
                *reinterpret_cast<unsigned *>(tile + at + lane % 4 * 4) =
                    packed(factor * X[i][j][2 * h], factor * X[i][j][2 * h + 1]);
            }
}
