// Arithmetic on pairs of floats (PTX ISA: add, mul and fma .f32x2, sm_100), and powers of two of which a share comes from a
// polynomial: multipliers and special functions are then busy at once. _mma/mma.cuh is put before this text.

typedef float2 Pair;

__device__ __forceinline__ Pair both(float x) { return {x, x}; }

__device__ __forceinline__ Pair multiply_add(Pair a, Pair b, Pair c)
{
    Pair d;
    asm("{.reg .b64 a, b, c, d;\n"
        "mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5}; mov.b64 c, {%6, %7};\n"
        "fma.rn.f32x2 d, a, b, c;\n"
        "mov.b64 {%0, %1}, d;}\n"
        : "=f"(d.x), "=f"(d.y)
        : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y), "f"(c.x), "f"(c.y));
    return d;
}

__device__ __forceinline__ Pair multiply(Pair a, Pair b)
{
    Pair d;
    asm("{.reg .b64 a, b, d;\n"
        "mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5};\n"
        "mul.rn.f32x2 d, a, b;\n"
        "mov.b64 {%0, %1}, d;}\n"
        : "=f"(d.x), "=f"(d.y)
        : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y));
    return d;
}

// a + b, or rounded down.
__device__ __forceinline__ Pair add(Pair a, Pair b)
{
    Pair d;
    asm("{.reg .b64 a, b, d;\n"
        "mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5};\n"
        "add.rn.f32x2 d, a, b;\n"
        "mov.b64 {%0, %1}, d;}\n"
        : "=f"(d.x), "=f"(d.y)
        : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y));
    return d;
}

__device__ __forceinline__ Pair add_down(Pair a, Pair b)
{
    Pair d;
    asm("{.reg .b64 a, b, d;\n"
        "mov.b64 a, {%2, %3}; mov.b64 b, {%4, %5};\n"
        "add.rm.f32x2 d, a, b;\n"
        "mov.b64 {%0, %1}, d;}\n"
        : "=f"(d.x), "=f"(d.y)
        : "f"(a.x), "f"(a.y), "f"(b.x), "f"(b.y));
    return d;
}

// The larger one, NaN if one of them is NaN.
__device__ __forceinline__ float maximum_or_nan(float x, float y)
{
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}

// p(f) = 2^f (1 + error) for 0 <= f < 1, |error| < 2^-13.5: of the cubics that are 1 at 0, so that a maximum has weight 1, the one
// whose largest relative error is least (Remez).
constexpr float CUBIC[4] = {1.0f, 0.69511676f, 0.22764499f, 0.07706704f};

// Powers of two of x < 128 (Cody and Waite 1980): x = n + f, 0 <= f < 1, and 2^x = p(f) 2^n. 0 below 2^-126.
__device__ __forceinline__ Pair exp2_cubic(Pair x)
{
    // Adding 1.5 2^23 leaves an integer. The further 127 is the bias of exponents: the lowest 8 bits are those of 2^n.
    constexpr float WHOLE = 12582912.0f + 127.0f;
    x = {maximum_or_nan(x.x, -127.0f), maximum_or_nan(x.y, -127.0f)};
    const Pair biased = add_down(x, both(WHOLE));
    const Pair n = add(biased, both(-WHOLE));
    const Pair f = multiply_add(n, both(-1.0f), x);
    const Pair p = multiply_add(multiply_add(multiply_add(both(CUBIC[3]), f, both(CUBIC[2])), f, both(CUBIC[1])), f,
                                both(CUBIC[0]));
    return multiply(p, {__int_as_float(__float_as_int(biased.x) << 23), __int_as_float(__float_as_int(biased.y) << 23)});
}

__device__ __forceinline__ Pair exp2_of(Pair x) { return {exp2_approx(x.x), exp2_approx(x.y)}; }
