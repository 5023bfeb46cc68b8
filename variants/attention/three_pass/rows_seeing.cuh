// Which rows of a block see a key, for kernels in which a lane moves one column of S or P. _features/limits.cuh is put before
// this text. The Numba twin is numba_rows_seeing.py.

// Counted from the block's first row.
struct Rows {
    int first, end;
    __device__ __forceinline__ bool has(int r) const { return first <= r && r < end; }
};

// In a band, key j lies on row j + q_len - kv_len; rows from `after` before that one to `before` after it see the key.
__device__ __forceinline__ Rows rows_seeing(const Band::Run &run, const RowBlock &block, int key)
{
    const int own_row = key + run.q_len - run.kv_len;
    const int first_row = max(own_row - run.after, 0), end_row = key < run.kv_len ? own_row + run.before + 1 : 0;
    return {first_row - block.first_row, min(end_row - block.first_row, block.rows)};
}

// How many of the block's rows have a limit up to `key`.
__device__ __forceinline__ int rows_up_to(const int *limits, int rows, int key)
{
    int low = 0, high = rows;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (limits[middle] > key) high = middle;
        else low = middle + 1;
    }
    return low;
}

// Under other masks: from the first row whose run ends after the key to the first whose run begins after it.
__device__ __forceinline__ Rows rows_seeing(const Spans::Run &run, const RowBlock &block, int key)
{
    return {rows_up_to(run.end_keys, block.rows, key), rows_up_to(run.first_keys, block.rows, key)};
}
