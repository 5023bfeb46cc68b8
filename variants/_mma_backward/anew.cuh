// Tiles of rows, in a loop whose registers are for sums: what depends on the thread's index is computed anew in each turn.
// tiles.cuh is put before this text.

// threadIdx.x, read anew: what is computed from it in the loop is not kept in registers around it.
__device__ __forceinline__ int thread_anew()
{
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    __builtin_assume(thread < THREADS);
    return thread;
}

// x, from which the compiler computes nothing ahead of a loop.
__device__ __forceinline__ int anew(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

// copy_tile; `tile` is an address in shared memory.
template <int EXTENT> __device__ __forceinline__ void copy_tile_anew(unsigned tile, const stored *source, int rows)
{
    const int thread = thread_anew();
    // Steps are whole lines of swizzled rows: constants.
    if (UNIT > 1 && EXTENT * UNITS % THREADS == 0 && THREADS % (8 * UNITS) == 0 && rows >= EXTENT) {
        const stored *const from = source + thread * UNIT;
        const unsigned to = tile + place(thread);
#pragma unroll
        for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
            copy_async<UNIT_BYTES>(to + further / UNITS * ROW_BYTES, from + further * UNIT);
        }
        return;
    }
#pragma unroll 1
    for (int e = thread; e < EXTENT * UNITS; e += THREADS) {
        const bool valid = e < rows * UNITS;
        if constexpr (UNIT > 1) {
            copy_async<UNIT_BYTES>(tile + place(e), valid ? source + e * UNIT : source, valid);
        } else {
            const unsigned short bits = valid ? reinterpret_cast<const unsigned short *>(source)[e] : 0;
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(tile + place(e)), "h"(bits) : "memory");
        }
    }
}

// copied_not_finite, with one load for each unit.
template <int EXTENT, int UNIT = UNIT>
__device__ __forceinline__ bool copied_not_finite_anew(const unsigned char *tile)
{
    bool found = false;
#pragma unroll 1
    for (int e = thread_anew(); e < EXTENT * (D / UNIT); e += THREADS) {
        const unsigned char *const unit = tile + place<D, UNIT>(e);
        uint4 words = make_uint4(0, 0, 0, 0);
        if constexpr (UNIT == 8) words = *reinterpret_cast<const uint4 *>(unit);
        if constexpr (UNIT == 4) {
            const uint2 two = *reinterpret_cast<const uint2 *>(unit);
            words.x = two.x, words.y = two.y;
        }
        if constexpr (UNIT == 2) words.x = *reinterpret_cast<const unsigned *>(unit);
        if constexpr (UNIT == 1) words.x = *reinterpret_cast<const unsigned short *>(unit);
        found |= not_finite(words.x) || not_finite(words.y) || not_finite(words.z) || not_finite(words.w);
    }
    return found;
}

// A lane's part in loads of fragments, see lane_in_A and lane_in_K.
template <int BYTES = ROW_BYTES> __device__ __forceinline__ unsigned in_A(int lane)
{
    return swizzled<BYTES>(lane % 16, lane / 16);
}
__device__ __forceinline__ unsigned in_K(int lane) { return swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2); }
