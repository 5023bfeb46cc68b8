// What the algorithms with tiles share: load a tile into shared memory, multiply tiles, reduce over a row, store a tile. The
// Numba twin of this text is numba_tiles.py: same names, same order.
//
// Compile-time parameters: D (elements per row of Q and K), DV (elements per row of V and O), BR and BC (rows and keys per
// tile), BLOCKS_PER_SM (blocks that a multiprocessor has registers for), STEPS_AT_ONCE (steps of Q K^T that are written out one
// after the other). Functions that move or multiply a tile take the WIDTH of its rows: unless given, D of what is like Q and K,
// DV of what is like V and O.

// 128 threads stand in TY = 16 rows of TX = 8. The thread in row ty and column tx owns every 16th row of S and of O from ty
// on, and of each such row the keys tx, tx + 8, ... of S and the elements of O that element_of names. A row lies in a
// quarter of a warp, so its maximum and sum need only shuffles.
//
// Lanes n and n + 1, n even, stand in one column, and lanes n and n + 2 in one row. Shared memory serves loads of 16 bytes to
// eight lanes at a time, and to sixteen if lanes n and n + 1, or n and n + 2, read the same address: so loads of K and V, and
// of Q and P, take half as many passes.
constexpr int THREADS = 128;
constexpr int TX = 8;
constexpr int TY = THREADS / TX;
constexpr int APART = 2;  // lanes from one column to the next
constexpr int TM = (BR + TY - 1) / TY;  // rows of S and O per thread
constexpr int TN = (BC + TX - 1) / TX;  // keys per thread and row of S
constexpr int TD = (DV + TX - 1) / TX;  // elements per thread and row of O
constexpr int P_ROWS = TY * TM;         // rows of P in shared memory: those beyond BR belong to threads at the edge

// How many elements of a row of `width` elements one load brings, and the stride of such rows in shared memory: an odd number of
// those loads, so that the same column of adjacent rows lies in different banks.
__device__ constexpr int step_over(int width) { return width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : 1; }
__device__ constexpr int leading_dimension(int width) { return step_over(width) * (width / step_over(width) | 1); }

// Products are limited by how many loads from shared memory they need, so these are as wide as rows allow: STEP elements
// of a row of Q or K, STEP_P of a row of P, and VD of a row of V. The compiler joins what is adjacent and aligned.
constexpr int STEP = step_over(D);
constexpr int STEP_P = 4;
__device__ constexpr int adjacent_of(int width) { return width % (4 * TX) == 0 ? 4 : width % (2 * TX) == 0 ? 2 : 1; }
__device__ constexpr int elements_of(int width) { return (width + TX - 1) / TX; }  // per thread and row: TD of DV
constexpr int VD = adjacent_of(DV);
// Strides of tiles in shared memory. LD is that of Q and K; that of V and O is leading_dimension(DV). LP is an odd multiple of
// TX, so that the 4 rows x 8 keys of P that a warp stores at once lie in different banks, too.
constexpr int LD = leading_dimension(D);
constexpr int LP = TX * (TN | 1);

__device__ __forceinline__ int thread_index() { return threadIdx.y * TX + threadIdx.x; }
__device__ __forceinline__ int thread_row() { return threadIdx.y / APART * APART + threadIdx.x % APART; }
__device__ __forceinline__ int thread_column() { return threadIdx.y % APART * (TX / APART) + threadIdx.x / APART; }

// For kernels whose grid is (blocks of a head, heads, batch). Heads are counted through the batch; `group` of them share K
// and V.
__device__ __forceinline__ size_t head_index() { return (size_t)blockIdx.z * gridDim.y + blockIdx.y; }
__device__ __forceinline__ size_t kv_head_index(unsigned group)
{
    return (size_t)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
}

// The rows that the block owns.
__device__ __forceinline__ RowBlock own_rows(int q_len)
{
    const int first_row = blockIdx.x * BR;
    return {(int)blockIdx.z, (int)blockIdx.y, (int)blockIdx.x, (int)gridDim.x, first_row, min(BR, q_len - first_row)};
}

__device__ __forceinline__ int row_of(int i) { return thread_row() + TY * i; }
__device__ __forceinline__ int key_of(int j) { return thread_column() + TX * j; }
template <int WIDTH = DV> __device__ __forceinline__ int element_of(int j)
{
    constexpr int VD = adjacent_of(WIDTH);
    return (j / VD * TX + thread_column()) * VD + j % VD;
}

// A thread beyond the tile's edge repeats the edge; nothing that it computes is used.
__device__ __forceinline__ int tile_row(int i) { return BR == TY * TM ? row_of(i) : min(row_of(i), BR - 1); }
__device__ __forceinline__ int tile_key(int j) { return BC == TX * TN ? key_of(j) : min(key_of(j), BC - 1); }
template <int WIDTH = DV> __device__ __forceinline__ int tile_element(int j)
{
    return WIDTH == TX * elements_of(WIDTH) ? element_of<WIDTH>(j) : min(element_of<WIDTH>(j), WIDTH - 1);
}

// Whether row i and element j of this thread lie in the tile.
__device__ __forceinline__ bool has_row(int i) { return BR == TY * TM || row_of(i) < BR; }
template <int W = DV> __device__ __forceinline__ bool has_element(int j) { return W % TX == 0 || element_of<W>(j) < W; }

// Which keys of a tile of `keys` keys each row of this thread sees: counted from the tile's first key, from first[i] to
// end[i] - 1, of which `pairs` (tile_order.cuh) may hide some.
template <class Pairs> struct SeenInTile {
    int first[TM], end[TM], first_by_all, end_by_all;
    Pairs pairs;
    __device__ __forceinline__ bool in_run(int i, int key) const { return first[i] <= key && key < end[i]; }
    __device__ __forceinline__ bool sees(int i, int key) const
    {
        return in_run(i, key) && (!pairs.hides_some() || pairs.sees(thread_row() + TY * i, key));
    }
};

template <class Run, class Pairs>
__device__ __forceinline__ SeenInTile<Pairs> seen_in_tile(const BlockLimits<Run> &seen, const Pairs &pairs, int first_row,
                                                          int first_key, int keys)
{
    SeenInTile<Pairs> in_tile;
    in_tile.pairs = pairs;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        in_tile.first[i] = seen.run.unclipped_first(first_row + row_of(i)) - first_key;
        in_tile.end[i] = min(seen.run.unclipped_end(first_row + row_of(i)) - first_key, keys);
    }
    in_tile.first_by_all = max(seen.first_by_all - first_key, 0);
    in_tile.end_by_all = min(seen.end_by_all - first_key, keys);
    return in_tile;
}

// The same where each row sees a run of keys.
template <class Run>
__device__ __forceinline__ SeenInTile<AllTiles::Pairs> seen_in_tile(const BlockLimits<Run> &seen, int first_row, int first_key,
                                                                    int keys)
{
    return seen_in_tile(seen, AllTiles::Pairs{}, first_row, first_key, keys);
}

// Where element e of a run of rows lies in a tile, and the one `further` elements after it.
template <int WIDTH = D> __device__ __forceinline__ int place(unsigned e)
{
    return e + e / WIDTH * (leading_dimension(WIDTH) - WIDTH);
}
template <int WIDTH = D> __device__ __forceinline__ int place(unsigned e, unsigned further)
{
    // Whole rows further: without a division.
    return THREADS % WIDTH == 0 ? place<WIDTH>(e) + place<WIDTH>(further) : place<WIDTH>(e + further);
}

// `rows` rows of global memory -> a tile of EXTENT rows; zeros below, so that nothing stale is left in the tile.
// The rows of a head lie one after the other: the block copies them as one run, 32 consecutive elements per warp.
// AT_ONCE loads are under way before the first is waited for; elements are widened after all loads have been issued, since
// widening waits for the data.
// All threads go round a loop over memory equally often: no compiler then lets a warp's lanes get out of step.
constexpr int AT_ONCE = 16;
template <int EXTENT, int WIDTH = D, typename element>
__device__ __forceinline__ void load_tile(float *tile, const element *source, int rows)
{
#pragma unroll 1
    for (int start = 0; start < EXTENT * WIDTH; start += AT_ONCE * THREADS) {
        const int e = start + thread_index();
        const element *from = source + e;
        element x[AT_ONCE];
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) x[c] = e + c * THREADS < rows * WIDTH ? from[c * THREADS] : element();
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) {
            if (EXTENT * WIDTH % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * WIDTH) {
                tile[place<WIDTH>(e, c * THREADS)] = widen(x[c]);
            }
        }
    }
}

// The first `rows` rows of a tile -> global memory, as one run.
template <int WIDTH = D, typename element>
__device__ __forceinline__ void store_tile(element *target, const float *tile, int rows)
{
#pragma unroll 1
    for (int start = 0; start < rows * WIDTH; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * WIDTH) narrow(tile[place<WIDTH>(e)], &target[e]);
    }
}

// What each thread has of O, times a factor -> a tile.
template <int WIDTH = DV>
__device__ __forceinline__ void gather(float *tile, const float (&O)[TM][elements_of(WIDTH)], float factor = 1.0f)
{
    constexpr int LDV = leading_dimension(WIDTH);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < elements_of(WIDTH); ++j) {
            if (has_row(i) && has_element<WIDTH>(j)) tile[row_of(i) * LDV + element_of<WIDTH>(j)] = factor * O[i][j];
        }
}

// S = Q_i K_j^T, each element one sum over the WIDTH elements of a row in ascending order.
template <int WIDTH = D>
__device__ __forceinline__ void multiply_Q_Kt(float (&S)[TM][TN], const float *Q_tile, const float *K_tile)
{
    constexpr int STEP = step_over(WIDTH), LD = leading_dimension(WIDTH);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) S[i][j] = 0.0f;
#pragma unroll STEPS_AT_ONCE
    for (int k = 0; k < WIDTH; k += STEP) {
        float key[TN][STEP], q[TM][STEP];
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int e = 0; e < STEP; ++e) key[j][e] = K_tile[tile_key(j) * LD + k + e];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int e = 0; e < STEP; ++e) q[i][e] = Q_tile[tile_row(i) * LD + k + e];
#pragma unroll
        for (int e = 0; e < STEP; ++e)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) S[i][j] += q[i][e] * key[j][e];
    }
}

// S = score(tau S) where the row sees the key, -inf elsewhere: chosen, not added, so that a NaN score of a hidden key cannot
// reach the result.
template <class Score, class Pairs>
__device__ __forceinline__ void scale_and_mask(float (&S)[TM][TN], float tau, const Score &score,
                                               const SeenInTile<Pairs> &seen, int first_row, int first_key)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const bool sees = key_of(j) < seen.end[i];
            S[i][j] = sees ? score(tau * S[i][j], first_row + row_of(i), first_key + key_of(j)) : MINUS_INFINITY;
        }
    if (seen.first[TM - 1] > 0) {  // a row's first key is never before that of a row above it
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) S[i][j] = key_of(j) >= seen.first[i] ? S[i][j] : MINUS_INFINITY;
    }
    if (seen.pairs.hides_some()) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) S[i][j] = seen.pairs.sees(row_of(i), key_of(j)) ? S[i][j] : MINUS_INFINITY;
    }
}

// Maximum and sum over LANES lanes, APART from each other.
template <int LANES, int APART = 1>
__device__ __forceinline__ float lanes_max(float x)
{
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, d * APART));
    return x;
}

template <int LANES, int APART = 1>
__device__ __forceinline__ float lanes_sum(float x)
{
#pragma unroll
    for (int d = LANES / 2; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffff, x, d * APART);
    return x;
}

// exp(x - m), and 0 for x = -inf even where nothing was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
__device__ __forceinline__ float exp_below(float x, float m) { return __expf(x - (m == MINUS_INFINITY ? 0.0f : m)); }

// rowmax(S) of one row of S; the same in all lanes that share the row.
__device__ __forceinline__ float row_max(const float (&S_i)[TN])
{
    float largest = S_i[0];
#pragma unroll
    for (int j = 1; j < TN; ++j) largest = fmaxf(largest, S_i[j]);
    return lanes_max<TX, APART>(largest);
}

// Sum of the parts that the lanes of a row hold.
__device__ __forceinline__ float row_sum(float part) { return lanes_sum<TX, APART>(part); }

// O += P V_j over keys from k to end_key - 1, each only where the row sees it: its zero weight must not even be multiplied,
// since V may hold NaN or infinity. LISTED: whether `pairs` hide some, too.
template <bool LISTED, int WIDTH, class Pairs>
__device__ __forceinline__ void add_P_V_where_seen(float (&O)[TM][elements_of(WIDTH)], const float *P_tile,
                                                   const float *V_tile, int k, int end_key, const SeenInTile<Pairs> &seen)
{
    constexpr int LDV = leading_dimension(WIDTH), TD = elements_of(WIDTH);
#pragma unroll 1
    for (; k < end_key; ++k) {
        float v[TD];
#pragma unroll
        for (int j = 0; j < TD; ++j) v[j] = V_tile[k * LDV + tile_element<WIDTH>(j)];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const float p = P_tile[row_of(i) * LP + k];
            if constexpr (LISTED) {
                const bool sees = seen.in_run(i, k) && seen.pairs.sees(row_of(i), k);
#pragma unroll
                for (int j = 0; j < TD; ++j) O[i][j] = sees ? O[i][j] + p * v[j] : O[i][j];
            } else {
#pragma unroll
                for (int j = 0; j < TD; ++j) O[i][j] = seen.in_run(i, k) ? O[i][j] + p * v[j] : O[i][j];
            }
        }
    }
}

// O += P V_j over the tile's `keys` keys in ascending order: in steps of STEP_P those that all rows see, one by one the others.
template <int WIDTH = DV, class Pairs>
__device__ __forceinline__ void add_P_V(float (&O)[TM][elements_of(WIDTH)], const float *P_tile, const float *V_tile, int keys,
                                        const SeenInTile<Pairs> &seen)
{
    if (seen.pairs.hides_some()) {
        add_P_V_where_seen<true, WIDTH>(O, P_tile, V_tile, 0, keys, seen);
        return;
    }
    const int first_step = (seen.first_by_all + STEP_P - 1) / STEP_P;
    const int end_step = max(first_step, seen.end_by_all / STEP_P);
    add_P_V_where_seen<false, WIDTH>(O, P_tile, V_tile, 0, min(first_step * STEP_P, keys), seen);
    constexpr int LDV = leading_dimension(WIDTH), TD = elements_of(WIDTH);
#pragma unroll 2
    for (int k = STEP_P * first_step; k < STEP_P * end_step; k += STEP_P) {
        float p[TM][STEP_P];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int e = 0; e < STEP_P; ++e) p[i][e] = P_tile[row_of(i) * LP + k + e];
#pragma unroll
        for (int e = 0; e < STEP_P; ++e)
#pragma unroll
            for (int j = 0; j < TD; ++j) {
                const float v = V_tile[(k + e) * LDV + tile_element<WIDTH>(j)];
#pragma unroll
                for (int i = 0; i < TM; ++i) O[i][j] += p[i][e] * v;
            }
    }
    add_P_V_where_seen<false, WIDTH>(O, P_tile, V_tile, end_step * STEP_P, keys, seen);
}
