// Which rows see the keys of a block, and which tiles of rows it visits. _features/limits.cuh, with mirrored limits as
// Limits, and shares.cuh are put before this text.

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

// --- Visits -----------------------------------------------------------------------------------------------------------

// One turn of a block's loop: it scores a tile of rows of one of the query heads that share the block's keys. What one turn
// scores is summed LAG turns later.
struct Turn {
    int number, head, first_row;
    __device__ __forceinline__ int stage() const { return number % STAGES; }
};

// All tiles of rows with one that sees a key of the block, of all heads that share the keys. The numbers are in shared memory,
// read anew each time: sums want the registers.
struct Turns {
    const volatile int *numbers;
    __device__ __forceinline__ int count() const { return numbers[0]; }  // with those in which it only sums
    __device__ __forceinline__ int first_row() const { return numbers[1]; }
    __device__ __forceinline__ int end_row() const { return numbers[2]; }

    // By one thread. Rows first to end - 1 see the block's keys.
    static __device__ __forceinline__ void note(int *numbers, int first, int end, int heads)
    {
        const int tile = first / BR, tiles = first < end ? (end + BR - 1) / BR - tile : 0;
        numbers[0] = tiles > 0 ? heads * tiles + LAG : 0;
        numbers[1] = tile * BR;
        numbers[2] = (tile + tiles) * BR;
    }

    __device__ __forceinline__ Turn first() const { return {0, 0, first_row()}; }
    __device__ __forceinline__ bool scores(const Turn &turn) const { return turn.number < count() - LAG; }
    __device__ __forceinline__ Turn after(const Turn &turn) const
    {
        const bool is_last = turn.first_row + BR == end_row();
        return {turn.number + 1, turn.head + is_last, is_last ? first_row() : turn.first_row + BR};
    }
    __device__ __forceinline__ Turn before(const Turn &turn) const
    {
        const bool is_first = turn.first_row == first_row();
        return {turn.number - 1, turn.head - is_first, (is_first ? end_row() : turn.first_row) - BR};
    }
};
