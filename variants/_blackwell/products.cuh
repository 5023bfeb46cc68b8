// Products of the fifth generation of tensor cores (PTX ISA: tcgen05.mma, tcgen05.commit): one thread issues a product of 128
// rows, whose sums are in tensor memory. sm_100a alone. tensor_memory.cuh is put before this text.
//
// Compile-time parameter: D (elements per row, a multiple of 64). Tiles in shared memory are those of hopper.cuh.

constexpr int DEPTH = 16;                     // elements, or keys, that one product sums over
constexpr int WORDS_PER_DEPTH = DEPTH / 2;    // columns of tensor memory that they take as 16-bit factors

// Bits of an instruction descriptor: float32 sums of 128 rows by `columns` columns, of 16-bit factors. B `lies_across`: its rows
// are summed over.
constexpr unsigned product_of(int columns, bool lies_across)
{
    constexpr unsigned FLOAT32_SUMS = 1 << 4, BFLOAT16_FACTORS = FLOAT16 ? 0 : 1 << 7 | 1 << 10;
    return FLOAT32_SUMS | BFLOAT16_FACTORS | (lies_across ? 1 << 16 : 0) | columns / 8 << 17 | LANES / 16 << 24;
}

// Descriptors of tiles of ROWS rows whose boxes have rows of 128 bytes: one counts in 16 bytes, has the distance of boxes where
// the tile lies across, that of 8 rows, a constant 1, and the swizzle.
constexpr u64 LINES_SWIZZLED = (u64)1 << 46 | (u64)2 << 61;

__device__ __forceinline__ u64 factor_along_rows(unsigned tile) { return first_place(tile) | EIGHT_ROWS | LINES_SWIZZLED; }

template <int ROWS> __device__ __forceinline__ u64 factor_across_rows(unsigned tile)
{
    return first_place(tile) | (u64)(ROWS * ROW_BYTES / 16) << 16 | EIGHT_ROWS | LINES_SWIZZLED;
}

// Sums (+)= A B, of which A is in shared memory, or in tensor memory from the column of `A` on.
__device__ __forceinline__ void multiply_shared(unsigned sums, u64 A, u64 B, unsigned product, bool adds)
{
    asm volatile("{\n"
                 ".reg .pred adds;\n"
                 "setp.ne.b32 adds, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds;\n"
                 "}\n" ::"r"(sums),
                 "l"(A), "l"(B), "r"(product), "r"((int)adds)
                 : "memory");
}

__device__ __forceinline__ void multiply_tensor(unsigned sums, unsigned A, u64 B, unsigned product, bool adds)
{
    asm volatile("{\n"
                 ".reg .pred adds;\n"
                 "setp.ne.b32 adds, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, adds;\n"
                 "}\n" ::"r"(sums),
                 "r"(A), "l"(B), "r"(product), "r"((int)adds)
                 : "memory");
}

// One arrival at the barrier, once all products that this thread has issued are done.
__device__ __forceinline__ void arrive_behind_products(u64 &barrier)
{
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(shared_address(&barrier))
                 : "memory");
}
