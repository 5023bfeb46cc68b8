// Products of a warpgroup, and what goes to memory. chip.cuh and wgmma for the tile's sizes (products.py) are put before this
// text.

// The tile of dS^T is transposed by the product, which sums over its keys.
constexpr u64 DS_STRIDES = (u64)(8 * KEY_BYTES / 16) << 32 | (u64)1 << 62;

// X^T = Y Z_i^T over a row's elements, for the warpgroup's keys Y, rows of a tile of BC, and all rows Z_i; under way.
__device__ __forceinline__ void multiply_rows(Scores &X, unsigned keys, unsigned rows)
{
    const u64 A = along_rows(keys), B = along_rows(rows);
    begin_products();
    multiply(X, A, B);
#pragma unroll
    for (int k = 1; k < DEPTHS; ++k) multiply_add(X, A + steps_along<BC>(k), B + steps_along<BR>(k));
    commit_products();
}

// X^T = X^T + Y Z_i^T; under way.
__device__ __forceinline__ void add_rows(Scores &X, unsigned keys, unsigned rows)
{
    const u64 A = along_rows(keys), B = along_rows(rows);
    begin_products();
#pragma unroll
    for (int k = 0; k < DEPTHS; ++k) multiply_add(X, A + steps_along<BC>(k), B + steps_along<BR>(k));
    commit_products();
}

// K_j of the warpgroup's keys, as A of products: the first KEPT times 16 elements are in registers, as many as there is room for,
// so that shared memory is read less.
typedef unsigned KeptKeys[KEPT > 0 ? 4 * KEPT : 1];

__device__ __forceinline__ void keep_keys(KeptKeys &K, unsigned keys)
{
    const int row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 16;
#pragma unroll
    for (int k = 0; k < KEPT; ++k) {
        const int box = 16 * k / COLUMNS, piece = 2 * k % (COLUMNS / 8) + threadIdx.x % 32 / 16;
        load_matrices(K + 4 * k, keys + box * BC * ROW_BYTES + piece_of_row(row, piece));
    }
}

// S^T = K_j Q_i^T for the warpgroup's keys; under way.
__device__ __forceinline__ void multiply_K_Qt(Scores &S, const KeptKeys &K, unsigned keys, unsigned rows)
{
    const u64 A = along_rows(keys), B = along_rows(rows);
    begin_products();
    if constexpr (KEPT > 0) {
        multiply_kept(S, K, B);
    } else {
        multiply(S, A, B);
    }
#pragma unroll
    for (int k = 1; k < DEPTHS; ++k) {
        if (k < KEPT) {
            multiply_add_kept(S, K + 4 * k, B + steps_along<BR>(k));
        } else {
            multiply_add(S, A + steps_along<BC>(k), B + steps_along<BR>(k));
        }
    }
    commit_products();
}

// dY += W^T Z_i, over rows; under way.
__device__ __forceinline__ void add_product(Sums &dY, const Weights &W, unsigned rows)
{
    const u64 B = across_rows<BR>(rows);
    begin_products();
#pragma unroll
    for (int k = 0; k < BR / 16; ++k) multiply_add(dY, W + 4 * k, B + steps_across(k));
    commit_products();
}

// The consumer's part of dQ_i = dS K_j, over all keys, with N elements of a thread: of its 64 rows, which are a box of the tile
// of dS^T; under way.
template <int N>
__device__ __forceinline__ void multiply_dS_K(float (&dQ)[N], unsigned dS_tile, unsigned K_tile, int consumer)
{
    const u64 A = first_place(dS_tile + (HALVE_ROWS ? consumer * DS_BOX_BYTES : 0)) | DS_STRIDES;
    const u64 B = across_rows<BC>(K_tile + (HALVE_COLUMNS ? consumer * BC * ROW_BYTES : 0));
    begin_products();
    multiply_across(dQ, A, B);
#pragma unroll
    for (int k = 1; k < BC / 16; ++k) multiply_add_across(dQ, A + k * KEY_BYTES, B + steps_across(k));
    commit_products();
}

// Floats of dQ of one head, in fragments.
__device__ __forceinline__ size_t floats_of_head(int q_len) { return (size_t)((q_len + 15) / 16) * FRAGMENTS * FRAGMENT; }

// The warp's part, 16 rows of the `n`-th tile, from `first_row` on -> its place on chip, and from there added to dQ of the head.
template <int N>
__device__ __forceinline__ void add_dQ(const float (&dQ)[N], const Chip &chip, Barriers &barriers, int n, float *dQ_head,
                                       int first_row, int q_len)
{
    const int thread = unknown(threadIdx.x) - WARPGROUP, lane = thread % 32;
    const int row = first_row + (HALVE_ROWS ? thread : thread % WARPGROUP) / 32 * 16;
    const int first_fragment = HALVE_COLUMNS ? thread / WARPGROUP * (FIRST_COLUMNS / 8) : 0;
    const unsigned place = chip.dQ(thread / 32);
    if constexpr (Order::IS_FIXED) {
        if (lane == 0) barriers.wait_until_dQ_is_empty(n);
    } else {
        if (lane == 0) wait_until_read();  // what was there before
    }
    __syncwarp();
    float4 *const to = reinterpret_cast<float4 *>(shared_pointer(place)) + lane;
#pragma unroll
    for (int j = 0; j < N / 4; ++j) to[32 * j] = make_float4(dQ[4 * j], dQ[4 * j + 1], dQ[4 * j + 2], dQ[4 * j + 3]);
    publish_to_async();
    __syncwarp();
    if constexpr (Order::IS_FIXED) {
        if (lane == 0) barriers.fill_dQ(n);
    } else {
        const size_t fragment = row / 16 * FRAGMENTS + first_fragment;
        if (lane == 0 && row < q_len) add_run(dQ_head + fragment * FRAGMENT, place, N / 4 * FRAGMENT * (int)sizeof(float));
    }
}

// All parts of the `n`-th tile, from `first_row` on, from their places on chip -> added to dQ of the head; by one thread.
__device__ __forceinline__ void add_parts_of_dQ(const Chip &chip, int n, float *dQ_head, int first_row, int q_len)
{
    constexpr int FIRST_BYTES = WARP_DQ_BYTES, LAST_BYTES = LAST_COLUMNS / 8 * FRAGMENT * (int)sizeof(float);
    const int parts = min(BR, q_len - first_row + 15) / 16;  // of 16 rows
    float *const to = dQ_head + first_row / 16 * (FRAGMENTS * FRAGMENT);
    if constexpr (HALVE_COLUMNS) {
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            float *const to_part = to + part * (FRAGMENTS * FRAGMENT);
            add_run(to_part, chip.dQ(part), FIRST_BYTES);
            add_run(to_part + FIRST_BYTES / (int)sizeof(float), chip.dQ(WARPS / CONSUMERS + part), LAST_BYTES);
        }
    } else {
        add_run(to, chip.dQ(TAKE_TURNS ? n % CONSUMERS * WARPS_WITH_DQ : 0), parts * FIRST_BYTES);
    }
}

// The warpgroup's keys of dK_j or dV_j, times `factor`, rounded to 16 bits -> its rows of the tile -> memory.
__device__ __forceinline__ void write_keys(const Sums &dY, float factor, unsigned tile, int consumer, const TensorMap &map,
                                           int first_key, int kv_head)
{
    const unsigned rows = tile + 64 * consumer * ROW_BYTES;
    const int row = threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 16;
#pragma unroll
    for (int k = 0; k < DEPTHS; ++k) {
        unsigned y[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int e = 8 * k + 2 * c;
            y[c] = e < HEAD_DIM / 2 ? packed(dY[e] * factor, dY[e + 1] * factor) : 0;  // a row may end in the pair of pieces
        }
        const int box = 16 * k / COLUMNS, piece = 2 * k % (COLUMNS / 8) + threadIdx.x % 32 / 16;
        store_matrices(rows + box * BC * ROW_BYTES + piece_of_row(row, piece), y);
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS + 1 + consumer, WARPGROUP);
    if (threadIdx.x % WARPGROUP == 0) store_tile<BC>(rows, map, first_key + 64 * consumer, kv_head);
}
