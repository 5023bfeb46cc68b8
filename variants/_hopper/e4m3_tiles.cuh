// Tiles of e4m3, one byte per element, as copies leave them and `wgmma` multiplies them. e4m3.cuh, hopper.cuh and
// softmax.cuh are put before this text.
//
// `wgmma` of e4m3 takes both factors along their rows only, 32 elements at a time. So V lies transposed, a row per
// element and a column per key, and its keys in such an order that what a product leaves in a lane is what the next one
// wants of it as A, see key_of_place().

// A tile of ROWS rows of WIDTH bytes: boxes of BOX bytes of each row, one behind the other.
template <int ROWS, int WIDTH>
struct ByteTile {
    static constexpr int BOX = WIDTH % 128 == 0 ? 128 : WIDTH % 64 == 0 ? 64 : 32;  // also its swizzle
    static constexpr int BYTES = ROWS * WIDTH;

    // From a tensor, its bytes from `column` on of the rows from `row` on; what lies outside arrives as zeros.
    static __device__ __forceinline__ void load(unsigned tile, const TensorMap &map, int column, int row, int head,
                                                u64 &barrier)
    {
#pragma unroll
        for (int box = 0; box < WIDTH / BOX; ++box) {
            load_box(tile + box * ROWS * BOX, map, column + box * BOX, row, head, barrier);
        }
    }

    // Both factors of a product; `step` times 32 bytes further.
    static __device__ __forceinline__ u64 descriptor(unsigned tile)
    {
        constexpr u64 SWIZZLED = (u64)(BOX == 128 ? 1 : BOX == 64 ? 2 : 3) << 62;
        return first_place(tile) | (u64)(8 * BOX / 16) << 32 | SWIZZLED;
    }
    static __device__ __forceinline__ constexpr u64 steps(int step)
    {
        return step / (BOX / 32) * (ROWS * BOX / 16) + step % (BOX / 32) * 2;
    }

    // Where a byte of a row lies.
    static __device__ __forceinline__ int place(int row, int byte)
    {
        const int piece = byte % BOX / 16;
        const int swizzled = BOX == 128 ? piece ^ row % 8 : BOX == 64 ? piece ^ row / 2 % 4 : piece ^ row / 4 % 2;
        return byte / BOX * ROWS * BOX + row * BOX + swizzled * 16 + byte % 16;
    }
};

// The tiles of this kernel.
typedef ByteTile<BR, D> QTile;
typedef ByteTile<BC, D> KTile;
typedef ByteTile<D, BC> VTile;  // transposed

// A: P, four registers for 32 keys.
typedef unsigned ByteWeights[BC / 8];

// P, rounded to e4m3: what a product leaves in four tiles of 8 keys is A of the next one.
__device__ __forceinline__ void round_weights(ByteWeights &P, const Scores &S)
{
#pragma unroll
    for (int i = 0; i < BC / 8; ++i) {
        const int e = 8 * (i / 2) + 2 * (i % 2);
        P[i] = packed_e4m3(S[e], S[e + 1], S[e + 4], S[e + 5]);
    }
}
