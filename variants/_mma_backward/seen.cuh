// Which rows see the keys of a block. _features/limits.cuh, with mirrored limits as Limits, is put before this text.

using RowsOfKey = Limits::Run;  // first(key), end(key): the rows that see a key

// Rows of queries from `row` to `last_row`, and `keys` keys from `key` on, some of which may lie beyond the last key.
struct Pairs {
    int row, last_row, key, keys;
};

// Rows that see a key, from `first` up to `end`.
struct Rows {
    int first, end;
};

// A band, as rows see keys: mirrored once more.
__device__ __forceinline__ Band::Run keys_of_row(const Band::Run &seeing)
{
    return {seeing.after, seeing.before, seeing.kv_len, seeing.q_len};
}

// Whether each row sees each key: without a branch, for which registers would spill.
__device__ __forceinline__ bool all_see(const Band::Run &seeing, const Pairs &of)
{
    const Band::Run seen = keys_of_row(seeing);
    return (of.key >= seen.first(of.last_row)) & (of.key + of.keys <= seen.end(of.row));
}
__device__ __forceinline__ bool all_see(const Spans::Run &seeing, const Pairs &of)
{
    return (seeing.first(of.key + of.keys - 1) <= of.row) & (of.last_row < seeing.end(of.key));
}

// Whether any row may see a key.
__device__ __forceinline__ bool some_see(const Band::Run &seeing, const Pairs &of)
{
    const Band::Run seen = keys_of_row(seeing);
    return of.key < seen.end(of.last_row) && of.key + of.keys > seen.first(of.row);
}
__device__ __forceinline__ bool some_see(const Spans::Run &seeing, const Pairs &of)
{
    return seeing.first(of.key) <= of.last_row && of.row < seeing.end(of.key + of.keys - 1);
}

// Rows that see key `key` + `further`, counted from `row`: none see what lies beyond the last key.
__device__ __forceinline__ Rows rows_seeing(const Band::Run &seeing, int further, int key, int row)
{
    const Band::Run seen = keys_of_row(seeing);
    const int own = further - (seen.own_key(row) - key);  // the row on which the key lies
    return {own - seen.after, further < seen.kv_len - key ? min(own + seen.before + 1, seen.q_len - row) : 0};
}
__device__ __forceinline__ Rows rows_seeing(const Spans::Run &seeing, int further, int key, int row)
{
    return {seeing.first(key + further) - row, seeing.end(key + further) - row};
}
