// Softmax that reads each row once: between the sum and the quotients, a row stays in the registers of a warp, a block or the
// blocks of a cluster. m, d and equation 4 are those of Milakov and Gimelshein 2018, arXiv 1805.02867. The Numba twin is
// numba_kernel.py.
//
// Compile-time parameters: VECTOR (adjacent elements that a thread loads at once: a piece), PIECES (of a thread), THREADS (of
// a block, at most), CLUSTER (blocks that share a row), IS_SHARED (whether a row belongs to more than one warp), HAS_PARTS
// (whether a row is longer than what its threads have in registers, and comes in parts).

struct alignas(VECTOR * sizeof(stored)) Piece {
    stored elements[VECTOR];
};

constexpr int ELEMENTS = VECTOR * PIECES;

// The row's piece that is this thread's k-th of a part. A warp moves 32 adjacent pieces at a time.
__device__ __forceinline__ int piece_of(int part, int k)
{
    return ((part * PIECES + k) * CLUSTER + blockIdx.x % CLUSTER) * blockDim.x + threadIdx.x;
}

// x_j, and -inf beyond the row. All loads are under way before the first is waited for.
__device__ __forceinline__ void load_part(float (&x)[ELEMENTS], const Piece *row, int part, int pieces)
{
    Piece loaded[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        if (piece_of(part, k) < pieces) loaded[k] = row[piece_of(part, k)];
    }
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
        const int k = e / VECTOR;
        x[e] = piece_of(part, k) < pieces ? widen(loaded[k].elements[e % VECTOR]) : MINUS_INFINITY;
    }
}

__device__ __forceinline__ void store_part(const float (&y)[ELEMENTS], Piece *row, int part, int pieces)
{
#pragma unroll
    for (int k = 0; k < PIECES; ++k) {
        Piece narrowed;
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) narrow(y[k * VECTOR + e], &narrowed.elements[e]);
        if (piece_of(part, k) < pieces) row[piece_of(part, k)] = narrowed;
    }
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

// Equation 4: m and d of the row from those of its warps, each of which gives its own to all blocks of the cluster.
__device__ __forceinline__ void combine(float &m, float &d)
{
    __shared__ float2 pairs[CLUSTER * WARPS];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    float2 *own = &pairs[blockIdx.x % CLUSTER * warps + threadIdx.x / 32];
    if constexpr (CLUSTER > 1) {
        __cluster_barrier_wait();  // all blocks have begun
        if (lane < CLUSTER) *static_cast<float2 *>(__cluster_map_shared_rank(own, lane)) = make_float2(m, d);
        __cluster_barrier_arrive();
        __cluster_barrier_wait();
    } else {
        if (lane == 0) *own = make_float2(m, d);
        __syncthreads();
    }
    m = MINUS_INFINITY;
#pragma unroll 1
    for (int warp = lane; warp < CLUSTER * warps; warp += 32) m = fmaxf(m, pairs[warp].x);
    m = warp_max(m);
    d = 0.0f;
#pragma unroll 1
    for (int warp = lane; warp < CLUSTER * warps; warp += 32) d += pairs[warp].y * exp_below(pairs[warp].x, m);
    d = warp_sum(d);
}

// 40 registers leave room for 1,536 threads on a multiprocessor.
extern "C" __global__ void __launch_bounds__(THREADS, 1536 / THREADS)
    on_chip_softmax(const stored *__restrict__ X, stored *__restrict__ Y, int rows, int columns)
{
    // A warp, a block or a cluster owns one row.
    const size_t row = (size_t)(blockIdx.x / CLUSTER) * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const Piece *x_row = reinterpret_cast<const Piece *>(X + row * columns);
    Piece *y_row = reinterpret_cast<Piece *>(Y + row * columns);
    const int pieces = columns / VECTOR;
    const int parts = HAS_PARTS ? (pieces - 1) / (PIECES * CLUSTER * (int)blockDim.x) + 1 : 1;
    if constexpr (CLUSTER > 1) __cluster_barrier_arrive();

    // m and d of this warp's columns. The row's first part comes last and stays in registers, as exp(x_j - m).
    float x[ELEMENTS], m = MINUS_INFINITY, d = 0.0f;
    for (int part = parts - 1; part >= 0; --part) {
        load_part(x, x_row, part, pieces);
        const float m_old = m;
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) m = fmaxf(m, x[e]);
        m = warp_max(m);
        d *= exp_below(m_old, m);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) d += x[e] = exp_below(x[e], m);
    }
    d = warp_sum(d);

    // y_i = exp(x_i - m) / d.
    const float m_warp = m;
    if constexpr (IS_SHARED) combine(m, d);
    const float factor = exp_below(m_warp, m) / d;
    for (int part = 0; part < parts; ++part) {
        if (part > 0) load_part(x, x_row, part, pieces);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) x[e] = (part > 0 ? exp_below(x[e], m_warp) : x[e]) * factor;
        store_part(x, y_row, part, pieces);
    }
}
