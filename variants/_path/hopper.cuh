// Hopper's instructions: copies of whole tiles (TMA), barriers that count arrivals and bytes (mbarrier), and products of four
// warps that read their factors from shared memory (wgmma). (PTX ISA: cp.async.bulk.tensor, mbarrier, wgmma.mma_async.)
#include <cuda_fp16.h>

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)  // CuPy's compiler, NVRTC, has no math.h
#endif
typedef unsigned long long u64;

// Describes an array to the copies: its shape, its strides, the size of a tile, and how a tile is swizzled.
struct __align__(64) TensorMap {
    u64 words[16];
};

// Byte address in shared memory, as these instructions take it.
__device__ unsigned address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// --- Barriers. A phase ends when `count` threads have arrived and all expected bytes have been copied; the next one begins.

__device__ void init_barrier(u64 *barrier, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count) : "memory");
}

// By the thread that has initialised the barriers: copies may use them after the next __syncthreads().
__device__ void publish_barriers()
{
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ void arrive(u64 *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}

// Arrive, and let the phase last until so many bytes have been copied.
__device__ void arrive_and_expect(u64 *barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(barrier)), "r"(bytes) : "memory");
}

// Until the phase of this parity has ended. Phases have parity 0, 1, 0, ...; the one before the first has ended, with parity 1.
__device__ void wait(u64 *barrier, int parity)
{
    asm volatile("{\n"
                 ".reg .pred ended;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
                 "@!ended bra again;\n"
                 "}\n" ::"r"(address(barrier)), "r"(parity)
                 : "memory");
}

// --- Copies. One thread begins to copy a tile, from row `row` of the array on; zeros beyond its last row. The barrier counts
// the bytes as they arrive.

__device__ void copy_tile(half *tile, const TensorMap &map, int row, u64 *barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {0, %2}], [%3];" ::"r"(
                     address(tile)),
                 "l"(&map), "r"(row), "r"(address(barrier))
                 : "memory");
}

// --- Products of 64 x 16 times 16 x 32 elements, by the 128 threads of four warps together. Warp w has rows 16 w to 16 w + 15
// of the sums, in the layout of mma's C: [4 i + 2 h] and the next are columns 8 i + lane % 4 * 2 and the next of row
// lane / 4 + 8 h.

// A tile whose rows have 64 bytes and are swizzled: its address, eight rows take 512 bytes, and the pattern.
__device__ u64 describe(const half *tile) { return (address(tile) & 0x3ffff) >> 4 | 512ull / 16 << 32 | 2ull << 62; }

#define SUMS "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}"
#define FOUR(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define SIXTEEN(x) FOUR(x, 0), FOUR(x, 4), FOUR(x, 8), FOUR(x, 12)

// S += A B, where both factors are tiles in shared memory, and 16 elements of each row are multiplied.
__device__ void multiply_add(float (&s)[16], u64 a, u64 b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 " SUMS ", %16, %17, 1, 1, 1, 0, 0;"
                 : SIXTEEN(s)
                 : "l"(a), "l"(b));
}

// O += A B, where A is in registers, and B is 16 rows of a tile in shared memory.
__device__ void multiply_add(float (&o)[16], const unsigned *a, u64 b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 " SUMS ", {%16, %17, %18, %19}, %20, 1, 1, 1, 1;"
                 : SIXTEEN(o)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Before the first product: the registers that it reads and adds to are written.
__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Until all products have been added to `sums`.
__device__ void wait_for_products(float (&sums)[16])
{
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" : SIXTEEN(sums)::"memory");
}

// Two floats, rounded to 16 bits, in one register; `low` at the lower address.
__device__ unsigned pack(float low, float high)
{
    half2 both = __floats2half2_rn(low, high);
    return *(unsigned *)&both;
}

// Largest x, and sum of x, of the four lanes that share a row of the sums.
__device__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
