// Which keys of a tile a warp's rows see, and the mask, in the layout of a product on tensor cores. _features/limits.cuh,
// tile_order.cuh and registers.cuh are put before this text. In Numba: _mma/numba_band.py and numba_spans.py.

// A tile of keys. Row (i, h) of the lane sees keys first(i, h) to end(i, h) - 1, which may lie before the tile or after it, and
// of these, `pairs` may hide some. `skipped`: keys of the tile before those that are counted here. Limits are a band: the
// warp's first row lies on key `place`, each other one key further, and the sequence has `keys` keys.
template <class Pairs> struct BandOfTile {
    int keys, place, before, after, skipped;
    Pairs pairs;

    __device__ __forceinline__ int key_of_row(int i, int h) const { return row_from(place, i, h); }
    __device__ __forceinline__ int first(int i, int h) const { return key_of_row(i, h) - before; }
    __device__ __forceinline__ int end(int i, int h) const { return min(key_of_row(i, h) + after + 1, keys); }
    __device__ __forceinline__ bool all_see_all() const
    {
        return !pairs.hides_some() && place + WARP_ROWS - 1 - before <= 0 && min(place + after + 1, keys) >= BC;
    }
    __device__ __forceinline__ BandOfTile from_key(int key) const
    {
        return {keys - key, place - key, before, after, key, pairs};
    }
};

// The same where limits are spans, which the block holds in shared memory. Row `last` of the block is the warp's last.
template <class Pairs> struct SpansOfTile {
    const int *first_keys, *end_keys;
    int first_key, last, skipped;
    Pairs pairs;

    __device__ __forceinline__ int first(int i, int h) const { return first_keys[row_of(i, h)] - first_key; }
    __device__ __forceinline__ int end(int i, int h) const { return end_keys[row_of(i, h)] - first_key; }
    __device__ __forceinline__ bool all_see_all() const
    {
        const int own = (int)threadIdx.x / 32 * WARP_ROWS;
        return !pairs.hides_some() && first_keys[last] <= first_key && end_keys[own] >= first_key + BC;
    }
    __device__ __forceinline__ SpansOfTile from_key(int key) const
    {
        return {first_keys, end_keys, first_key + key, last, key, pairs};
    }
};

template <class Pairs>
__device__ __forceinline__ BandOfTile<Pairs> seen_of_tile(const Band::Run &run, const Pairs &pairs, int first_key, int warp_row,
                                                          int /*last*/)
{
    const int keys = run.kv_len - first_key;
    return {keys, warp_row - run.q_len + keys, run.before, run.after, 0, pairs};
}

template <class Pairs>
__device__ __forceinline__ SpansOfTile<Pairs> seen_of_tile(const Spans::Run &run, const Pairs &pairs, int first_key,
                                                           int /*warp_row*/, int last)
{
    return {run.first_keys, run.end_keys, first_key, last, 0, pairs};
}

// S = -inf for the keys that `pairs` hide.
template <int TILES> __device__ __forceinline__ void hide(float (&)[TM][TILES][4], const AllTiles::Pairs &, int) {}

template <int TILES, class Pairs>
__device__ __forceinline__ void hide(float (&S)[TM][TILES][4], const Pairs &pairs, int skipped)
{
    if (!pairs.hides_some()) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const int key = skipped + 8 * j;
                const unsigned from_column = (*pairs.bits)[row_of(i, h)][key / 32] >> (int)threadIdx.x % 4 * 2;
                if (!(from_column >> key % 32 & 1)) S[i][j][2 * h] = MINUS_INFINITY;
                if (!(from_column >> (key % 32 + 1) & 1)) S[i][j][2 * h + 1] = MINUS_INFINITY;
            }
}

// S = -inf where the row does not see the key: chosen, not added, so that NaN behind the mask stays there.
template <int TILES, class Seen>
__device__ __forceinline__ void mask(float (&S)[TM][TILES][4], const Seen &seen)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int column = (int)threadIdx.x % 4 * 2;  // the lane's first: both ends are counted from there
            const int first = seen.first(i, h) - column, end = seen.end(i, h) - column;
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                if (8 * j < first || 8 * j >= end) S[i][j][2 * h] = MINUS_INFINITY;
                if (8 * j + 1 < first || 8 * j + 1 >= end) S[i][j][2 * h + 1] = MINUS_INFINITY;
            }
        }
    hide(S, seen.pairs, seen.skipped);
}
