// Tiles of rows in shared memory, in 16 bits: brought there by asynchronous copies, taken back as they lie. mma.cuh is put
// before this text.
//
// Compile-time parameters: D (elements per row) and WARPS. Functions that move a tile take the WIDTH of its rows, which is D
// unless given.

constexpr int THREADS = 32 * WARPS;

// Bytes of a row of `width` elements in shared memory: whole lines.
__device__ constexpr int row_bytes(int width) { return (width + 63) / 64 * 128; }
constexpr int ROW_BYTES = row_bytes(D);

// What one thread copies at once: as much as rows of `width` elements keep aligned.
__device__ constexpr int unit_over(int width) { return width % 8 == 0 ? 8 : width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : 1; }
constexpr int UNIT = unit_over(D);
constexpr int UNIT_BYTES = UNIT * (int)sizeof(stored);
constexpr int UNITS = D / UNIT;  // per row

// Where unit e of a run of rows lies in a tile.
template <int WIDTH = D, int UNIT = unit_over(WIDTH)> __device__ __forceinline__ unsigned place(int e)
{
    constexpr int UNITS = WIDTH / UNIT;
    const int element = e % UNITS * UNIT;
    return swizzled<row_bytes(WIDTH)>(e / UNITS, element / CHUNK) + element % CHUNK * (int)sizeof(stored);
}

// `rows` rows of global memory -> a tile of EXTENT rows, zeros below. The rows of a head lie one after the other: the
// block copies them as one run, 32 consecutive units per warp. ANEW: what follows from the thread's index is computed here,
// and takes no register before.
template <int EXTENT, bool ANEW = false, int WIDTH = D>
__device__ __forceinline__ void copy_tile(unsigned char *tile, const stored *source, int rows)
{
    constexpr int UNIT = unit_over(WIDTH), UNITS = WIDTH / UNIT, UNIT_BYTES = UNIT * (int)sizeof(stored);
    int t = threadIdx.x;
    if constexpr (ANEW) asm volatile("" : "+r"(t));
    const stored *const from = source + t * UNIT;
    if (UNIT > 1 && EXTENT * UNITS % THREADS == 0 && rows >= EXTENT) {
        const unsigned to = shared_address(tile) + place<WIDTH>(t);
#pragma unroll
        for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
            // Whole lines of swizzled rows further: a constant.
            const unsigned at = THREADS % (8 * UNITS) == 0 ? to + further / UNITS * row_bytes(WIDTH)
                                                           : shared_address(tile) + place<WIDTH>(t + further);
            copy_async<UNIT_BYTES>(at, from + further * UNIT);
        }
        return;
    }
#pragma unroll 1
    for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
        const int e = t + further;
        if (EXTENT * UNITS % THREADS != 0 && e >= EXTENT * UNITS) break;
        const bool valid = e < rows * UNITS;
        if constexpr (UNIT > 1) {
            copy_async<UNIT_BYTES>(shared_address(tile) + place<WIDTH>(e), source + (valid ? e : 0) * UNIT, valid);
        } else {
            *reinterpret_cast<stored *>(tile + place<WIDTH>(e)) = valid ? from[further] : stored();
        }
    }
}

// Zeros, in so many `bytes` from `tiles` on, a multiple of 16. A barrier has to follow.
__device__ __forceinline__ void clear_tiles(unsigned char *tiles, int bytes)
{
    for (int i = threadIdx.x * 16; i < bytes; i += THREADS * 16) {
        *reinterpret_cast<uint4 *>(tiles + i) = make_uint4(0, 0, 0, 0);
    }
}

// Whether what this thread itself copied into a tile holds NaN or infinity. It copied UNIT elements at once.
template <int EXTENT, int UNIT = UNIT>
__device__ __forceinline__ bool copied_not_finite(const unsigned char *tile)
{
    bool found = false;
#pragma unroll 1
    for (int e = threadIdx.x; e < EXTENT * (D / UNIT); e += THREADS) {
        const unsigned char *unit = tile + place<D, UNIT>(e);
        if constexpr (UNIT > 1) {
#pragma unroll
            for (int i = 0; i < UNIT * (int)sizeof(stored); i += 4) found |= not_finite(*reinterpret_cast<const unsigned *>(unit + i));
        } else {
            found |= not_finite(*reinterpret_cast<const unsigned short *>(unit));
        }
    }
    return found;
}

// What one thread copies at once, UNIT elements, from a tile.
template <int UNIT> __device__ __forceinline__ void store_unit(stored *to, const unsigned char *from)
{
    if constexpr (UNIT == 8) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    if constexpr (UNIT == 4) *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(from);
    if constexpr (UNIT == 2) *reinterpret_cast<unsigned *>(to) = *reinterpret_cast<const unsigned *>(from);
    if constexpr (UNIT == 1) *to = *reinterpret_cast<const stored *>(from);
}

// The first `rows` rows of a tile of EXTENT rows -> global memory, as one run, of which a thread has AT_ONCE units
// under way.
template <int EXTENT, int AT_ONCE = 1, int WIDTH = D>
__device__ __forceinline__ void store_tile(stored *target, const unsigned char *tile, int rows)
{
    constexpr int UNIT = unit_over(WIDTH), UNITS = WIDTH / UNIT;
#pragma unroll AT_ONCE
    for (int further = 0; further < EXTENT * UNITS; further += THREADS) {
        const int e = threadIdx.x + further;
        if (e >= rows * UNITS) break;
        store_unit<UNIT>(target + e * UNIT, tile + place<WIDTH>(e));
    }
}

// The same by one warp, of rows that it has to itself.
template <int EXTENT, int AT_ONCE = 1, int WIDTH = D>
__device__ __forceinline__ void store_rows_of_warp(stored *target, const unsigned char *tile, int rows)
{
    constexpr int UNIT = unit_over(WIDTH), UNITS = WIDTH / UNIT;
#pragma unroll AT_ONCE
    for (int further = 0; further < EXTENT * UNITS; further += 32) {
        const int e = threadIdx.x % 32 + further;
        if (e >= rows * UNITS) break;
        store_unit<UNIT>(target + e * UNIT, tile + place<WIDTH>(e));
    }
}

// This lane's part in loads of fragments, counted from a tile's first row: of A, and of V, which is B transposed; and of
// K, whose rows are the columns of B.
template <int WIDTH = D> __device__ __forceinline__ unsigned lane_in_A()
{
    const int lane = threadIdx.x % 32;
    return swizzled<row_bytes(WIDTH)>(lane % 16, lane / 16);
}

template <int WIDTH = D> __device__ __forceinline__ unsigned lane_in_K()
{
    const int lane = threadIdx.x % 32;
    return swizzled<row_bytes(WIDTH)>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
