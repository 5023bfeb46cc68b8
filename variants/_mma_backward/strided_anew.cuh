// anew.cuh's copies of tiles whose rows are not one run in global memory. It and strided_tiles.cuh are put before this text. The
// Numba twin is in numba_anew.py.

template <int EXTENT, int ALIGNED, int WIDTH>
__device__ __forceinline__ void copy_tile_anew(unsigned tile, StridedRows<const stored, ALIGNED, WIDTH> source, int rows)
{
    using Units = StridedUnits<ALIGNED, WIDTH>;
#pragma unroll 1
    for (int e = thread_anew(); e < EXTENT * Units::PER_ROW; e += THREADS) {
        const bool valid = Units::row(e) < rows;
        const stored *const from = source.first + (valid ? Units::row(e) : 0) * source.stride + Units::column(e);
        if constexpr (Units::UNIT > 1) {
            copy_async<Units::BYTES>(tile + Units::place(e), from, valid);
        } else {
            const unsigned short bits = valid ? *reinterpret_cast<const unsigned short *>(from) : 0;
            asm volatile("st.shared.b16 [%0], %1;" ::"r"(tile + Units::place(e)), "h"(bits) : "memory");
        }
    }
}
