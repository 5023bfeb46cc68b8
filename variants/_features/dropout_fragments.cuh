// Dropout in the fragments of products on tensor cores: which weights of a lane become 0. dropout.cuh is put before this
// text. The Numba twin is numba_dropout_fragments.py.
//
//     KeptInRows<Dropout, TM, TN> kept;                             // of a warp's TM tiles of 16 rows and TN tiles of 8 keys
//     kept.draw(dropout.of_head(head, batch), warp_row, first_key, s);
//     P = kept.both(P, i, h, s, j);                                 // two neighbours, in 16 bits
//     dS = p * kept.minus(dP, D, dropout.factor(), i, h, j, c);
//
// KeptInKeys is the same for kernels in which S is transposed. A call of Philox is for two columns of a lane; what it draws
// lasts for 32 rows and 32 keys.

// Which of four numbers reach the threshold, by the sign of each byte. Seven bits of a byte and of the threshold are
// compared, of which none borrows from its neighbour. The eighth bit: where the threshold has it a byte needs it, too; else
// it is enough.
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

// What a lane keeps of a block of 32 rows and 32 keys: one call for each of its two neighbouring columns. The sign of byte r
// of marks[c][w] is for keys 8 w and rows 8 r further than the lane's first of column c.
struct BlockMarks {
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

// D dP - delta, of which dS = P o that: `mask` is all ones where the weight is kept, else 0, whatever dP is.
__device__ __forceinline__ float dropped_minus(float dP, unsigned mask, float delta, float factor)
{
    return fmaf(factor, __uint_as_float(__float_as_uint(dP) & mask), -delta);
}

// A warp has TM tiles of 16 rows, from a multiple of 16 TM on, and a tile of TN times 8 keys, from a multiple of that on:
// blocks for 16 or 32 keys at a time.
template <class Dropout, int TM, int TN> struct KeptInRows {
    static constexpr bool IN_PAIRS = TM % 2 == 0;      // the tiles of rows: they share blocks
    static constexpr bool WHOLE_BLOCKS = TN % 4 == 0;  // of keys
    BlockMarks blocks[IN_PAIRS ? TM / 2 : TM];

    // For keys 16 s to 16 s + 15 of the tile, in ascending order.
    __device__ __forceinline__ void draw(const HeadDropout &drawn, int warp_row, int first_key, int s)
    {
        if (WHOLE_BLOCKS && s % 2 == 1) return;  // drawn with the keys before
        const int lane = (int)threadIdx.x % 32, key = first_key + 16 * s;
        const Threshold least(drawn.threshold);
#pragma unroll
        for (int i = 0; i < TM; i += IN_PAIRS ? 2 : 1)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int row = warp_row + 16 * i;
                const uint4 numbers = drawn.numbers(row / 32, lane / 4, key / 32, lane % 4 * 2 + c);
                blocks[IN_PAIRS ? i / 2 : i].set(c, numbers, least, !WHOLE_BLOCKS && key % 32, !IN_PAIRS && row % 32);
            }
    }

    // Two columns of P as they are packed: rows g (h = 0) and g + 8 of tile i, and tile j of 8 of these 16 keys.
    __device__ __forceinline__ unsigned both(unsigned P, int i, int h, int s, int j) const
    {
        const int word = WHOLE_BLOCKS ? s % 2 * 2 + j : j, byte = IN_PAIRS ? i % 2 * 2 + h : h;
        return P & blocks[IN_PAIRS ? i / 2 : i].mask_of_both(word, byte);
    }

    // D dP - delta of column c of tile j of 8 of the first 32 keys, where tiles have whole blocks.
    __device__ __forceinline__ float minus(float dP, float delta, float factor, int i, int h, int j, int c) const
    {
        const unsigned mask = blocks[IN_PAIRS ? i / 2 : i].mask(c, j, IN_PAIRS ? i % 2 * 2 + h : h);
        return dropped_minus(dP, mask, delta, factor);
    }
};

template <int TM, int TN> struct KeptInRows<NoDropout, TM, TN> {
    __device__ __forceinline__ void draw(NoDropout::OfHead, int, int, int) {}
    __device__ __forceinline__ unsigned both(unsigned P, int, int, int, int) const { return P; }
    __device__ __forceinline__ float minus(float dP, float delta, float, int, int, int, int) const { return dP - delta; }
};

// S is transposed: a warp has TM tiles of 16 keys, from a multiple of 16 TM on, and TN tiles of 8 rows, from a multiple of
// 8 TN on. The columns are rows.
template <class Dropout, int TM, int TN> struct KeptInKeys {
    static constexpr bool IN_PAIRS = TM % 2 == 0;      // the tiles of keys: they share blocks
    static constexpr bool WHOLE_BLOCKS = TN % 4 == 0;  // of rows
    BlockMarks blocks[IN_PAIRS ? TM / 2 : TM][WHOLE_BLOCKS ? TN / 4 : TN / 2];

    __device__ __forceinline__ void draw(const HeadDropout &drawn, int lane, int first_key, int first_row)
    {
        const Threshold least(drawn.threshold);
#pragma unroll
        for (int i = 0; i < TM; i += IN_PAIRS ? 2 : 1)
#pragma unroll
            for (int j = 0; j < TN; j += WHOLE_BLOCKS ? 4 : 2)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    const int key = first_key + 16 * i, row = first_row + 8 * j;
                    const uint4 numbers = drawn.numbers(row / 32, lane % 4 * 2 + c, key / 32, lane / 4);
                    BlockMarks &block = blocks[IN_PAIRS ? i / 2 : i][WHOLE_BLOCKS ? j / 4 : j / 2];
                    block.set(c, numbers, least, !IN_PAIRS && key % 32, !WHOLE_BLOCKS && row % 32);
                }
    }

    __device__ __forceinline__ const BlockMarks &at(int i, int j) const
    {
        return blocks[IN_PAIRS ? i / 2 : i][WHOLE_BLOCKS ? j / 4 : j / 2];
    }
    static __device__ __forceinline__ int word(int i, int h) { return IN_PAIRS ? i % 2 * 2 + h : h; }
    static __device__ __forceinline__ int byte(int j) { return WHOLE_BLOCKS ? j % 4 : j % 2; }

    // Two columns of P as they are packed: keys g (h = 0) and g + 8 of tile i, and tile j of 8 rows.
    __device__ __forceinline__ unsigned both(unsigned P, int i, int h, int j) const
    {
        return P & at(i, j).mask_of_both(word(i, h), byte(j));
    }

    // D dP - delta of column c of them.
    __device__ __forceinline__ float minus(float dP, float delta, float factor, int i, int h, int j, int c) const
    {
        return dropped_minus(dP, at(i, j).mask(c, word(i, h), byte(j)), delta, factor);
    }
};

template <int TM, int TN> struct KeptInKeys<NoDropout, TM, TN> {
    __device__ __forceinline__ void draw(NoDropout::OfHead, int, int, int) {}
    __device__ __forceinline__ unsigned both(unsigned P, int, int, int) const { return P; }
    __device__ __forceinline__ float minus(float dP, float delta, float, int, int, int, int) const { return dP - delta; }
};

// The same numbers. The compiler does not compute the keys of Philox's rounds ahead of a loop, where they would take
// registers.
__device__ __forceinline__ HeadDropout with_seed_anew(HeadDropout drawn)
{
    asm volatile("" : "+r"(drawn.seed_low), "+r"(drawn.seed_high));
    return drawn;
}
__device__ __forceinline__ NoDropout::OfHead with_seed_anew(NoDropout::OfHead drawn) { return drawn; }
