// Tiles of e4m3, one byte per element, as copies leave them and `wgmma` multiplies them, and their products. e4m3.cuh,
// hopper.cuh, softmax.cuh, registers.cuh and the products of the tile's sizes are put before this text.
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

// --- Products --------------------------------------------------------------------------------------------------------

// S_next = Q_i K_j^T for the warpgroup's rows, under way.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, unsigned Q_rows, unsigned K_tile)
{
    const u64 Q = QTile::descriptor(Q_rows), K = KTile::descriptor(K_tile);
    begin_products();
    multiply(S, Q, K);
#pragma unroll
    for (int k = 1; k < D / 32; ++k) multiply_add(S, Q + QTile::steps(k), K + KTile::steps(k));
    commit_products();
}

// O_i += P_cur V_j, under way.
__device__ __forceinline__ void add_P_V(Output &O, const ByteWeights &P, unsigned V_tile)
{
    const u64 V = VTile::descriptor(V_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < BC / 32; ++k) multiply_add(O, P + 4 * k, V + VTile::steps(k));
    commit_products();
}

// S = Q_i K_j^T once more, by one warp alone, where sums of its exponentials may have left float's range. It is to be short,
// and need not be fast.
__device__ __forceinline__ void multiply_alone(Scores &S, unsigned Q_tile, unsigned K_tile)
{
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread), "+r"(Q_tile), "+r"(K_tile));  // so that nothing takes registers before
    const unsigned char *const Q = shared_pointer(Q_tile), *const K = shared_pointer(K_tile);
    const auto word = [](const unsigned char *bytes) { return *reinterpret_cast<const unsigned *>(bytes); };
#pragma unroll 1
    for (int j = 0; j < TN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) S[e] = 0.0f;
#pragma unroll 1
        for (int byte = thread % 4 * 4; byte < D; byte += 32) {
            const int row = thread / 32 * 16 - WARPGROUP / 2 + thread % 32 / 4, key = 8 * j + thread % 32 / 4;
            asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                         "{%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(S[0]), "+f"(S[1]), "+f"(S[2]), "+f"(S[3])
                         : "r"(word(Q + QTile::place(row, byte))), "r"(word(Q + QTile::place(row + 8, byte))),
                           "r"(word(Q + QTile::place(row, byte + 16))), "r"(word(Q + QTile::place(row + 8, byte + 16))),
                           "r"(word(K + KTile::place(key, byte))), "r"(word(K + KTile::place(key, byte + 16))));
        }
        move_up<4>(S);
    }
    __syncwarp();
}
