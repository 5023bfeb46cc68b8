// Which rows see the keys that a block owns: as a row sees keys, the other way round. tiles.cuh or mma.cuh is put before
// this text.
//
// In a band key j lies on row j + q_len - kv_len, and is seen by the rows from `ahead` ahead of that to `behind` behind it,
// which are a row's `after` and `before`. So first_seen(key, kv_len, q_len, ahead) is the first row that sees it, and
// end_seen(key, kv_len, q_len, behind) ends those that do.
//
// Where a mask is no band, rows that see a key are a run all the same, for runs of rows never move backwards. Two arrays of
// (batch, kv_len) say which row sees each key first, and where those that see it end. Neither ever goes down from a key to
// the next. A block loads those of its keys once, as two runs, and keeps them on chip.
#ifndef SPANS
typedef int Limit;
#define LIMITS_OF_KEYS int before, int after
#define KEEP_LIMITS_OF_KEYS(KEYS_KEPT, first_key, keys) const int ahead = after, behind = before;
#else
#define LIMITS_OF_KEYS const int *__restrict__ first_rows, const int *__restrict__ end_rows

// The block's, of `keys` keys from `first_key` on, and of those that its tile has room for besides: these are seen by
// nobody, behind all rows.
template <int KEYS_KEPT>
__device__ __forceinline__ void keep_limits_of_keys(int *kept, const int *__restrict__ limits, int first_key, int keys,
                                                    int q_len, int kv_len)
{
    const int t = threadIdx.y * blockDim.x + threadIdx.x;
    const size_t first = (size_t)blockIdx.z * kv_len + first_key;
    if (t < KEYS_KEPT) kept[t] = t < keys ? limits[first + t] : q_len;
}
#define KEEP_LIMITS_OF_KEYS(KEYS_KEPT, first_key, keys)                                      \
    __shared__ int first_kept[KEYS_KEPT], end_kept[KEYS_KEPT];                               \
    keep_limits_of_keys<KEYS_KEPT>(first_kept, first_rows, first_key, keys, q_len, kv_len);  \
    keep_limits_of_keys<KEYS_KEPT>(end_kept, end_rows, first_key, keys, q_len, kv_len);      \
    __syncthreads();                                                                         \
    const Limit ahead = {first_kept, first_key}, behind = {end_kept, first_key};
#endif
