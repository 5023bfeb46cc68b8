// Sequences of any lengths whose keys are divided among blocks: how a block finds its sequence, and which keys rows see.

// Over the lanes of a warp: the sum of x of this lane and those before it.
__device__ __forceinline__ int lanes_before(int x, int lane)
{
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(0xffffffff, x, distance);
        x += lane >= distance ? other : 0;
    }
    return x;
}

// Rows g and g + 8 of the lane see the keys before `to`; all rows of the block see those before `to_for_all`.
struct EndsOfRows {
    int to[2], to_for_all;
    __device__ __forceinline__ EndsOfRows at(int key) const { return {{to[0] - key, to[1] - key}, to_for_all}; }
    __device__ __forceinline__ bool sees(int i, int k) const { return k < to[i]; }
    __device__ __forceinline__ bool all_see(int, int end) const { return end <= to_for_all; }
};
