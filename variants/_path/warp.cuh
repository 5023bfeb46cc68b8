// A warp is 32 threads, its lanes. __shfl_xor_sync waits for all of them (0xffffffff: a bit for each), and hands each lane the
// value of the lane whose number differs in one bit: after five exchanges, all lanes have the result of all.

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)  // CuPy's compiler, NVRTC, has no math.h
#endif

__device__ float warp_sum(float x)
{
    for (int bit = 16; bit > 0; bit /= 2) x += __shfl_xor_sync(0xffffffff, x, bit);
    return x;
}

__device__ float warp_max(float x)
{
    for (int bit = 16; bit > 0; bit /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, bit));
    return x;
}
