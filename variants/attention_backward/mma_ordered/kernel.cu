// dQ on tensor cores, where a block owns rows and visits tiles of keys: line 15 of Dao 2023, arXiv 2307.08691, algorithm 2, in
// the loop order of the forward pass. _mma/mma.cuh and tiles.cuh, _mma_backward/not_finite.cuh and anew.cuh, and Limits and
// Dropout of _features/, types that the plan chooses, are put before this text. The Numba twin is numba_kernel.py.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, STAGES, BLOCKS_PER_SM.

constexpr int WARP_ROWS = BR / WARPS;  // a warp owns so many rows of S, dP, dS and dQ_i from end to end
constexpr int TM = WARP_ROWS / 16;
constexpr int KEYS_AT_ONCE = 32;  // of which S and dP are in registers
constexpr int TN = KEYS_AT_ONCE / 8;
constexpr int STEPS = (D + 15) / 16;
constexpr int ROWS_BYTES = BR * ROW_BYTES;  // of Q_i, and of dO_i
constexpr int KV_BYTES = BC * ROW_BYTES;    // of K_j, and of V_j
constexpr int SHARED_STATS = 2 * ROWS_BYTES + STAGES * 2 * KV_BYTES;  // where L_i and D_i begin

// In the layout of C: rows g and g + 8 of each tile of 16 are h = 0 and 1, with two neighbouring columns each.
typedef float Scores[TM][TN][4];
typedef float Sums[TM][2 * STEPS][4];
typedef unsigned Weights[TM][4];  // A: dS for 16 keys
typedef float PerRow[TM][2];

template <int J> __device__ __forceinline__ void clear(float (&X)[TM][J][4])
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) X[i][j][c] = 0.0f;
}

// X = A B^T over D elements, for the warp's rows and KEYS_AT_ONCE keys: S = Q_i K_j^T, dP = dO_i V_j^T.
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

// Keys that a row sees of those from `key` on, from `first` up to `end`.
struct Keys {
    int first, end;
};

__device__ __forceinline__ Keys keys_seen(const Band::Run &seen, int row, int key)
{
    const int on = seen.own_key(row) - key;
    return {on - seen.before, min(on + seen.after + 1, seen.kv_len - key)};
}
__device__ __forceinline__ Keys keys_seen(const Spans::Run &seen, int row, int key)
{
    return {seen.first(row) - key, seen.end(row) - key};
}

// dS = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. The warp's
// first row is `row`, the first key in dS `key`.
__device__ __forceinline__ void mask(Scores &dS, const Limits::Run &seen, int row, int key)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Keys keys = keys_seen(seen, row + 16 * i + 8 * h + lane / 4, key);
            const int column = lane % 4 * 2;  // the lane's first key
            const int first = keys.first - column, end = keys.end - column;
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float &ds = dS[i][j][2 * h + e];
                    ds = 8 * j + e >= first && 8 * j + e < end ? ds : 0.0f;
                }
        }
}

// Lines 11 and 14: P = exp(tau S - L_i), dS = P o (dP - D_i), in the place of dP, which is 0 where the weight drops out.
__device__ __forceinline__ void multiply_P(Scores &dP, const Scores &S, const PerRow &L_i, const PerRow &D_i, float tau2,
                                           float factor, const KeptInRows<Dropout, TM, TN> &kept)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float p = exp2_approx(fmaf(S[i][j][c], tau2, -L_i[i][c / 2]));
                dP[i][j][c] = p * kept.minus(dP[i][j][c], D_i[i][c / 2], factor, i, c / 2, j, c % 2);
            }
}

// dQ_i += dS K_j over KEYS_AT_ONCE keys.
__device__ __forceinline__ void add_dS_K(Sums &dQ, const Scores &dS, unsigned K_lane)
{
#pragma unroll
    for (int s = 0; s < TN / 2; ++s) {
        Weights ds;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    ds[i][2 * j + h] = packed(dS[i][2 * s + j][2 * h], dS[i][2 * s + j][2 * h + 1]);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            unsigned key[4];
            load_matrices_transposed(key, chunks_further(K_lane, 2 * k) + s * 16 * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                multiply_add(dQ[i][2 * k], ds[i], key[0], key[1]);
                multiply_add(dQ[i][2 * k + 1], ds[i], key[2], key[3]);
            }
        }
    }
}

// dQ_i, which is times tau, in 16 bits where Q_i was: each warp has read its own rows of that alone.
__device__ __forceinline__ void gather(unsigned char *Q_tile, const Sums &dQ, float tau, int warp, int lane)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < 2 * STEPS; ++j) {
                const int row = warp * WARP_ROWS + 16 * i + 8 * h + lane / 4;
                unsigned char *const at = Q_tile + swizzled<ROW_BYTES>(row, j) + lane % 4 * 4;
                *reinterpret_cast<unsigned *>(at) = packed(tau * dQ[i][j][2 * h], tau * dQ[i][j][2 * h + 1]);
            }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_mma_of_rows(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ L, const float *__restrict__ delta, stored *__restrict__ dQ,
    int q_len, int kv_len, int group, float tau, float tau2, Limits limits, Dropout dropout)
{
    extern __shared__ __align__(128) unsigned char Q_tile[];
    unsigned char *const dO_tile = Q_tile + ROWS_BYTES, *const KV_tiles = dO_tile + ROWS_BYTES;
    float *const L_tile = reinterpret_cast<float *>(Q_tile + SHARED_STATS), *const D_tile = L_tile + BR;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // The block owns Q_i, dO_i and dQ_i of one head. The last rows, which see most keys where causal, of all heads start
    // first: the grid is (heads, tiles of rows, batch).
    const size_t head = (size_t)blockIdx.z * gridDim.x + blockIdx.x;
    const int i_block = gridDim.y - 1 - blockIdx.y, first_row = i_block * BR, rows = min(BR, q_len - first_row);
    const RowBlock block = {(int)blockIdx.z, (int)blockIdx.x, i_block, (int)gridDim.y, first_row, rows};
    const size_t first = head * q_len + first_row;
    const stored *const K_head = K + head / group * kv_len * D, *const V_head = V + head / group * kv_len * D;

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) {
        clear_tiles(Q_tile, SHARED_STATS);
        __syncthreads();
    }

    // Load Q_i, dO_i, L_i, D_i and the first tiles of keys.
    const auto seen = limits.of_block<BR>(block, q_len, kv_len);
    const int first_tile = seen.first_key / BC, end_tile = (seen.end_key + BC - 1) / BC;
    const auto copy_keys = [&](int j) {
        if (j < end_tile) {
            unsigned char *const K_tile = KV_tiles + j % STAGES * 2 * KV_BYTES;
            copy_tile<BC>(K_tile, K_head + (size_t)j * BC * D, kv_len - j * BC);
            copy_tile<BC>(K_tile + KV_BYTES, V_head + (size_t)j * BC * D, kv_len - j * BC);
        }
        commit_copies();
    };
    copy_tile<BR>(Q_tile, Q + first * D, rows);
    copy_tile<BR>(dO_tile, dO + first * D, rows);
    for (int r = threadIdx.x; r < BR; r += THREADS) {
        const size_t from = r < rows ? first + r : first;
        copy_async<4>(shared_address(L_tile + r), L + from, r < rows);
        copy_async<4>(shared_address(D_tile + r), delta + from, r < rows);
    }
    commit_copies();
#pragma unroll
    for (int j = 0; j < STAGES - 1; ++j) copy_keys(first_tile + j);
    wait_for_copies<STAGES - 1>();
    __syncthreads();

    // L_i and D_i go into registers. dQ_i = 0.
    const unsigned Q_lane = shared_address(Q_tile) + warp * WARP_ROWS * ROW_BYTES + lane_in_A();
    PerRow L_i, D_i;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            L_i[i][h] = L_tile[warp * WARP_ROWS + 16 * i + 8 * h + lane / 4];
            D_i[i][h] = D_tile[warp * WARP_ROWS + 16 * i + 8 * h + lane / 4];
        }
    Sums dQ_acc;
    clear(dQ_acc);

    const int warp_row = first_row + warp * WARP_ROWS;
#pragma unroll 1
    for (int j = first_tile; j < end_tile; ++j) {
        // K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. In a tile with keys
        // that only some rows see, K_j must be finite, for products of 0 are not: V_j has a NaN in its place, which dP =
        // dO_i V_j^T brings to those who see the key.
        const int first_key = j * BC;
        unsigned char *const K_tile = KV_tiles + j % STAGES * 2 * KV_BYTES, *const V_tile = K_tile + KV_BYTES;
        wait_for_copies<STAGES - 2>();
        if (first_key < seen.first_by_all || first_key + BC > seen.end_by_all) {
            if (__syncthreads_or(copied_not_finite<BC>(K_tile))) {
                for (int key = threadIdx.x; key < BC; key += THREADS) move_not_finite(K_tile, V_tile, key);
                __syncthreads();
            }
        } else {
            __syncthreads();
        }
        copy_keys(j + STAGES - 1);

#pragma unroll 1
        for (int beyond = 0; beyond < BC; beyond += KEYS_AT_ONCE) {
            // What the warp's rows see is computed anew: dQ_i wants the registers.
            const int key = first_key + beyond, row = anew(warp_row);
            const auto warp_sees = block_limits(seen.run, row, min(row + WARP_ROWS, q_len) - 1);
            if (key >= warp_sees.end_key || key + KEYS_AT_ONCE <= warp_sees.first_key) continue;
            const unsigned K_lane = shared_address(K_tile) + beyond * ROW_BYTES;
            // Line 10: S = Q_i K_j^T. Line 13: dP = dO_i V_j^T. Lines 11 and 14: dS = exp(tau S - L_i) o (dP - D_i).
            Scores S, dS;
            multiply_A_Bt(S, Q_lane, K_lane + lane_in_K());
            KeptInRows<Dropout, TM, TN> kept;
            kept.draw(dropout.of_head(blockIdx.x, blockIdx.z), row, key, 0);
            multiply_A_Bt(dS, Q_lane + ROWS_BYTES, K_lane + KV_BYTES + lane_in_K());
            multiply_P(dS, S, L_i, D_i, tau2, dropout.factor(), kept);
            if (key < warp_sees.first_by_all || key + KEYS_AT_ONCE > warp_sees.end_by_all) mask(dS, seen.run, row, key);
            // Line 15: dQ_i = dQ_i + dS K_j, not yet times tau.
            add_dS_K(dQ_acc, dS, K_lane + lane_in_A());
        }
    }

    // Write dQ_i.
    gather(Q_tile, dQ_acc, tau, warp, lane);
    __syncthreads();
    store_tile<BR>(dQ + first * D, Q_tile, rows);
}
