// Tiles of rows of chunks.cuh that are no run in memory. tiles.cuh is put before this text, and has the same functions for runs.
// Lanes have the same elements of a tile here as there.

template <int EXTENT, typename element>
__device__ __forceinline__ void load_tile(float *tile, const RaggedRows<const element> &source, int rows)
{
#pragma unroll 1
    for (int start = 0; start < EXTENT * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < EXTENT * D) tile[place<D>(e)] = e < rows * D ? widen(*source.at(e)) : 0.0f;
    }
}

template <typename element>
__device__ __forceinline__ void store_tile(const RaggedRows<element> &target, const float *tile, int rows)
{
#pragma unroll 1
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + thread_index();
        if (e < rows * D) narrow(tile[place<D>(e)], target.at(e));
    }
}
