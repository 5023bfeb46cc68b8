// Limits: which keys a row of queries sees, if these are a run of keys. The plan chooses one of the two types below as
// `Limits`, and each kernel has a parameter of that type. The Numba twin is numba_limits.py.
//
//     const auto seen = limits.of_block<BR>(block, q_len, kv_len);    // called by all threads of the block
//     seen.run.first(row), seen.run.end(row)                          // the row sees keys first to end - 1
//
// Neither first nor end decreases from a row to the next.
//
// Kernels in which a block owns keys ask the same in the other direction: which rows see a key. The plan then passes the
// mirrored limits, and the kernel exchanges the roles of rows and keys, of q_len and kv_len.

// A block of consecutive rows of one head of one batch entry.
struct RowBlock {
    int batch, head;
    int number, blocks;   // which of the head's blocks, and how many it has
    int first_row, rows;  // fewer in the last block
    __device__ __forceinline__ int last_row() const { return first_row + rows - 1; }
};

// What the rows of a block see together, and the run of each.
template <class Run> struct BlockLimits {
    Run run;
    int first_key, end_key;        // some row sees a key: only keys first_key to end_key - 1
    int first_by_all, end_by_all;  // all rows see keys first_by_all to end_by_all - 1
};

template <class Run>
__device__ __forceinline__ BlockLimits<Run> block_limits(const Run &run, int first_row, int last_row)
{
    return {run, run.first(first_row), run.end(last_row), run.first(last_row), run.end(first_row)};
}

// No mask, a causal mask, a sliding window. Row i is aligned with key i + kv_len - q_len (bottom right) and sees the keys
// from `before` before that one to `after` after it.
struct Band {
    int before, after;

    struct Run {
        int before, after, q_len, kv_len;
        __device__ __forceinline__ int own_key(int row) const { return row + kv_len - q_len; }
        // Not clipped to the sequence: those of rows a constant distance apart take one register.
        __device__ __forceinline__ int unclipped_first(int row) const { return own_key(row) - before; }
        __device__ __forceinline__ int unclipped_end(int row) const { return own_key(row) + after + 1; }
        __device__ __forceinline__ int first(int row) const { return max(unclipped_first(row), 0); }
        __device__ __forceinline__ int end(int row) const { return min(max(unclipped_end(row), 0), kv_len); }
    };

    __device__ __forceinline__ Run of_sequence(int /*batch*/, int q_len, int kv_len) const
    {
        return {before, after, q_len, kv_len};
    }
    template <int ROWS>
    __device__ __forceinline__ BlockLimits<Run> of_block(const RowBlock &block, int q_len, int kv_len) const
    {
        return block_limits(of_sequence(block.batch, q_len, kv_len), block.first_row, block.last_row());
    }
};

// Packed documents, a prefix, and what else is no band: two arrays of (batch, q_len) hold the run of each row. A block loads
// those of its rows into shared memory once.
struct Spans {
    const int *first_keys, *end_keys;

    struct Run {
        const int *first_keys, *end_keys;  // of `first_row` and the rows after it
        int first_row;
        __device__ __forceinline__ int first(int row) const { return first_keys[row - first_row]; }
        __device__ __forceinline__ int end(int row) const { return end_keys[row - first_row]; }
        __device__ __forceinline__ int unclipped_first(int row) const { return first(row); }
        __device__ __forceinline__ int unclipped_end(int row) const { return end(row); }
    };

    // Of a sequence, in global memory.
    struct RunInMemory {
        const int *first_keys, *end_keys;
        __device__ __forceinline__ int first(int row) const { return __ldg(first_keys + row); }
        __device__ __forceinline__ int end(int row) const { return __ldg(end_keys + row); }
    };

    __device__ __forceinline__ RunInMemory of_sequence(int batch, int q_len, int /*kv_len*/) const
    {
        return {first_keys + (size_t)batch * q_len, end_keys + (size_t)batch * q_len};
    }
    // A tile of ROWS rows may have room for more rows than the block has: these have the empty run from kv_len to kv_len.
    template <int ROWS>
    __device__ __forceinline__ BlockLimits<Run> of_block(const RowBlock &block, int q_len, int kv_len) const
    {
        constexpr int ROOM = (ROWS + 15) / 16 * 16;
        __shared__ int first_kept[ROOM], end_kept[ROOM];
        const int t = threadIdx.y * blockDim.x + threadIdx.x;
        const size_t first = (size_t)block.batch * q_len + block.first_row;
        if (t < ROOM) {
            first_kept[t] = t < block.rows ? __ldg(first_keys + first + t) : kv_len;
            end_kept[t] = t < block.rows ? __ldg(end_keys + first + t) : kv_len;
        }
        __syncthreads();
        const Run run = {first_kept, end_kept, block.first_row};
        return block_limits(run, block.first_row, block.last_row());
    }
};
