// Masks that are no band, where SPANS is defined: two arrays of (batch, q_len) say which key each row sees first, and
// where what it sees ends. Put before tiles.cuh, or mma.cuh, which have the same names for bands: there `before` and
// `after` are two numbers.
//
// Neither array ever goes down from a row to the next, so the first of a block's rows sees its first key, and the last
// one its last. A block loads those of its rows once, as two runs, and keeps them on chip.

#define LIMITS const int *__restrict__ first_keys, const int *__restrict__ end_keys

// One of the two arrays, from `first_row` on. Where rows of several heads are packed, the next head's follow the last of
// q_len rows.
struct Limit {
    const int *of;
    int first_row;
};

__device__ __forceinline__ int limit_of(int row, int q_len, Limit limit)
{
    return limit.of[row - limit.first_row + (row < limit.first_row ? q_len : 0)];
}
__device__ __forceinline__ int first_seen(int row, int q_len, int, Limit before) { return limit_of(row, q_len, before); }
__device__ __forceinline__ int end_seen(int row, int q_len, int, Limit after) { return limit_of(row, q_len, after); }

// The sequence's, in memory.
#define LIMITS_IN_MEMORY                                                         \
    const Limit before = {first_keys + (size_t)blockIdx.z * q_len, 0},           \
                after = {end_keys + (size_t)blockIdx.z * q_len, 0};

#ifdef BR
// The block's, of `rows` rows from `first_row` on, and of those that its tile has room for besides: these see nothing,
// behind all keys.
constexpr int ROWS_KEPT = (BR + 15) / 16 * 16;
__device__ __forceinline__ void keep_limits(int *kept, const int *__restrict__ limits, int first_row, int rows, int q_len,
                                            int kv_len)
{
    const int t = threadIdx.y * blockDim.x + threadIdx.x;
    const size_t first = (size_t)blockIdx.z * q_len + first_row;
    if (t < ROWS_KEPT) kept[t] = t < rows ? limits[first + t] : kv_len;
}
#define KEEP_LIMITS(first_row, rows)                                             \
    __shared__ int first_kept[ROWS_KEPT], end_kept[ROWS_KEPT];                   \
    keep_limits(first_kept, first_keys, first_row, rows, q_len, kv_len);         \
    keep_limits(end_kept, end_keys, first_row, rows, q_len, kv_len);             \
    __syncthreads();                                                             \
    const Limit before = {first_kept, first_row}, after = {end_kept, first_row};
#endif
