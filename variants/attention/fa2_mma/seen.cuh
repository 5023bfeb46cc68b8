// What a warp's rows see of a tile of keys, and the mask, in the layout of a product on tensor cores. _mma/mma.cuh, and
// what tells of masks that are no band, are put before this text. In Numba: _mma/numba_band.py and numba_spans.py.
//
// Compile-time parameters: BR and BC (rows and keys per tile), WARPS.

constexpr int WARP_ROWS = BR / WARPS;  // a warp owns so many rows of Q_i, S, P and O_i from end to end
constexpr int TM = WARP_ROWS / 16;     // tiles of 16 rows
constexpr int TN = BC / 8;             // tiles of 8 keys

// In the layout of C: rows g and g + 8 of each tile of 16 are h = 0 and 1, with two neighbouring columns each.
typedef float Scores[TM][TN][4];

#ifdef VISITS
// Besides, which row sees which key of a tile that is mixed.
#define NOTED const Noted &noted; bool mixed; int from;  // key of the tile
#define AND_NOTED , noted, mixed, 0
#define AND_NOTED_FROM(key) , noted, mixed, key
#define IS_RUN !mixed
constexpr int AHEAD = -1;  // from the number of a visit to that of the next
__device__ __forceinline__ int row_of(int i, int h)
{
    return (int)threadIdx.x / 32 * WARP_ROWS + 16 * i + 8 * h + (int)threadIdx.x % 32 / 4;
}
#else
#define VISITS_PARAMETERS
#define NOTED
#define AND_NOTED
#define AND_NOTED_FROM(key)
#define IS_RUN true
constexpr int AHEAD = 1;
#endif

#ifndef SPANS
// What the warp's rows see of a tile of `keys` keys: the first row lies on key `place`, each other one key further. `behind`:
// the same of its keys from that one on.
struct KeysSeen {
    int keys, place, before, after;
    NOTED

    // Rows g and g + 8 of tile i of 16 rows are h = 0 and 1. The first key may lie before the tile, or behind it.
    __device__ __forceinline__ int first(int i, int h) const { return on(i, h) - before; }
    __device__ __forceinline__ int end(int i, int h) const { return min(on(i, h) + after + 1, keys); }
    __device__ __forceinline__ KeysSeen behind(int key) const
    {
        return {keys - key, place - key, before, after AND_NOTED_FROM(key)};
    }
    // Whether all rows see the whole tile.
    __device__ __forceinline__ bool by_all() const
    {
        return IS_RUN && place + WARP_ROWS - 1 - before <= 0 && min(place + after + 1, keys) >= BC;
    }
    __device__ __forceinline__ int on(int i, int h) const { return place + 16 * i + 8 * h + (int)threadIdx.x % 32 / 4; }
};
#else
// The same of rows whose first keys and ends the block keeps: those of a tile of `keys` keys from `first_key` on. Row
// `last` of the block is the warp's last.
struct KeysSeen {
    int keys, first_key, last;
    Limit before, after;
    NOTED

    __device__ __forceinline__ int first(int i, int h) const { return before.of[row(i, h)] - first_key; }
    __device__ __forceinline__ int end(int i, int h) const { return after.of[row(i, h)] - first_key; }
    __device__ __forceinline__ KeysSeen behind(int key) const
    {
        return {keys - key, first_key + key, last, before, after AND_NOTED_FROM(key)};
    }
    __device__ __forceinline__ bool by_all() const
    {
        const int own = (int)threadIdx.x / 32 * WARP_ROWS;
        return IS_RUN && before.of[last] <= first_key && after.of[own] >= first_key + BC;
    }
    __device__ __forceinline__ int row(int i, int h) const
    {
        return (int)threadIdx.x / 32 * WARP_ROWS + 16 * i + 8 * h + (int)threadIdx.x % 32 / 4;
    }
};
#endif

// -inf where the row does not see the key: chosen, not added, so that NaN behind the mask stays there.
template <int TILES> __device__ __forceinline__ void mask(float (&S)[TM][TILES][4], const KeysSeen &seen)
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
#ifdef VISITS
    if (!seen.mixed) return;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const int key = seen.from + 8 * j;
                const unsigned from_column = seen.noted[row_of(i, h)][key / 32] >> (int)threadIdx.x % 4 * 2;
                if (!(from_column >> key % 32 & 1)) S[i][j][2 * h] = MINUS_INFINITY;
                if (!(from_column >> (key % 32 + 1) & 1)) S[i][j][2 * h + 1] = MINUS_INFINITY;
            }
#endif
}
