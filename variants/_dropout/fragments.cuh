// Dropout in the fragments of products on tensor cores. dropout.cuh is put before this text; the Numba twin is
// numba_fragments.py.

#ifdef DROPOUT
// Which of four numbers reach the threshold, by the sign of each byte. Seven bits of a byte and of the threshold are
// compared, of which none borrows from its neighbour. What the eighth adds: where the threshold has it a byte needs it,
// too, else it is enough.
struct Threshold {
    unsigned seven_bits, eighth_is_enough;  // in each byte; all ones or 0

    __device__ __forceinline__ explicit Threshold(unsigned threshold)
        : seven_bits((threshold & 0x7f) * 0x01010101), eighth_is_enough(threshold & 0x80 ? 0u : ~0u)
    {
    }

    __device__ __forceinline__ unsigned reached_by(unsigned numbers) const
    {
        const unsigned reached = (numbers | 0x80808080) - seven_bits;
        return (numbers & reached) | (eighth_is_enough & (numbers | reached));
    }
};

// What a lane of a product on tensor cores keeps of a block of 32 rows and 32 keys: one call for each of its two
// neighbouring columns. The sign of byte r of marks[c][w] is for keys 8 w and rows 8 r further than the lane's first of
// column c.
struct DrawnBlock {
    unsigned marks[2][4];

    // Where a tile begins in the middle of the block, of keys or of rows, its first words or bytes come first.
    __device__ __forceinline__ void set(int column, uint4 drawn, Threshold least, bool from_key_16, bool from_row_16)
    {
        if (from_key_16) drawn.x = drawn.z, drawn.y = drawn.w;
        const int bits = from_row_16 ? 16 : 0;
        marks[column][0] = least.reached_by(drawn.x) >> bits;
        marks[column][1] = least.reached_by(drawn.y) >> bits;
        marks[column][2] = least.reached_by(drawn.z) >> bits;
        marks[column][3] = least.reached_by(drawn.w) >> bits;
    }

    // All ones where the weight of column c is kept, else 0.
    __device__ __forceinline__ unsigned mask(int c, int word, int byte) const
    {
        return signs_of_bytes(marks[c][word], marks[c][word], 0x8888 + 0x1111 * byte);
    }

    // The same of both columns, in the low and in the high half.
    __device__ __forceinline__ unsigned mask_of_both(int word, int byte) const
    {
        return signs_of_bytes(marks[0][word], marks[1][word], 0xcc88 + 0x1111 * byte);
    }

    // Digit n of `choice` is 8 + i: byte n is all bits the sign of byte i, of the eight of low and high.
    static __device__ __forceinline__ unsigned signs_of_bytes(unsigned low, unsigned high, unsigned choice)
    {
        unsigned signs;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(signs) : "r"(low), "r"(high), "r"(choice));
        return signs;
    }
};

// x where the mask is all ones, 0 where it is 0, whatever x is.
__device__ __forceinline__ float left_of(float x, unsigned mask)
{
    return __uint_as_float(__float_as_uint(x) & mask);
}

// What a warp draws that has TM tiles of 16 rows, from a multiple of 16 TM on, for a tile of TN times 8 keys, from a multiple
// of that on: blocks for 16 or 32 keys at a time.
template <int TM, int TN>
struct DrawnRows {
    static constexpr bool IN_PAIRS = TM % 2 == 0;      // the tiles of rows: they share blocks
    static constexpr bool WHOLE_BLOCKS = TN % 4 == 0;  // of keys
    DrawnBlock blocks[IN_PAIRS ? TM / 2 : TM];

    // For keys 16 s to 16 s + 15 of the tile, in ascending order.
    __device__ __forceinline__ void draw(const Dropout &dropout, int warp_row, int first_key, int s)
    {
        if (WHOLE_BLOCKS && s % 2 == 1) return;  // drawn with the keys before
        const int lane = (int)threadIdx.x % 32, key = first_key + 16 * s;
        const Threshold least(dropout.threshold);
#pragma unroll
        for (int i = 0; i < TM; i += IN_PAIRS ? 2 : 1)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int row = warp_row + 16 * i;
                const uint4 drawn = dropout.numbers(row / 32, lane / 4, key / 32, lane % 4 * 2 + c);
                blocks[IN_PAIRS ? i / 2 : i].set(c, drawn, least, !WHOLE_BLOCKS && key % 32, !IN_PAIRS && row % 32);
            }
    }

    // Of P, as two columns are packed: rows g (h = 0) and g + 8 of tile i, and tile j of 8 of these keys.
    __device__ __forceinline__ unsigned mask(int i, int h, int s, int j) const
    {
        const int word = WHOLE_BLOCKS ? s % 2 * 2 + j : j, byte = IN_PAIRS ? i % 2 * 2 + h : h;
        return blocks[IN_PAIRS ? i / 2 : i].mask_of_both(word, byte);
    }

    // Of one column c of a tile of whole blocks, for tile j of 8 of its first 32 keys: p, or 0.
    __device__ __forceinline__ float left(float p, int i, int h, int j, int c) const
    {
        return left_of(p, blocks[IN_PAIRS ? i / 2 : i].mask(c, j, IN_PAIRS ? i % 2 * 2 + h : h));
    }
};

// The same where S is transposed: a warp's TM tiles of 16 keys, from a multiple of 16 TM on, and TN tiles of 8 rows, from a
// multiple of 8 TN on. The columns are rows.
template <int TM, int TN>
struct DrawnKeys {
    static constexpr bool IN_PAIRS = TM % 2 == 0;      // the tiles of keys: they share blocks
    static constexpr bool WHOLE_BLOCKS = TN % 4 == 0;  // of rows
    DrawnBlock blocks[IN_PAIRS ? TM / 2 : TM][WHOLE_BLOCKS ? TN / 4 : TN / 2];

    __device__ __forceinline__ void draw(const Dropout &dropout, int lane, int first_key, int first_row)
    {
        const Threshold least(dropout.threshold);
#pragma unroll
        for (int i = 0; i < TM; i += IN_PAIRS ? 2 : 1)
#pragma unroll
            for (int j = 0; j < TN; j += WHOLE_BLOCKS ? 4 : 2)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int key = first_key + 16 * i, row = first_row + 8 * j;
                    const uint4 drawn = dropout.numbers(row / 32, lane % 4 * 2 + c, key / 32, lane / 4);
                    at(i, j).set(c, drawn, least, !IN_PAIRS && key % 32, !WHOLE_BLOCKS && row % 32);
                }
    }

    __device__ __forceinline__ DrawnBlock &at(int i, int j)
    {
        return blocks[IN_PAIRS ? i / 2 : i][WHOLE_BLOCKS ? j / 4 : j / 2];
    }

    // For keys g (h = 0) and g + 8 of tile i, and column c of tile j of 8 rows: x, or 0.
    __device__ __forceinline__ float left(float x, int i, int h, int j, int c)
    {
        return left_of(x, at(i, j).mask(c, IN_PAIRS ? i % 2 * 2 + h : h, WHOLE_BLOCKS ? j % 4 : j % 2));
    }

    // The same of two columns, as they are packed.
    __device__ __forceinline__ unsigned mask(int i, int h, int j)
    {
        return at(i, j).mask_of_both(IN_PAIRS ? i % 2 * 2 + h : h, WHOLE_BLOCKS ? j % 4 : j % 2);
    }
};

// For kernels that draw as they make P, of rows; `tiles` of 8 keys.
#define DROPOUT_OF_TILE_PARAMETERS , const Dropout &dropout, int warp_row, int first_key
#define DROPOUT_OF_TILE(head, entry, warp_row, first_key) , DROPOUT_OF(head, entry), warp_row, first_key
#define DROPOUT_OF_TILE_ARGUMENTS , dropout, warp_row, first_key
#define DRAWN_ROWS(tiles) DrawnRows<TM, tiles> drawn;
#define DRAW(key, s) drawn.draw(dropout, warp_row, first_key + (key), s);
#define DRAWN_PARAMETERS(tiles) , const DrawnRows<TM, tiles> &drawn
#define DRAWN_ARGUMENTS , drawn
#define LEFT_OF_BOTH(two, i, h, s, j) ((two) & drawn.mask(i, h, s, j))

// D dP - delta, of which dS = P o that; `drawn` has the rest.
#define GROWN_LESS(dp, delta, i, h, j, c) fmaf(kept_factor, drawn.left(dp, i, h, j, c), -(delta))
#else
#define DROPOUT_OF_TILE_PARAMETERS
#define DROPOUT_OF_TILE(head, entry, warp_row, first_key)
#define DROPOUT_OF_TILE_ARGUMENTS
#define DRAWN_ROWS(tiles)
#define DRAW(key, s)
#define DRAWN_PARAMETERS(tiles)
#define DRAWN_ARGUMENTS
#define LEFT_OF_BOTH(two, i, h, s, j) (two)
#define GROWN_LESS(dp, delta, i, h, j, c) ((dp) - (delta))
#endif
