// Sequences of _features/sequences.cuh, with what kernels that split keys need besides.
//
// Results of a split lie one sequence after the other, of each its rows counted through its heads: those of a block are one
// run.

// A row whose splits are put together: `query` of its sequence, if own.has_rows().
template <class Own> struct CombinedRow {
    Own own;
    int query;
    int head;
    size_t number;       // among the rows of lse
    size_t stat, stats;  // among the results of a split, and how many these are
};

// The grid's z is the batch of the first kernel; in the second, rows are counted through it.
struct SplitOneLength : OneLength {
    __device__ __forceinline__ int longest(int q_len) const { return q_len; }
    __device__ __forceinline__ unsigned entries() const { return gridDim.z; }
    __device__ __forceinline__ CombinedRow<Own> combined_row(int q_len, int kv_len, int heads) const
    {
        const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
        const size_t rows = (size_t)gridDim.x * blockDim.y;
        const int query = row % q_len, head = row / q_len % heads, batch = row / ((unsigned)heads * (unsigned)q_len);
        return {at(batch, query, q_len, kv_len), query, head, row, row, rows};
    }
};

// The grid's z is the sequence, and has blocks for the longest one. q_len is that of all sequences together.
struct SplitVarlen : Varlen {
    int most_rows;  // of a sequence

    __device__ __forceinline__ int longest(int) const { return most_rows; }
    __device__ __forceinline__ unsigned entries() const { return 1; }
    __device__ __forceinline__ CombinedRow<Own> combined_row(int q_len, int kv_len, int heads) const
    {
        const unsigned row = blockIdx.x * blockDim.y + threadIdx.y;
        const Own own = at(blockIdx.z, row / heads, q_len, kv_len);
        const unsigned own_len = max(own.q_len, 1);
        const int query = row % own_len, head = row / own_len;
        const size_t number = (size_t)head * q_len + own.row(query), stat = (size_t)own.row(0) * heads + row;
        return {own, query, head, number, stat, (size_t)heads * q_len};
    }
};
