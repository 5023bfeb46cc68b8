// RowOrder: which of a head's blocks of rows starts first, second and so on. The plan chooses one of the two types below as
// `RowOrder`.
//
//     const int i_block = row_order.block(blockIdx.y, gridDim.y, batch, head);

// The last rows first, which see most keys under a causal mask.
struct LastFirst {
    __device__ __forceinline__ int block(int started, int count, int, int) const { return count - 1 - started; }
};

// Those that visit most tiles first, as longest_first.cu ranked them.
struct LongestFirst {
    const int *order;
    int lists_per_sequence, lists_per_head;  // 0 where all have the same

    __device__ __forceinline__ int block(int started, int count, int batch, int head) const
    {
        return __ldg(order + (size_t)(batch * lists_per_sequence + head * lists_per_head) * count + started);
    }
};
