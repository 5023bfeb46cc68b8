// Tiles whose rows are not one run in global memory: _features/layout.cuh. tiles.cuh is put before this text, and has the same
// functions for runs. Lanes have the same elements of a tile here as there, or fewer at once where rows are aligned to fewer.
// The Numba twin is numba_strided_tiles.py.

// How rows of WIDTH elements that begin at multiples of ALIGNED elements are copied.
template <int ALIGNED, int WIDTH> struct StridedUnits {
    static constexpr int UNIT = ALIGNED < unit_over(WIDTH) ? ALIGNED : unit_over(WIDTH);
    static constexpr int BYTES = UNIT * (int)sizeof(stored), PER_ROW = WIDTH / UNIT;
    static __device__ __forceinline__ int row(int e) { return e / PER_ROW; }
    static __device__ __forceinline__ int column(int e) { return e % PER_ROW * UNIT; }
    static __device__ __forceinline__ unsigned place(int e) { return ::place<WIDTH, UNIT>(e); }
};

template <int EXTENT, bool ANEW = false, int WIDTH = D, int ALIGNED>
__device__ __forceinline__ void copy_tile(unsigned char *tile, StridedRows<const stored, ALIGNED, WIDTH> source, int rows)
{
    using Units = StridedUnits<ALIGNED, WIDTH>;
#pragma unroll 1
    for (int e = threadIdx.x; e < EXTENT * Units::PER_ROW; e += THREADS) {
        const bool valid = Units::row(e) < rows;
        const stored *const from = source.first + (valid ? Units::row(e) : 0) * source.stride + Units::column(e);
        if constexpr (Units::UNIT > 1) {
            copy_async<Units::BYTES>(shared_address(tile) + Units::place(e), from, valid);
        } else {
            *reinterpret_cast<stored *>(tile + Units::place(e)) = valid ? *from : stored();
        }
    }
}

// By LANES threads, of which this one is number `t`.
template <int LANES, int EXTENT, int ALIGNED, int WIDTH>
__device__ __forceinline__ void store_strided(StridedRows<stored, ALIGNED, WIDTH> target, const unsigned char *tile, int rows, int t)
{
    using Units = StridedUnits<ALIGNED, WIDTH>;
#pragma unroll 1
    for (int e = t; e < EXTENT * Units::PER_ROW; e += LANES) {
        if (Units::row(e) >= rows) break;
        stored *const to = target.first + Units::row(e) * target.stride + Units::column(e);
        const unsigned char *const from = tile + Units::place(e);
        if constexpr (Units::UNIT == 8) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        if constexpr (Units::UNIT == 4) *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(from);
        if constexpr (Units::UNIT == 2) *reinterpret_cast<unsigned *>(to) = *reinterpret_cast<const unsigned *>(from);
        if constexpr (Units::UNIT == 1) *to = *reinterpret_cast<const stored *>(from);
    }
}

template <int EXTENT, int AT_ONCE = 1, int WIDTH = D, int ALIGNED>
__device__ __forceinline__ void store_tile(StridedRows<stored, ALIGNED, WIDTH> target, const unsigned char *tile, int rows)
{
    store_strided<THREADS, EXTENT>(target, tile, rows, threadIdx.x);
}

template <int EXTENT, int AT_ONCE = 1, int WIDTH = D, int ALIGNED>
__device__ __forceinline__ void store_rows_of_warp(StridedRows<stored, ALIGNED, WIDTH> target, const unsigned char *tile, int rows)
{
    store_strided<32, EXTENT>(target, tile, rows, threadIdx.x % 32);
}
