// Softmax of rows that are copied to shared memory in advance: while one tile is computed in registers, bulk copies bring those
// after it. m, d and equation 4 are those of Milakov and Gimelshein 2018, arXiv 1805.02867. bulk_copies.cuh and exchange.cuh
// are put before this text. The Numba twin is numba_kernel.py.
//
// Compile-time parameters: PIECES (of 16 bytes, that a thread has in registers), THREADS (of a block),
// CLUSTER (blocks that share a row), STAGES (tiles that a block has room for), IS_SHARED (whether a row belongs to more than one
// warp), IS_PERSISTENT (whether blocks take tile after tile; else there is a block, or a cluster, for each).
//
// A tile is one row, or a row for each warp of the block.

constexpr int VECTOR = 16 / sizeof(stored);
constexpr int ELEMENTS = VECTOR * PIECES;
constexpr int ROW_THREADS = IS_SHARED ? THREADS : 32;  // of this block, that have elements of the same row
constexpr int TILE_ROWS = THREADS / ROW_THREADS;
constexpr int BLOCKS_PER_SM = (ELEMENTS > 32 ? 512 : 1024) / THREADS;  // at least, as far as registers decide

struct alignas(16) Piece {
    stored elements[VECTOR];
};

// The tiles that have been copied, or are on their way, each from a multiple of 128 bytes on.
extern __shared__ __align__(128) Piece stages[];

// Tiles that clusters have taken besides those that they begin with. The last one to find no tile left sets it to 0.
__device__ unsigned taken;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    pipelined_softmax(const stored *__restrict__ X, stored *__restrict__ Y, int rows, int columns)
{
    __shared__ Barrier full[STAGES];
    __shared__ float2 pairs[2][CLUSTER * WARPS];  // one is written while slower warps still read the other
    __shared__ int next_tile[2];

    // Of each row, this block has the pieces from `first` on.
    const int rank = blockIdx.x % CLUSTER, row_pieces = columns / VECTOR;
    const int share = CLUSTER > 1 ? ((row_pieces - 1) / (CLUSTER * 32) + 1) * 32 : row_pieces;
    const int first = rank * share, pieces = min(share, row_pieces - first), first_piece = threadIdx.x % ROW_THREADS;
    const int tiles = (rows - 1) / TILE_ROWS + 1, clusters = gridDim.x / CLUSTER;
    const int stage_pieces = (TILE_ROWS * share + 7) / 8 * 8;
    const Piece *X_share = reinterpret_cast<const Piece *>(X) + first;
    Piece *Y_share = reinterpret_cast<Piece *>(Y) + first;

    const auto load_tile = [&](int stage, int tile) {
        const int row = tile * TILE_ROWS, bytes = min(TILE_ROWS, rows - row) * pieces * (int)sizeof(Piece);
        load_run(stages + stage * stage_pieces, X_share + (size_t)row * row_pieces, bytes, full[stage]);
    };
    // Each cluster begins with STAGES tiles, and then takes one after the other of those that are left, one at a time.
    const auto take_tile = [&] {
        const int begun = STAGES * clusters, left = max(0, tiles - begun);
        return begun + (int)atomicInc(&taken, left + clusters - 1);
    };
    int ahead[STAGES], taken_tile = tiles;
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) ahead[stage] = blockIdx.x / CLUSTER + stage * clusters;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) init_barrier(full[stage]);
        publish_barriers();
        for (int stage = 0; stage < STAGES; ++stage) {
            if (ahead[stage] < tiles) load_tile(stage, ahead[stage]);
        }
        if (IS_PERSISTENT && rank == 0) taken_tile = take_tile();
    }
    cluster_sync();

    for (int stage = 0, parity = 0, turn = 0; ahead[0] < tiles; turn ^= 1) {
        // x_j of this thread's pieces, and -inf beyond the row.
        const int row = ahead[0] * TILE_ROWS + threadIdx.x / ROW_THREADS, left = (row < rows ? pieces : 0) - first_piece;
        const Piece *own_x = stages + stage * stage_pieces + threadIdx.x / ROW_THREADS * share + first_piece;
        wait(full[stage], parity);
        float x[ELEMENTS], m = MINUS_INFINITY, d = 0.0f;
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            const bool is_there = k * ROW_THREADS < left;
            Piece loaded;
            if (is_there) loaded = own_x[k * ROW_THREADS];
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) x[k * VECTOR + e] = is_there ? widen(loaded.elements[e]) : MINUS_INFINITY;
        }

        // m and d of this warp's columns. x_j becomes exp(x_j - m).
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) m = fmaxf(m, x[e]);
        m = warp_max(m);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) d += x[e] = weight(x[e], m);
        d = warp_sum(d);

        // The warps exchange them. The barrier also means that all threads have read this stage.
        const float m_warp = m;
        if (IS_SHARED) give_to_blocks(&pairs[turn][rank * WARPS + threadIdx.x / 32], make_float2(m, d));
        if (IS_PERSISTENT && rank == 0 && threadIdx.x < 32) {
            give_to_blocks(&next_tile[turn], __shfl_sync(0xffffffff, taken_tile, 0));
        }
        if (IS_SHARED || IS_PERSISTENT) cluster_sync();
        const int next = IS_PERSISTENT ? next_tile[turn] : tiles;
        if (threadIdx.x == 0 && next < tiles) {
            load_tile(stage, next);
            if (rank == 0) taken_tile = take_tile();
        }
        if constexpr (IS_SHARED) combine(pairs[turn], m, d);

        // y_i = exp(x_i - m) / d.
        const float factor = exp_below(m_warp, m) / d;
        Piece *own_y = Y_share + (size_t)row * row_pieces + first_piece;
#pragma unroll
        for (int k = 0; k < PIECES; ++k) {
            Piece narrowed;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) narrow(x[k * VECTOR + e] * factor, &narrowed.elements[e]);
            if (k * ROW_THREADS < left) own_y[k * ROW_THREADS] = narrowed;
        }
#pragma unroll
        for (int s = 0; s < STAGES; ++s) ahead[s] = s + 1 < STAGES ? ahead[s + 1] : next;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        parity ^= stage == 0;
    }
}
