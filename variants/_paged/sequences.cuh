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

struct NoWindow;  // as in window.cuh, which kernels without windows need not have
struct SlidingWindow;

// The first key that a row of the block sees, as far as split_attention.cuh asks for it of its `keys`.
template <class Window> struct FirstKey {
    static constexpr int first = 0;
    __device__ __forceinline__ FirstKey(int = 0) {}
    __device__ __forceinline__ int skipped(int) const { return 0; }
    // The first of the tiles from `key` on, so many keys apart, of which a row sees a key.
    __device__ __forceinline__ int first_tile_from(int key, int) const { return key; }
};

template <> struct FirstKey<SlidingWindow> {
    int first;
    __device__ __forceinline__ FirstKey(int first = 0) : first(first) {}
    __device__ __forceinline__ int skipped(int key) const { return first - key; }
    __device__ __forceinline__ int first_tile_from(int key, int apart) const
    {
        while (key + BC <= first) key += apart;
        return key;
    }
};

// Which keys rows g and g + 8 of the lane see, which are these queries. All rows of the block see those that its last query and
// `first_query` see.
template <class Window, class Run>
__device__ __forceinline__ auto seen_by_queries(const Run &run, const int (&query)[2], int first_query, int last_query)
{
    if constexpr (is_same_type<Window, NoWindow>) {
        return EndsOfRows{{run.end(query[0]), run.end(query[1])}, run.end(first_query)};
    } else {
        return RunsOfRows{{run.first(query[0]), run.first(query[1])},
                          {run.end(query[0]), run.end(query[1])},
                          run.first(last_query),
                          run.end(first_query)};
    }
}
