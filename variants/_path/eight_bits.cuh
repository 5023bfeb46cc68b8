// Instructions of tensor cores for e4m3, numbers of 8 bits: a sign, 4 bits of exponent and 3 of fraction, up to 448. With
// g = lane / 4 and q = lane % 4, a lane has
//   A, 16 x 32   a[0]: row g, columns 4 q to 4 q + 3; a[1]: row g + 8; a[2] and a[3]: the same, columns 4 q + 16 to 4 q + 19
//   B, 32 x 8    b0: rows 4 q to 4 q + 3 of column g; b1: rows 4 q + 16 to 4 q + 19
//   C, 16 x 8    c[0] and c[1]: row g, columns 2 q and 2 q + 1; c[2] and c[3]: row g + 8
// (PTX ISA: mma.m16n8k32, cvt.)
#include <cuda_fp16.h>

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)  // CuPy's compiler, NVRTC, has no math.h
#endif

// C += A B. `c` has four floats, `a` four registers.
__device__ void multiply_add(float *c, const unsigned *a, unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four floats, rounded to e4m3, in one register; `a` at the lowest address. Beyond 448 they become 448.
__device__ unsigned pack(float a, float b, float c, float d)
{
    unsigned all;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}\n"
        : "=r"(all)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return all;
}

// Two floats, rounded to 16 bits, in one register; `low` at the lower address.
__device__ unsigned pack(float low, float high)
{
    half2 both = __floats2half2_rn(low, high);
    return *(unsigned *)&both;
}

// Largest x of the warp; largest x, and sum of x, of the four lanes that share a row of C.
__device__ float warp_max(float x)
{
    for (int bit = 16; bit > 0; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bit));
    return x;
}

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
