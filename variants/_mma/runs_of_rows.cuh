// Which keys the rows of a lane see, each a run of keys: what `seen` is to split_attention.cuh.

// Rows g and g + 8 of the lane see the keys from `from` to before `to`; all rows of the block see those from `from_for_all` to
// before `to_for_all`.
struct RunsOfRows {
    int from[2], to[2], from_for_all, to_for_all;
    __device__ __forceinline__ RunsOfRows at(int key) const
    {
        return {{from[0] - key, from[1] - key}, {to[0] - key, to[1] - key}, from_for_all, to_for_all};
    }
    __device__ __forceinline__ bool sees(int i, int k) const { return k >= from[i] && k < to[i]; }
    __device__ __forceinline__ bool all_see(int first, int end) const { return first >= from_for_all && end <= to_for_all; }
};
