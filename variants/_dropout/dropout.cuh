// Dropout: which weights of a row become 0. The Numba twin is numba_dropout.py.
//
// With the compile-time option DROPOUT a kernel has, as its last parameters,
//   unsigned threshold, seed_low, seed_high   a weight drops out where its number, of 16 bits, is below the threshold
//   float kept_factor                         what the weights that are left are multiplied by
// A call of Philox is for one row and for eight of its keys, those k with the same k / 64 and k % 8: the counter is
// (k / 64 * 8 + k % 8, row, query head, batch entry), and number k % 64 / 8 is the low or the high half of word k % 64 / 16.

#ifdef DROPOUT
#define DRAW_PARAMETERS , unsigned threshold, unsigned seed_low, unsigned seed_high
#define FACTOR_PARAMETER , float kept_factor
#define KEPT_FACTOR kept_factor

// Philox4x32-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
__device__ __forceinline__ uint4 philox(uint4 c, unsigned key_low, unsigned key_high)
{
    constexpr unsigned M0 = 0xD2511F53, M1 = 0xCD9E8D57;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        c = make_uint4(__umulhi(M1, c.z) ^ c.y ^ key_low, M1 * c.z, __umulhi(M0, c.x) ^ c.w ^ key_high, M0 * c.x);
        key_low += 0x9E3779B9;
        key_high += 0xBB67AE85;
    }
    return c;
}

// Of one query head of one batch entry.
struct Dropout {
    unsigned threshold, seed_low, seed_high, head, entry;

    // The numbers of keys 64 block + column, 8 further, and so on.
    __device__ __forceinline__ uint4 numbers(int row, int block, int column) const
    {
        return philox(make_uint4(block * 8 + column, row, head, entry), seed_low, seed_high);
    }

    // Bit j: whether the row keeps key first_key + column + 8 j, as far as it is in the block of 64. first_key is a
    // multiple of 8, and the block begins at most 24 x 8 keys behind it.
    __device__ __forceinline__ unsigned kept_of_block(int row, int block, int first_key, int column) const
    {
        const uint4 drawn = numbers(row, block, column);
        const unsigned words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
        unsigned bits = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            bits |= ((words[w] & 0xffff) >= threshold) << 2 * w;
            bits |= (words[w] >> 16 >= threshold) << (2 * w + 1);
        }
        const int ahead = 8 * block - first_key / 8;  // of the block's first eight keys
        return ahead < 0 ? bits >> -ahead : bits << ahead;
    }

    // The same of all blocks, for j < TILES, at most 32.
    template <int TILES>
    __device__ __forceinline__ unsigned kept(int row, int first_key, int column) const
    {
        unsigned bits = 0;
#pragma unroll 1
        for (int block = first_key / 64; 64 * block < first_key + 8 * TILES; ++block) {
            bits |= kept_of_block(row, block, first_key, column);
        }
        return bits;
    }

    // Whether the row keeps one key: a call of its own.
    __device__ __forceinline__ bool keeps(int row, int key) const
    {
        const uint4 drawn = numbers(row, key / 64, key % 8);
        const unsigned low = key & 16 ? drawn.y : drawn.x, high = key & 16 ? drawn.w : drawn.z;
        const unsigned word = key & 32 ? high : low;
        return (key & 8 ? word >> 16 : word & 0xffff) >= threshold;
    }
};

// In the layout of a product on tensor cores, TM tiles of 16 rows, TN of 8 keys: the lane's rows g and g + 8 of tile i are
// h = 0 and 1. Bit j of kept[i][h] is of its first column in tile j of keys, bit 16 + j of its second.
template <int TN, int TM>
__device__ __forceinline__ void draw_kept(unsigned (&kept)[TM][2], const Dropout &dropout, int warp_row, int first_key)
{
    static_assert(TN <= 16, "a row has 32 bits for a tile");
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < TM; ++i) kept[i][0] = kept[i][1] = 0;
#pragma unroll 1
    for (int block = first_key / 64; 64 * block < first_key + 8 * TN; ++block) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll 1  // takes fewer registers
                for (int c = 0; c < 2; ++c) {
                    const int row = warp_row + 16 * i + 8 * h + lane / 4;
                    const unsigned bits = dropout.kept_of_block(row, block, first_key, lane % 4 * 2 + c);
                    kept[i][h] |= (bits & 0xffff) << 16 * c;
                }
    }
}
#define KEPT_OF_TILE_PARAMETERS , const Dropout &dropout, int warp_row, int first_key
#define KEPT_OF_TILE_ARGUMENTS(warp_row, first_key) , DROPOUT_OF(blockIdx.y, blockIdx.z), warp_row, first_key
#define DRAW_KEPT         \
    unsigned kept[TM][2]; \
    draw_kept<TN>(kept, dropout, warp_row, first_key);
#define KEPT_PARAMETER , const unsigned (&kept)[TM][2]
#define KEPT_ARGUMENT , kept

#define DROPPED(p, kept, j) ((kept) >> (j) & 1 ? (p) : 0.0f)  // p where bit j says that it is kept
#define DROPOUT_OF(head, entry) Dropout{threshold, seed_low, seed_high, (unsigned)(head), (unsigned)(entry)}
#else
#define DRAW_PARAMETERS
#define FACTOR_PARAMETER
#define KEPT_FACTOR 1.0f
#define DROPPED(p, kept, j) (p)
#define KEPT_OF_TILE_PARAMETERS
#define KEPT_OF_TILE_ARGUMENTS(warp_row, first_key)
#define DRAW_KEPT
#define KEPT_PARAMETER
#define KEPT_ARGUMENT
#endif
