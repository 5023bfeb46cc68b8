// Tiles whose rows are not one run in global memory: _features/layout.cuh. tiles.cuh and copies.cuh are put before this text,
// and have the same functions for runs. Lanes have the same elements of a tile here as there. The Numba twin is
// numba_strided_tiles.py.

template <int EXTENT, typename element, int ALIGNED>
__device__ __forceinline__ void load_tile(float *tile, const StridedRows<const element, ALIGNED> &source, int rows)
{
#pragma unroll 1
    for (int start = 0; start < EXTENT * D; start += AT_ONCE * THREADS) {
        const int e = start + thread_index();
        element x[AT_ONCE];
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) x[c] = e + c * THREADS < rows * D ? *source.at(e + c * THREADS) : element();
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) {
            if (EXTENT * D % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * D) {
                tile[place(e, c * THREADS)] = widen(x[c]);
            }
        }
    }
}

template <typename element, int ALIGNED>
__device__ __forceinline__ void store_tile(const StridedRows<element, ALIGNED> &target, const float *tile, int rows)
{
#pragma unroll 1
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(tile[place(e)], target.at(e));
    }
}

template <int EXTENT, int ALIGNED>
__device__ __forceinline__ void copy_tile(float *tile, const StridedRows<const float, ALIGNED> &source, int rows)
{
    constexpr int UNIT = ALIGNED < STEP ? ALIGNED : STEP, UNITS_AT_ONCE = THREADS * UNIT, BYTES = UNIT * sizeof(float);
#pragma unroll 16
    for (int start = 0; start < EXTENT * D; start += UNITS_AT_ONCE) {
        const int e = start + thread_index() * UNIT;
        const bool is_in_tile = EXTENT * D % UNITS_AT_ONCE == 0 || e < EXTENT * D;
        if (is_in_tile) copy_async<BYTES>(tile + place(e), source.at(e), e < rows * D);
    }
}

// What is widened passes through registers, and is there at once.
template <int EXTENT, typename element, int ALIGNED>
__device__ __forceinline__ void copy_tile(float *tile, const StridedRows<const element, ALIGNED> &source, int rows)
{
    load_tile<EXTENT>(tile, source, rows);
}
