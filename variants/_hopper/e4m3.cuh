// Numbers of e4m3: a sign, 4 bits of exponent, 3 of fraction, up to 448; NaN and no infinity. _mma/mma.cuh is put before
// this text.

// The key at a place of a row of V transposed: of 16 keys, place 4 q + 2 i + c has key 8 i + 2 q + c (q < 4, i < 2,
// c < 2). A product leaves a lane keys 8 i + 2 q + c; as A, `wgmma` wants of it places 4 q + 2 i + c.
__device__ __forceinline__ int key_of_place(int place)
{
    return place & ~15 | (place & 2) << 2 | (place & 12) >> 1 | place & 1;
}

// Four floats, rounded to e4m3, the first one at the lowest address. Infinity becomes 448, NaN stays.
__device__ __forceinline__ unsigned packed_e4m3(float a, float b, float c, float d)
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

// Of four e4m3, the highest bit of each that is NaN.
__device__ __forceinline__ unsigned nans_of_e4m3(unsigned four) { return ((four & 0x7f7f7f7f) + 0x01010101) & 0x80808080; }

// --- Scales ----------------------------------------------------------------------------------------------------------

// The scale of a head is a power of two, the least that brings its largest magnitude to at most 448, e4m3's largest
// number: multiplying by it rounds nothing. It is kept as its exponent.
__device__ __forceinline__ int scale_exponent(float largest)
{
    // 448 is 1.75 x 2^8: significands beyond 1.75 carry.
    return (int)((__float_as_uint(largest) + 0x1fffff) >> 23) - 127 - 8;
}

// 2^n, for -126 <= n <= 127.
__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

// 2^n in two factors, for -250 <= n <= 250: the first, then the second.
__device__ __forceinline__ float2 powers_of_two(int n) { return make_float2(power_of_two(n / 2), power_of_two(n - n / 2)); }
