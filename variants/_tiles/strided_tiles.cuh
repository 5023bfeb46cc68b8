// Tiles whose rows are not one run in global memory: _features/layout.cuh. tiles.cuh and copies.cuh are put before this text,
// and have the same functions for runs. Lanes have the same elements of a tile here as there. The Numba twin is
// numba_strided_tiles.py.

template <int EXTENT, int WIDTH = D, typename element, int ALIGNED>
__device__ __forceinline__ void load_tile(float *tile, const StridedRows<const element, ALIGNED, WIDTH> &source, int rows)
{
#pragma unroll 1
    for (int start = 0; start < EXTENT * WIDTH; start += AT_ONCE * THREADS) {
        const int e = start + thread_index();
        element x[AT_ONCE];
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) x[c] = e + c * THREADS < rows * WIDTH ? *source.at(e + c * THREADS) : element();
#pragma unroll
        for (int c = 0; c < AT_ONCE; ++c) {
            if (EXTENT * WIDTH % (AT_ONCE * THREADS) == 0 || e + c * THREADS < EXTENT * WIDTH) {
                tile[place<WIDTH>(e, c * THREADS)] = widen(x[c]);
            }
        }
    }
}

template <int WIDTH = D, typename element, int ALIGNED>
__device__ __forceinline__ void store_tile(const StridedRows<element, ALIGNED, WIDTH> &target, const float *tile, int rows)
{
#pragma unroll 1
    for (int start = 0; start < rows * WIDTH; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * WIDTH) narrow(tile[place<WIDTH>(e)], target.at(e));
    }
}

template <int EXTENT, int WIDTH = D, int ALIGNED>
__device__ __forceinline__ void copy_tile(float *tile, const StridedRows<const float, ALIGNED, WIDTH> &source, int rows)
{
    constexpr int STEP = step_over(WIDTH), UNIT = ALIGNED < STEP ? ALIGNED : STEP;
    constexpr int UNITS_AT_ONCE = THREADS * UNIT, BYTES = UNIT * sizeof(float);
#pragma unroll 16
    for (int start = 0; start < EXTENT * WIDTH; start += UNITS_AT_ONCE) {
        const int e = start + thread_index() * UNIT;
        const bool is_in_tile = EXTENT * WIDTH % UNITS_AT_ONCE == 0 || e < EXTENT * WIDTH;
        if (is_in_tile) copy_async<BYTES>(tile + place<WIDTH>(e), source.at(e), e < rows * WIDTH);
    }
}

// What is widened passes through registers, and is there at once.
template <int EXTENT, int WIDTH = D, typename element, int ALIGNED>
__device__ __forceinline__ void copy_tile(float *tile, const StridedRows<const element, ALIGNED, WIDTH> &source, int rows)
{
    load_tile<EXTENT, WIDTH>(tile, source, rows);
}

// Of float32 -> as elements are stored; as in backward.cuh.
template <int ALIGNED>
__device__ __forceinline__ void round_rows(const StridedRows<stored, ALIGNED, D> &rounded, const float *X, int rows)
{
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(X[e], rounded.at(e));
    }
}
