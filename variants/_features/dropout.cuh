// Dropout: which weights of a row become 0. The plan chooses one of the two types at the end as `Dropout`. The Numba twin is
// numba_dropout.py.
//
//     const auto drawn = dropout.of_head(head, batch);
//     const auto kept = drawn.kept<TN>(row, first_key, column);   // for keys first_key + column + 8 j
//     p = kept.or_zero(p, j);
//
// Weights that are kept are multiplied by dropout.factor(), 1 / (1 - P), in the end.
//
// A call of Philox is for four rows and four keys, eight apart, of a block of 32 rows and 32 keys: the counter is
// (key / 32 * 8 + key % 8, row / 32 * 8 + row % 8, query head, batch entry), and the number of a row and a key is byte
// row % 32 / 8 of word key % 32 / 8.

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

// Bit j: whether weight j is kept.
struct KeptBits {
    unsigned bits;
    __device__ __forceinline__ float or_zero(float p, int j) const { return bits >> j & 1 ? p : 0.0f; }
};

struct AllKept {
    __device__ __forceinline__ float or_zero(float p, int) const { return p; }
};

// The numbers of one query head of one batch entry.
struct HeadDropout {
    unsigned threshold, seed_low, seed_high, head, batch;

    // The numbers of those rows and keys of two blocks of 32 that are row_of_8 and key_of_8 modulo 8.
    __device__ __forceinline__ uint4 numbers(int row_block, int row_of_8, int key_block, int key_of_8) const
    {
        return philox(make_uint4(key_block * 8 + key_of_8, row_block * 8 + row_of_8, head, batch), seed_low, seed_high);
    }

    // Bit j: whether the row keeps key 32 block + column + 8 j.
    __device__ __forceinline__ unsigned kept_of_block(int row, int block, int column) const
    {
        const uint4 drawn = numbers(row / 32, row % 8, block, column);
        const unsigned words[4] = {drawn.x, drawn.y, drawn.z, drawn.w};
        unsigned bits = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if ((words[w] >> row % 32 / 8 * 8 & 0xff) >= threshold) bits |= 1u << w;
        }
        return bits;
    }

    // Whether the row keeps key first_key + column + 8 j, for j < TILES, at most 32. first_key is a multiple of 8.
    template <int TILES> __device__ __forceinline__ KeptBits kept(int row, int first_key, int column) const
    {
        unsigned bits = 0;
#pragma unroll 1
        for (int block = first_key / 32; 32 * block < first_key + 8 * TILES; ++block) {
            const int ahead = 4 * block - first_key / 8;  // of the tile's first eight keys
            const unsigned of_block = kept_of_block(row, block, column);
            bits |= ahead < 0 ? of_block >> -ahead : of_block << ahead;
        }
        return {bits};
    }

    // Whether the row keeps one key: a call of its own.
    __device__ __forceinline__ bool keeps(int row, int key) const
    {
        const uint4 drawn = numbers(row / 32, row % 8, key / 32, key % 8);
        const unsigned low = key & 8 ? drawn.y : drawn.x, high = key & 8 ? drawn.w : drawn.z;
        return ((key & 16 ? high : low) >> row % 32 / 8 * 8 & 0xff) >= threshold;
    }
};

struct PhiloxDropout {
    static constexpr bool DROPS = true;
    unsigned threshold, seed_low, seed_high;  // a weight is dropped if its number, of 8 bits, is below the threshold
    float kept_factor;

    __device__ __forceinline__ HeadDropout of_head(int head, int batch) const
    {
        return {threshold, seed_low, seed_high, (unsigned)head, (unsigned)batch};
    }
    __device__ __forceinline__ float factor() const { return kept_factor; }
};

struct NoDropout {
    static constexpr bool DROPS = false;

    struct OfHead {
        template <int TILES> __device__ __forceinline__ AllKept kept(int, int, int) const { return {}; }
        __device__ __forceinline__ bool keeps(int, int) const { return true; }
    };
    __device__ __forceinline__ OfHead of_head(int, int) const { return {}; }
    __device__ __forceinline__ float factor() const { return 1.0f; }
};
