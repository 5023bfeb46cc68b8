// Tiles of rows: in which order blocks take them, and which tiles of keys each visits. A block stays on its multiprocessor and
// takes one tile of rows after the other. key_tiles.cuh is put before this text.

// Heads that share K and V are packed, as many as the plan chooses: a warpgroup has 1 << head_shift rows of each, one head
// after the other. A pack is those heads. Its tile of rows is as many rows of each as all consumers have.
struct Packs {
    int count;  // in all sequences
    int per_kv_head, per_sequence;
    int head_shift;
    int row_tiles;  // of each pack
    int at_once;    // packs whose K and V stay in L2 together

    __device__ __forceinline__ int tiles() const { return count * row_tiles; }
    __device__ __forceinline__ int kv_heads() const { return per_sequence / per_kv_head; }  // of a sequence
    __device__ __forceinline__ int head_rows() const { return CONSUMERS << head_shift; }
    // Packs of one head, known to the compiler.
    __device__ __forceinline__ Packs of_one() const { return {count, per_kv_head, per_sequence, 6, row_tiles, at_once}; }
};

// What does not change during a launch.
struct Problem {
    int q_len, kv_len;
    Packs packs;
    Limits limits;
    TileOrder order;
    Sequences sequences;
};

struct RowTile {
    int pack;
    RowBlock rows;  // of each head of the pack
    Sequences::Own own;
    KeyTiles<TileOrder> keys;

    __device__ __forceinline__ bool sees_some_key() const { return keys.first < keys.end; }
    // Of the pack among those of all batch entries.
    __device__ __forceinline__ int number() const { return own.number(pack, rows.head); }
    // The head of its sequence that row `mine` of a warpgroup's 64 is of.
    __device__ __forceinline__ int head(int mine, const Problem &p) const
    {
        return (rows.head << 6 - p.packs.head_shift) + (mine >> p.packs.head_shift);
    }
};

// Which tile of rows, of which pack.
struct RowPlace {
    int pack, row_tile, sequence, first_row;
};

// Tile `index` of all. Where the last keys are hidden from some rows, the rows that may see most keys, the last ones, come
// first, of as many packs at once as have K and V in L2: short work is left for the end, when not all blocks find some. Packs
// that are left over come first, when longer work follows.
__device__ __forceinline__ RowPlace row_place(int index, const Problem &p)
{
    int pack, row_tile;
    if constexpr (Limits::HIDES_LAST) {
        const int from_end = p.packs.tiles() - 1 - index;
        const int packs_after = from_end / (p.packs.at_once * p.packs.row_tiles) * p.packs.at_once;
        const int packs = min(p.packs.at_once, p.packs.count - packs_after);
        const int inside = from_end - packs_after * p.packs.row_tiles;
        pack = p.packs.count - 1 - packs_after - inside % packs;
        row_tile = inside / packs;
    } else {
        pack = index / p.packs.row_tiles;
        row_tile = index % p.packs.row_tiles;
    }
    return {pack, row_tile, pack / p.packs.per_sequence, row_tile * p.packs.head_rows()};
}

__device__ __forceinline__ RowTile row_tile(int index, const Problem &p)
{
    const RowPlace at = row_place(index, p);
    const auto own = p.sequences.at(at.sequence, at.first_row, p.q_len, p.kv_len);
    const RowBlock rows = {at.sequence,  at.pack % p.packs.per_sequence, at.row_tile, p.packs.row_tiles,
                           at.first_row, min(at.first_row + p.packs.head_rows(), own.q_len) - at.first_row};
    const auto run = p.limits.of_sequence(at.sequence, own.q_len, own.kv_len);
    return {at.pack, rows, own, KeyTiles<TileOrder>::of(p.order, rows, run, own.q_len, own.kv_len)};
}

// The tiles of keys that all rows of a tile see all of: from `from` to before `to`.
struct WholeTiles {
    int from, to;
    __device__ __forceinline__ bool has(int index) const { return !Limits::HIDES_LAST || (index >= from && index < to); }
    __device__ __forceinline__ bool has(const KeyTiles<TileOrder>::Tile &tile) const
    {
        return !tile.is_mixed() && has(tile.index());
    }
};

// All rows see KEYS_AFTER keys after those tiles, too.
template <int KEYS_AFTER = 0> __device__ __forceinline__ WholeTiles whole_tiles(const RowTile &tile, const Problem &p)
{
    if constexpr (!Limits::HIDES_LAST) return {0, tile.keys.end - 1};
    const auto run = p.limits.of_sequence(tile.rows.batch, tile.own.q_len, tile.own.kv_len);
    return {Limits::HIDES_FIRST ? (run.first(tile.rows.last_row()) + BC - 1) / BC : 0,
            (run.end(tile.rows.first_row) - KEYS_AFTER) / BC};
}
