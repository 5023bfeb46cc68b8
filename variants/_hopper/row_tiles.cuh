// Tiles of rows: in which order blocks take them, and which tiles of keys each visits. A block stays on its multiprocessor and
// takes one tile of rows after the other. registers.cuh and key_tiles.cuh are put before this text.

// Heads that share K and V are packed, as many as the plan chooses: a warpgroup has 1 << head_shift rows of each, one head
// after the other. A pack is those heads. Its tile of rows is as many rows of each as all consumers have.
struct Packs {
    int count;  // in all sequences
    int per_kv_head, per_sequence;
    int head_shift;
    int row_tiles;  // of each pack
    int at_once;    // packs whose K and V stay in L2 together

    __device__ __forceinline__ int tiles() const { return count * row_tiles; }
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
    // Of the head that has its keys.
    __device__ __forceinline__ int kv_number(const Packs &packs) const
    {
        return (int)own.number(unknown(pack), rows.head) / packs.per_kv_head;
    }
    // The head of its sequence that row `mine` of a warpgroup's 64 is of.
    __device__ __forceinline__ int head(int mine, const Problem &p) const
    {
        return (rows.head << 6 - p.packs.head_shift) + (mine >> p.packs.head_shift);
    }
};

// Which tile of rows, of which pack.
struct RowPlace {
    int pack, row_tile;
};

// Tile `index` of those of `count` packs, of `row_tiles` each. Where the last keys are hidden from some rows, the rows that may
// see most keys, the last ones, come first, of as many packs at once as have K and V in L2: short work is left for the end, when
// not all blocks find some. Packs that are left over come first, when longer work follows.
__device__ __forceinline__ RowPlace row_place(int index, int count, int row_tiles, int at_once)
{
    if constexpr (Limits::HIDES_LAST) {
        const int from_end = count * row_tiles - 1 - index;
        const int packs_after = from_end / (at_once * row_tiles) * at_once;
        const int packs = min(at_once, count - packs_after);
        const int inside = from_end - packs_after * row_tiles;
        return {count - 1 - packs_after - inside % packs, inside / packs};
    } else {
        return {index / row_tiles, index % row_tiles};
    }
}

// Which tile of rows a block takes next: its index, of the number that the counter says, which increases. In a batch these are
// the same.
template <class Sequences> struct TileNumbers {
    __device__ __forceinline__ void init() {}
    __device__ __forceinline__ int index(int number, const Problem &) { return number; }
    static __device__ __forceinline__ RowPlace place(int index, const Packs &packs)
    {
        return row_place(index, packs.count, packs.row_tiles, packs.at_once);
    }
};

// Unpadded sequences: those with more than half as many tiles of rows as the longest one may have come first, then those with
// more than a quarter, then the others. The index counts tiles as if all sequences were as long as the longest.
template <> struct TileNumbers<WarpgroupVarlen> {
    static constexpr int PASSES = 3;  // as in _hopper/__init__.py
    int pass, sequence, before;  // where the block is, and the number of that sequence's first tile

    __device__ __forceinline__ void init() { pass = sequence = before = 0; }
    template <class OfKernel> __device__ __forceinline__ int index(int number, const OfKernel &p)
    {
        const int packs = p.packs.per_sequence;
        for (; pass < PASSES; ++pass, sequence = 0) {
            const int most = p.packs.row_tiles >> pass, least = pass == PASSES - 1 ? 0 : most / 2;
            for (; sequence * packs < p.packs.count; ++sequence) {
                const int row_tiles = p.sequences.tiles_of(sequence, p.packs.head_rows());
                if (row_tiles > most || row_tiles <= least) continue;
                if (number < before + row_tiles * packs) {
                    const RowPlace at = row_place(number - before, packs, row_tiles, p.packs.at_once);
                    return (sequence * packs + at.pack) * p.packs.row_tiles + at.row_tile;
                }
                before += row_tiles * packs;
            }
        }
        return p.packs.tiles();
    }
    static __device__ __forceinline__ RowPlace place(int index, const Packs &packs)
    {
        return {index / packs.row_tiles, index % packs.row_tiles};
    }
};

__device__ __forceinline__ RowTile row_tile(int index, const Problem &p)
{
    const RowPlace at = TileNumbers<Sequences>::place(index, p.packs);
    const int sequence = at.pack / p.packs.per_sequence, first_row = at.row_tile * p.packs.head_rows();
    const auto own = p.sequences.at(sequence, first_row, p.q_len, p.kv_len);
    const RowBlock rows = {sequence,  at.pack % p.packs.per_sequence, at.row_tile, p.packs.row_tiles,
                           first_row, min(first_row + p.packs.head_rows(), own.q_len) - first_row};
    const auto run = p.limits.of_sequence(sequence, own.q_len, own.kv_len);
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
