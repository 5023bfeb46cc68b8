// Which rows see some key of a tile, for a kernel that goes from tile to tile of keys and visits blocks of BR rows.
// _features/limits.cuh is put before this text. The Numba twin is numba_rows_seeing.py.

struct Rows {
    int first, end;
};

// In a band, key j lies on row j + q_len - kv_len; rows from `after` before that one to `before` after it see the key.
__device__ __forceinline__ Rows rows_seeing(const Band::Run &run, int first_key, int keys, int q_len, const Rows &)
{
    const int own_row = first_key + q_len - run.kv_len;
    return {max(own_row - run.after, 0), min(own_row + keys + run.before, q_len)};
}

// Under other masks the blocks that see the tile are found one by one. None of them is before the first that sees the tile
// before this one, `so_far`.
__device__ __forceinline__ Rows rows_seeing(const Spans::RunInMemory &run, int first_key, int keys, int q_len, const Rows &so_far)
{
    int first = so_far.first;
    while (first < q_len && run.end(min(first + BR, q_len) - 1) <= first_key) first += BR;
    int end = first;
    while (end < q_len && run.first(end) < first_key + keys) end += BR;
    return {first, end};
}
