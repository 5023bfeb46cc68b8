// Layouts: where tensor maps have a head. The plan chooses one of the types below as `Layout`, together with the maps.
// hopper.cuh is put before this text.

// Tensors are (batch, heads, rows, D), C-contiguous: one axis of a map has the heads of all sequences.
struct DenseLayout {
    // Of the heads of a tile of rows, and of that of its keys.
    template <class Tile> static __device__ __forceinline__ int place(const Tile &tile) { return tile.number(); }
    template <class Tile, class Packs> static __device__ __forceinline__ int kv_place(const Tile &tile, const Packs &packs)
    {
        return tile.kv_number(packs);
    }
};

// Rows have any strides: sequences are an axis of their own.
struct StridedLayout {
    template <class Tile> static __device__ __forceinline__ HeadOfSequence place(const Tile &tile)
    {
        return {tile.rows.head, (int)tile.own.batch};
    }
    template <class Tile, class Packs>
    static __device__ __forceinline__ HeadOfSequence kv_place(const Tile &tile, const Packs &packs)
    {
        return {tile.rows.head / packs.per_kv_head, (int)tile.own.batch};
    }
};
