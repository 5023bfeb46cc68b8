// Products on tensor cores of 16-bit elements, summed in float32: asynchronous copies, and fragments in the layouts of the PTX
// ISA, "Matrix fragments for mma.m16n8k16 with floating point type". sm_80 and later. _features/stored_float16.cuh or
// stored_bfloat16.cuh is put before this text. The Numba twin is numba_mma.py.
//
// Lane t of a warp has, with g = t / 4 and q = t % 4, two neighbouring elements per register:
//   A (16 x 16, row)  a0: row g, columns 2q, 2q+1   a1: row g+8   a2: row g, columns 2q+8, 2q+9   a3: row g+8
//   B (16 x 8, col)   b0: rows 2q, 2q+1, column g   b1: rows 2q+8, 2q+9
//   C (16 x 8)        c0, c1: row g, columns 2q, 2q+1   c2, c3: row g+8          (one float per register)
// So what a product left in C, two neighbouring 8-column tiles of it, is the A of the next product, rounded to 16 bits.

struct __half;  // the type of float16, which is defined only if elements are stored in it
template <class Element> constexpr bool is_float16 = false;
template <> constexpr bool is_float16<__half> = true;
constexpr bool FLOAT16 = is_float16<stored>;  // else bfloat16

constexpr float LN_2 = 0.693147180559945f;

// Shared memory as PTX addresses it: 32-bit byte addresses of its own window.
__device__ __forceinline__ unsigned shared_address(const void *pointer) { return __cvta_generic_to_shared(pointer); }

// --- Asynchronous copies (PTX ISA: cp.async, cp.async.commit_group, cp.async.wait_group) -----------------------------

// BYTES (4, 8 or 16, to which both addresses are aligned) go from global to shared memory; zeros where not `valid`.
// 16 bytes go past L1: nobody else on this multiprocessor reads them.
template <int BYTES>
__device__ __forceinline__ void copy_async(unsigned to, const void *from, bool valid = true)
{
    const int source_bytes = valid ? BYTES : 0;
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(source_bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(source_bytes)
                     : "memory");
    }
}

// The copies that this thread has issued since the last call become one group.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups, the youngest, are under way. Others' copies need a barrier besides.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// --- Shared memory without bank conflicts ----------------------------------------------------------------------------

// A row is a whole number of 128-byte lines of eight 16-byte chunks; ldmatrix reads one chunk of eight adjacent rows at
// once. Chunk c of row r lies where chunk c ^ (r % 8) would, so that these eight lie in different banks.
constexpr int CHUNK_BYTES = 16;
constexpr int CHUNK = CHUNK_BYTES / (int)sizeof(stored);  // elements

template <int ROW_BYTES>
__device__ __forceinline__ unsigned swizzled(int row, int chunk)
{
    static_assert(ROW_BYTES % 128 == 0, "a row is whole lines of all banks");
    return row * ROW_BYTES + (chunk ^ row % 8) * CHUNK_BYTES;
}

// From a swizzled address in chunk 0 or 1 of a row to the one an even number of chunks further: mostly a constant.
__device__ __forceinline__ unsigned chunks_further(unsigned address, int chunks)
{
    return (address ^ chunks % 8 * CHUNK_BYTES) + chunks / 8 * 8 * CHUNK_BYTES;
}

// --- Fragments -------------------------------------------------------------------------------------------------------

// Four 8 x 8 matrices (PTX ISA: ldmatrix). Lane t gives the address of row t % 8 of matrix t / 8, and gets of each
// matrix row t / 4, columns 2 (t % 4) and the next; transposed: column t / 4, rows 2 (t % 4) and the next.
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&x)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// C += A B, 16 x 8 x 16 (PTX ISA: mma.sync.m16n8k16), summed in float32.
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    if constexpr (FLOAT16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// Two floats, rounded to 16 bits, in one register: `low` in the lower half, which is the element at the lower address.
__device__ __forceinline__ unsigned packed(float low, float high)
{
    unsigned both;
    if constexpr (FLOAT16) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    }
    return both;
}

// Both halves of such a register.
__device__ __forceinline__ float2 unpacked(unsigned both)
{
    if constexpr (FLOAT16) {
        float low, high;
        asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(low) : "r"(both));
        asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(high) : "r"(both));
        return make_float2(low, high);
    } else {
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000));
    }
}

// sum + 0 x, both halves: NaN from the first x on that is infinity or NaN.
__device__ __forceinline__ unsigned add_nothing_of(unsigned x, unsigned sum)
{
    if constexpr (FLOAT16) {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
    } else {
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0));
    }
    return sum;
}

// Infinity and NaN have an exponent of ones alone.
constexpr unsigned EXPONENT = FLOAT16 ? 0x7c00 : 0x7f80;

// Whether either half is infinity or NaN.
__device__ __forceinline__ bool not_finite(unsigned both)
{
    return (both & EXPONENT) == EXPONENT || (both >> 16 & EXPONENT) == EXPONENT;
}

// Bit 15 where the low half is infinity or NaN, bit 31 where the high half is; the other bits mean nothing. An exponent of all
// ones carries over.
__device__ __forceinline__ unsigned carry(unsigned both)
{
    return (both & EXPONENT * 0x10001u) + (EXPONENT & -EXPONENT) * 0x10001u;
}

// Both halves, each 0 if it is infinity or NaN.
__device__ __forceinline__ unsigned finite_or_zero(unsigned both)
{
    const unsigned low = (both & EXPONENT) == EXPONENT ? 0 : both & 0xffff;
    const unsigned high = (both >> 16 & EXPONENT) == EXPONENT ? 0 : both & 0xffff0000;
    return high | low;
}

// 2^x, to 2 ulp; 0 for -inf (PTX ISA: ex2.approx.ftz.f32).
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Over the four lanes that share a row of C.
__device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
