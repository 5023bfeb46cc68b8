// Q, K and V -> e4m3, before kernel.cu. Two launches of one grid, a block to each run of RUN rows of a head of Q, then of
// K, then of V: the first finds the largest magnitude of each run, the second that of each head, from which the head's
// scale follows, and rounds the rows. Rows of V become columns.
//
// _mma/mma.cuh and _hopper/e4m3.cuh are put before this text.
//
// Compile-time parameter: D (elements per row of e4m3, padded to a multiple of 32 by zeros).

constexpr int RUN = 128;
constexpr int THREADS = 256;
constexpr int PIECE = 8;              // elements that a thread reads at once: 16 bytes
constexpr int WORDS = RUN / 4;        // of a row of V transposed
constexpr unsigned HAS_INFINITY = 1u << 16;

struct Run {
    int block;
    const stored *rows;
    int tensor;      // Q, K, V: 0, 1, 2
    int head;        // of the tensor
    int scale;       // of the head, among all scales
    int first_row, count, length;
    int of_head, runs;  // which of the head's runs, and how many it has
};

__device__ __forceinline__ Run run_of(int block, const stored *Q, const stored *K, const stored *V, int q_len, int kv_len,
                                      int q_heads, int kv_heads, int head_dim)
{
    Run run;
    run.block = block;
    const int q_runs = (q_len + RUN - 1) / RUN, kv_runs = (kv_len + RUN - 1) / RUN;
    run.tensor = block < q_heads * q_runs ? 0 : block < q_heads * q_runs + kv_heads * kv_runs ? 1 : 2;
    if (run.tensor > 0) block -= q_heads * q_runs + (run.tensor - 1) * kv_heads * kv_runs;
    run.runs = run.tensor == 0 ? q_runs : kv_runs;
    run.length = run.tensor == 0 ? q_len : kv_len;
    run.head = block / run.runs;
    run.of_head = block % run.runs;
    run.scale = run.head + (run.tensor == 0 ? 0 : q_heads + (run.tensor - 1) * kv_heads);
    run.first_row = run.of_head * RUN;
    run.count = min(RUN, run.length - run.first_row);
    run.rows = (run.tensor == 0 ? Q : run.tensor == 1 ? K : V) +
               ((size_t)run.head * run.length + run.first_row) * head_dim;
    return run;
}

// The largest of magnitudes as bits, which are in the same order, and whether there was an infinity.
__device__ __forceinline__ unsigned larger(unsigned a, unsigned b)
{
    return max(a & 0xffff, b & 0xffff) | ((a | b) & HAS_INFINITY);
}

__device__ __forceinline__ unsigned largest_of_block(unsigned largest)
{
    __shared__ unsigned of_warps[THREADS / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = larger(largest, __shfl_xor_sync(0xffffffff, largest, step));
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < THREADS / 32; ++warp) largest = larger(largest, of_warps[warp]);
    return largest;
}

// Of both halves; what is not finite is no magnitude.
__device__ __forceinline__ unsigned larger_finite(unsigned largest, unsigned both)
{
    const unsigned low = both & 0x7fff, high = both >> 16 & 0x7fff;
    if (low < EXPONENT) largest = larger(largest, low);
    if (high < EXPONENT) largest = larger(largest, high);
    return low == EXPONENT || high == EXPONENT ? largest | HAS_INFINITY : largest;
}

extern "C" __global__ __launch_bounds__(THREADS) void largest_magnitudes(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    unsigned *__restrict__ largest_of_runs, int q_len, int kv_len, int q_heads, int kv_heads, int head_dim)
{
    const Run run = run_of(blockIdx.x, Q, K, V, q_len, kv_len, q_heads, kv_heads, head_dim);
    const uint4 *const pieces = reinterpret_cast<const uint4 *>(run.rows);
    const int end = run.count * head_dim / PIECE;
    unsigned largest = 0;
    // All threads go round equally often: no unrolling then lets a warp's lanes get out of step.
#pragma unroll 8
    for (int start = 0; start < end; start += THREADS) {
        const int e = start + threadIdx.x;
        const uint4 x = e < end ? pieces[e] : make_uint4(0, 0, 0, 0);
        const unsigned low = max(max(x.x & 0x7fff, x.y & 0x7fff), max(x.z & 0x7fff, x.w & 0x7fff));
        const unsigned high = max(max(x.x & 0x7fff0000, x.y & 0x7fff0000), max(x.z & 0x7fff0000, x.w & 0x7fff0000));
        const unsigned both = max(low, high >> 16);
        if (both < EXPONENT) {
            largest = larger(largest, both);
        } else {
            largest = larger_finite(larger_finite(largest, x.x), x.y);
            largest = larger_finite(larger_finite(largest, x.z), x.w);
        }
    }
    largest = largest_of_block(largest);
    if (threadIdx.x == 0) largest_of_runs[run.block] = largest;
}

// Two elements, scaled. An infinity becomes NaN, which O of all rows that see it is then; but 0 in K, of which some rows
// make a score of -infinity: kernel.cu adds it there.
__device__ __forceinline__ float2 scaled(unsigned both, float2 factor, bool of_K)
{
    const float2 x = unpacked(both);
    float2 y = make_float2(x.x * factor.x * factor.y, x.y * factor.x * factor.y);
    if (not_finite(both)) {
        const float instead = of_K ? 0.0f : __int_as_float(0x7fffffff);
        if (isinf(x.x)) y.x = instead;
        if (isinf(x.y)) y.y = instead;
    }
    return y;
}

// Eight elements of a row.
struct Piece {
    float2 pairs[4];
};

__device__ __forceinline__ Piece scaled(const uint4 &x, float2 factor, bool of_K)
{
    return {{scaled(x.x, factor, of_K), scaled(x.y, factor, of_K), scaled(x.z, factor, of_K), scaled(x.w, factor, of_K)}};
}

// The rows of Q or K as they are.
__device__ __forceinline__ void round_rows(const Run &run, uint2 *__restrict__ bytes, int head_dim, float2 factor)
{
    constexpr int PIECES = D / PIECE;
    const uint4 *const from = reinterpret_cast<const uint4 *>(run.rows);
    uint2 *const to = bytes + ((size_t)run.head * run.length + run.first_row) * PIECES;
    const int pieces = head_dim / PIECE, end = run.count * PIECES;
    // As in largest_magnitudes().
#pragma unroll 4
    for (int start = 0; start < end; start += THREADS) {
        const int e = start + threadIdx.x, row = e / PIECES, piece = e % PIECES;
        uint2 rounded = make_uint2(0, 0);
        if (e < end && piece < pieces) {
            const uint4 x = from[row * pieces + piece];
            const Piece y = scaled(x, factor, run.tensor == 1);
            rounded.x = packed_e4m3(y.pairs[0].x, y.pairs[0].y, y.pairs[1].x, y.pairs[1].y);
            rounded.y = packed_e4m3(y.pairs[2].x, y.pairs[2].y, y.pairs[3].x, y.pairs[3].y);
        }
        if (e < end) to[e] = rounded;
    }
}

// The rows of V as columns, in the order of key_of_place(); zeros behind the last key.
__device__ __forceinline__ void round_and_transpose(const Run &run, unsigned *__restrict__ words, int head_dim,
                                                    float2 factor)
{
    // Word w of the row of element e lies at w ^ 2 (e / 8): neighbouring threads have neighbouring pieces of rows.
    __shared__ unsigned transposed[D][WORDS];
    const uint4 *const from = reinterpret_cast<const uint4 *>(run.rows);
    const int pieces = head_dim / PIECE;
#pragma unroll 2
    for (int e = threadIdx.x; e < WORDS * pieces; e += THREADS) {
        const int word = e / pieces, piece = e % pieces;
        Piece y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = key_of_place(4 * word + i);
            const uint4 x = key < run.count ? from[key * pieces + piece] : make_uint4(0, 0, 0, 0);
            y[i] = scaled(x, factor, false);
        }
        const int at = word ^ (2 * piece) % WORDS;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            unsigned *const row = transposed[PIECE * piece + 2 * j];
            row[at] = packed_e4m3(y[0].pairs[j].x, y[1].pairs[j].x, y[2].pairs[j].x, y[3].pairs[j].x);
            row[WORDS + at] = packed_e4m3(y[0].pairs[j].y, y[1].pairs[j].y, y[2].pairs[j].y, y[3].pairs[j].y);
        }
    }
    __syncthreads();
    const int row_words = (run.length + 31) / 32 * 8;
    unsigned *const to = words + (size_t)run.head * head_dim * row_words + run.first_row / 4;
    const int word = threadIdx.x % WORDS;
    if (word >= row_words - run.first_row / 4) return;
#pragma unroll 8
    for (int e = threadIdx.x / WORDS; e < head_dim; e += THREADS / WORDS) {
        to[(size_t)e * row_words + word] = transposed[e][word ^ (2 * (e / PIECE)) % WORDS];
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void round_factors(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const unsigned *__restrict__ largest_of_runs, int *__restrict__ scales, uint2 *__restrict__ Q_e4m3,
    uint2 *__restrict__ K_e4m3, unsigned *__restrict__ V_e4m3, int q_len, int kv_len, int q_heads, int kv_heads,
    int head_dim, float sign)
{
    // What the first launch read last is still in L2.
    const Run run = run_of(gridDim.x - 1 - blockIdx.x, Q, K, V, q_len, kv_len, q_heads, kv_heads, head_dim);
    unsigned largest = 0;
    for (int e = threadIdx.x; e < run.runs; e += THREADS) {
        largest = larger(largest, largest_of_runs[run.block - run.of_head + e]);
    }
    largest = largest_of_block(largest);
    const int exponent = scale_exponent(unpacked(largest & 0xffff).x);
    if (run.of_head == 0 && threadIdx.x == 0) scales[run.scale] = 2 * exponent + (largest & HAS_INFINITY ? 1 : 0);
    float2 factor = powers_of_two(-exponent);
    if (run.tensor == 0) factor.y *= sign;
    if (run.tensor == 2) {
        round_and_transpose(run, V_e4m3, head_dim, factor);
    } else {
        round_rows(run, run.tensor == 0 ? Q_e4m3 : K_e4m3, head_dim, factor);
    }
}
