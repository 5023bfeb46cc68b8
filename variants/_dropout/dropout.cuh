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

    // Bit j: whether the row keeps key 64 block + column + 8 j.
    __device__ __forceinline__ unsigned kept_of_block(int row, int block, int column) const
    {
        const uint4 drawn = numbers(row, block, column);
        const unsigned words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
        unsigned bits = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if (words[w] << 16 >= threshold << 16) bits |= 1u << 2 * w;
            if (words[w] >= threshold << 16) bits |= 2u << 2 * w;
        }
        return bits;
    }

    // Bit j: whether the row keeps key first_key + column + 8 j, for j < TILES, at most 32. first_key is a multiple of 8.
    template <int TILES>
    __device__ __forceinline__ unsigned kept(int row, int first_key, int column) const
    {
        unsigned bits = 0;
#pragma unroll 1
        for (int block = first_key / 64; 64 * block < first_key + 8 * TILES; ++block) {
            bits |= moved(kept_of_block(row, block, column), block, first_key);
        }
        return bits;
    }

    // Bits of a block's keys as those of a tile's, at most 24 x 8 keys ahead of it: 8 keys are a bit.
    static __device__ __forceinline__ unsigned moved(unsigned bits, int block, int first_key)
    {
        const int ahead = 8 * block - first_key / 8;
        return ahead < 0 ? bits >> -ahead : bits << ahead;
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

// What is drawn for a block of 64 keys, in the layout of a product on tensor cores with TM tiles of 16 rows: the lane's rows
// g and g + 8 of tile i are h = 0 and 1. Bit j of bits[i][h] is of its first column in the block's tile j of 8 keys, bit
// 16 + j of its second. All calls are under way at once, since each is a chain of dependent instructions.
template <int TM>
struct DrawnBlock {
    unsigned bits[TM][2];
    int block = -1;  // none yet

    __device__ __forceinline__ void draw(const Dropout &dropout, int warp_row, int of_block)
    {
        if (block == of_block) return;
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = warp_row + 16 * i + 8 * h + lane / 4;
                bits[i][h] = dropout.kept_of_block(row, of_block, lane % 4 * 2) |
                             dropout.kept_of_block(row, of_block, lane % 4 * 2 + 1) << 16;
            }
        block = of_block;
    }
};

// The same of the TN tiles of 8 keys from first_key on. Those that lie in one block may find it drawn.
template <int TN, int TM>
__device__ __forceinline__ void draw_kept(unsigned (&kept)[TM][2], DrawnBlock<TM> &drawn, const Dropout &dropout,
                                          int warp_row, int first_key)
{
    static_assert(TN <= 16, "a row has 32 bits for a tile");
    if constexpr (8 % TN == 0) {
        drawn.draw(dropout, warp_row, first_key / 64);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) kept[i][h] = drawn.bits[i][h] >> first_key % 64 / 8;
    } else {
#pragma unroll
        for (int i = 0; i < TM; ++i) kept[i][0] = kept[i][1] = 0;
#pragma unroll 1
        for (int block = first_key / 64; 64 * block < first_key + 8 * TN; ++block) {
            drawn.draw(dropout, warp_row, block);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    kept[i][h] |= Dropout::moved(drawn.bits[i][h] & 0xffff, block, first_key) & 0xffff;
                    kept[i][h] |= Dropout::moved(drawn.bits[i][h] >> 16, block, first_key) << 16;
                }
        }
    }
}
#define DRAWN_BLOCK DrawnBlock<TM> drawn;
#define KEPT_OF_TILE_PARAMETERS , const Dropout &dropout, DrawnBlock<TM> &drawn, int warp_row, int first_key
#define KEPT_OF_TILE_ARGUMENTS(warp_row, first_key) , DROPOUT_OF(blockIdx.y, blockIdx.z), drawn, warp_row, first_key
#define DRAW_KEPT         \
    unsigned kept[TM][2]; \
    draw_kept<TN>(kept, drawn, dropout, warp_row, first_key);
#define KEPT_PARAMETER , const unsigned (&kept)[TM][2]
#define KEPT_ARGUMENT , kept

#define DROPPED(p, kept, j) ((kept) >> (j) & 1 ? (p) : 0.0f)  // p where bit j says that it is kept
#define DROPOUT_OF(head, entry) Dropout{threshold, seed_low, seed_high, (unsigned)(head), (unsigned)(entry)}
#else
#define DRAW_PARAMETERS
#define FACTOR_PARAMETER
#define KEPT_FACTOR 1.0f
#define DROPPED(p, kept, j) (p)
#define DRAWN_BLOCK
#define KEPT_OF_TILE_PARAMETERS
#define KEPT_OF_TILE_ARGUMENTS(warp_row, first_key)
#define DRAW_KEPT
#define KEPT_PARAMETER
#define KEPT_ARGUMENT
#endif
