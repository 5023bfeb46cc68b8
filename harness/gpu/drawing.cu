// The twin of harness/model/drawn_tensor.py: element e of a tensor is made of words 2 e and 2 e + 1 of Philox4x64-10.

#if defined(STORED_AS_float16)
#include <cuda_fp16.h>
typedef unsigned short stored;
__device__ stored narrow(float x) { return __half_as_ushort(__float2half_rn(x)); }
#elif defined(STORED_AS_bfloat16)
#include <cuda_bf16.h>
typedef unsigned short stored;
__device__ stored narrow(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
#else
typedef unsigned stored;
__device__ stored narrow(float x) { return __float_as_uint(x); }
#endif
typedef unsigned long long word;

constexpr int ROUNDS = 10;
constexpr word LOW_HALVES = 0x0000FFFF0000FFFF;
constexpr int MEAN = 4 * 0xFFFF;

// Salmon et al. 2011, Philox4x64-10, of a counter below 2^64.
__device__ __forceinline__ void philox(word (&x)[4], word counter, word seed, word number)
{
    x[0] = counter, x[1] = x[2] = x[3] = 0;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const word a = 0xD2E7470EE14C6C93, b = 0xCA5A826395121157;
        const word first = __umul64hi(b, x[2]) ^ x[1] ^ seed, third = __umul64hi(a, x[0]) ^ x[3] ^ number;
        x[1] = b * x[2], x[3] = a * x[0], x[0] = first, x[2] = third;
        seed += 0x9E3779B97F4A7C15, number += 0xBB67AE8584CAA73B;
    }
}

__device__ __forceinline__ stored element(word one, word other, float one_over_deviation)
{
    const word pairs = (one & LOW_HALVES) + (one >> 16 & LOW_HALVES) + (other & LOW_HALVES) + (other >> 16 & LOW_HALVES);
    const int sum = (int)(pairs & 0xFFFFFFFF) + (int)(pairs >> 32);
    return narrow((float)(sum - MEAN) * one_over_deviation);
}

// Two elements of `tensor` for each thread, of `count`.
extern "C" __global__ void draw(stored *tensor, word count, word seed, word number, float one_over_deviation)
{
    const word counter = (word)blockIdx.x * blockDim.x + threadIdx.x;
    word x[4];
    philox(x, counter, seed, number);
    if (2 * counter < count) tensor[2 * counter] = element(x[0], x[1], one_over_deviation);
    if (2 * counter + 1 < count) tensor[2 * counter + 1] = element(x[2], x[3], one_over_deviation);
}

// Adds to `changed` how many elements are not what was drawn, by their bits.
extern "C" __global__ void count_changed(const stored *tensor, int *changed, word count, word seed, word number,
                                         float one_over_deviation)
{
    const word counter = (word)blockIdx.x * blockDim.x + threadIdx.x;
    word x[4];
    philox(x, counter, seed, number);
    int found = 0;
    if (2 * counter < count) found += tensor[2 * counter] != element(x[0], x[1], one_over_deviation);
    if (2 * counter + 1 < count) found += tensor[2 * counter + 1] != element(x[2], x[3], one_over_deviation);
    if (found) atomicAdd(changed, found);
}
