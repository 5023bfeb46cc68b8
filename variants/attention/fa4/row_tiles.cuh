// Which tiles of rows a block takes, and which tiles of keys each visits. A block stays on its multiprocessor and takes every
// gridDim.x-th tile of rows. _hopper/limits.cuh and Limits, which the plan chooses, are put before this text.
//
// Compile-time parameters: BR (rows per block, two tiles of 128), BC (keys per tile).

// What does not change during a launch.
struct Problem {
    int q_len, kv_len;
    int heads;  // query heads of all sequences
    int heads_per_kv_head;
    Limits limits;

    __device__ __forceinline__ int row_tiles() const { return (q_len + BR - 1) / BR; }
    __device__ __forceinline__ int tiles() const { return heads * row_tiles(); }
    // The row sees keys 0 to before this one.
    __device__ __forceinline__ int end_key(int row) const
    {
        return Limits::HIDES_LAST ? limits.of_sequence(0, q_len, kv_len).end(row) : kv_len;
    }
};

struct RowTile {
    int head, first_row;
    int key_tiles;  // that the rows visit, from the last one to the first; at least one
    int inspected;  // tiles of keys from this one on are not seen whole by all rows

    __device__ __forceinline__ bool is_inspected(int j) const { return Limits::HIDES_LAST && j >= inspected; }
};

// Tile `index` of all. Under a causal mask the last rows, which see most keys, come first in all heads: short work is left for
// the end, when not all blocks find some.
__device__ __forceinline__ RowTile row_tile(int index, const Problem &p)
{
    RowTile tile;
    int number;
    if constexpr (Limits::HIDES_LAST) {
        tile.head = index % p.heads;
        number = p.row_tiles() - 1 - index / p.heads;
    } else {
        tile.head = index / p.row_tiles();
        number = index % p.row_tiles();
    }
    tile.first_row = number * BR;
    const int last_row = min(tile.first_row + BR, p.q_len) - 1;
    tile.key_tiles = max((p.end_key(last_row) + BC - 1) / BC, 1);
    tile.inspected = p.end_key(tile.first_row) / BC;
    return tile;
}
