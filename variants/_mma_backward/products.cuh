// Products of a block that owns keys, and what becomes of them on their way from one to the next. The tensor cores' in
// mma.cuh, shares.cuh, seen.cuh and anew.cuh are put before this text. Line numbers are those of Dao 2023, arXiv 2307.08691,
// algorithm 2.

template <int I, int J> __device__ __forceinline__ void clear(float (&X)[I][J][4])
{
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) X[i][j][c] = 0.0f;
}

__device__ __forceinline__ void clear(Sums (&sums)[SUMS])
{
#pragma unroll
    for (int of = 0; of < SUMS; ++of) clear(sums[of]);
}

__device__ __forceinline__ void clear(Weights &W)
{
#pragma unroll
    for (int s = 0; s < TN / 2; ++s)
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int c = 0; c < 4; ++c) W[s][i][c] = 0;
}

// X = A B^T over D elements, for the warp's keys and ROWS_AT_ONCE rows: S^T = K_j Q_i^T, dP^T = V_j dO_i^T.
__device__ __forceinline__ void multiply_A_Bt(Scores &X, unsigned A_lane, unsigned B_lane)
{
    clear(X);
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

// Line 12: 0 where a weight drops out, of what is rounded.
__device__ __forceinline__ void drop(Weights &P, const KeptInKeys<Dropout, TM, TN> &kept)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) P[j / 2][i][j % 2 * 2 + h] = kept.both(P[j / 2][i][j % 2 * 2 + h], i, h, j);
}

// P = 0 and dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there.
// Where it does, NaN in dS is brought to P, and with it to dV. The first key in P is `key`, the first row `row`.
__device__ __forceinline__ void mask(Scores &P, Scores &dS, const RowsOfKey &seeing, int key, int row)
{
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Rows rows = rows_seeing(seeing, 16 * i + 8 * h + lane / 4, key, row);
            const int column = lane % 4 * 2;  // the lane's first row
            const int first = rows.first - column, end = rows.end - column;
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

// The same where a mask hides pairs besides limits. The first key in P is the tile's `key`, the first row its `row`.
__device__ __forceinline__ void hide(Scores &, Scores &, const AllTiles::Pairs &, int, int) {}

template <class HiddenPairs>
__device__ __forceinline__ void hide(Scores &P, Scores &dS, const HiddenPairs &hidden, int key, int row)
{
    if (!hidden.hides_some()) return;
    const int lane = thread_anew() % 32;
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const unsigned *const of_row = hidden.bits()[row + 8 * j + lane % 4 * 2 + e];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const unsigned seen = of_row[key / 32 + i / 2] >> (key % 32 + i % 2 * 16 + lane / 4);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (!(seen >> 8 * h & 1)) P[i][j][2 * h + e] = dS[i][j][2 * h + e] = 0.0f;
                }
            }
        }
}

// A fragment of A -> the rows that load_matrices takes it from (PTX ISA: stmatrix, sm_90).
__device__ __forceinline__ void store_matrices(unsigned address, const unsigned (&x)[4])
{
    if constexpr (__CUDA_ARCH__ >= 900) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]),
                     "r"(x[1]), "r"(x[2]), "r"(x[3])
                     : "memory");
    } else {
        // Lane t has the address of row t % 8 of matrix t / 8, and of each matrix row t / 4, two columns.
        const int lane = thread_anew() % 32;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const unsigned row = __shfl_sync(0xffffffff, address, 8 * m + lane / 4);
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(row + lane % 4 * 4), "r"(x[m]) : "memory");
        }
    }
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
    const int thread = thread_anew(), lane = thread % 32, warp = thread / 32;
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
        K_lane[k] = chunks_further(K_tile + in_A(lane), 2 * (k * DQ_GROUPS + column_group));
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
