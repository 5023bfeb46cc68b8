// Warps of a thread block and lanes of a warp. tiles.cuh is put before this text.

constexpr int WARPS = THREADS / 32;
__device__ __forceinline__ int warp_index() { return thread_index() / 32; }
__device__ __forceinline__ int lane_index() { return thread_index() % 32; }
