// Tiles that are brought on chip ahead of their use, while others are multiplied. tiles.cuh is put before this text. The
// Numba twin is numba_copies.py.

// BYTES (4, 8 or 16, to which both addresses are aligned) go from global to shared memory; zeros where not `valid`. The
// copy is asynchronous (PTX ISA: cp.async). Copies of 16 bytes bypass L1, since no other block reads the same soon.
template <int BYTES>
__device__ __forceinline__ void copy_async(float *target, const float *source, bool valid)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(target);
    const int source_bytes = valid ? BYTES : 0;
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(source_bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(source), "n"(BYTES), "r"(source_bytes)
                     : "memory");
    }
}

// Waits for this thread's own copies. Those of other threads need a barrier as well.
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// `rows` rows of global memory -> a tile of EXTENT rows; zeros below. The rows of a head lie one after the other: the block
// copies them as one run, STEP elements of a row per thread and copy.
template <int EXTENT, int WIDTH = D>
__device__ __forceinline__ void copy_tile(float *tile, const float *source, int rows)
{
    constexpr int STEP = step_over(WIDTH), AT_ONCE = THREADS * STEP, BYTES = STEP * sizeof(float);
#pragma unroll 16
    for (int start = 0; start < EXTENT * WIDTH; start += AT_ONCE) {
        const int own = thread_index() * STEP, e = start + own;
        // Whole rows further: without a division.
        const int to = AT_ONCE % WIDTH == 0 ? place<WIDTH>(own) + place<WIDTH>(start) : place<WIDTH>(e);
        if (EXTENT * WIDTH % AT_ONCE == 0 || e < EXTENT * WIDTH) copy_async<BYTES>(tile + to, source + e, e < rows * WIDTH);
    }
}

// What is widened passes through registers, and is there at once.
template <int EXTENT, int WIDTH = D, typename element>
__device__ __forceinline__ void copy_tile(float *tile, const element *source, int rows)
{
    load_tile<EXTENT, WIDTH>(tile, source, rows);
}
