// Instructions of tensor cores, which multiply small matrices of 16-bit elements and sum in float32. All 32 lanes of a warp
// execute them together; each holds a part of every matrix. With g = lane / 4 and q = lane % 4, a lane has
//   A, 16 x 16   a[0]: row g, columns 2 q and 2 q + 1; a[1]: row g + 8; a[2] and a[3]: the same, columns 2 q + 8 and 2 q + 9
//   B, 16 x 8    b0: rows 2 q and 2 q + 1 of column g; b1: rows 2 q + 8 and 2 q + 9
//   C, 16 x 8    c[0] and c[1]: row g, columns 2 q and 2 q + 1; c[2] and c[3]: row g + 8
// (PTX ISA: ldmatrix, mma.m16n8k16.)
#include <cuda_fp16.h>

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)  // CuPy's compiler, NVRTC, has no math.h
#endif

// Byte address in shared memory, as these instructions take it.
__device__ unsigned address(const void *pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// Four matrices of 8 x 8 elements from shared memory. Lane t gives the address of row t % 8 of matrix t / 8. It gets of each
// matrix columns 2 q and 2 q + 1 of row g in one register.
__device__ void load_matrices(unsigned (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address(row))
                 : "memory");
}

// The same, transposed: rows 2 q and 2 q + 1 of column g.
__device__ void load_transposed(unsigned (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address(row))
                 : "memory");
}

// C += A B. `c` has four floats, `a` four registers.
__device__ void multiply_add(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, rounded to 16 bits, in one register; `low` at the lower address.
__device__ unsigned pack(float low, float high)
{
    half2 both = __floats2half2_rn(low, high);
    return *(unsigned *)&both;
}

// Largest x, and sum of x, of the four lanes that share a row of C.
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
