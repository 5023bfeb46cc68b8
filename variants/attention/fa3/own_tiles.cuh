// The tiles of keys that a warpgroup's own rows see, where other warpgroups of its tile of rows see more. _hopper/row_tiles.cuh
// is put before this text.

// The tiles of keys of which some of a warpgroup's rows see a key, from `first` to before `end`, and those that all of them see
// all of. Other warpgroups of the tile of rows may see more.
struct OwnTiles {
    int first, end;
    WholeTiles whole;
};

// Whether warpgroups pass over tiles of keys that only others' rows see: where three share a tile of rows, limits are no reads,
// and there are registers for it.
constexpr bool PASSES = CONSUMERS > 2 && !Limits::ARE_READ && !KeyTiles<TileOrder>::ARE_LISTED && !has_term<Softcap, ScoreTerms>;

// Of the warpgroup whose rows begin with `first_row` of each head.
__device__ __forceinline__ OwnTiles own_tiles(const RowTile &tile, int first_row, const Problem &p)
{
    OwnTiles own = {tile.keys.first, tile.keys.end, {0, 0}};
    if constexpr (PASSES) {
        const int last_row = min(first_row + (1 << p.packs.head_shift), tile.own.q_len) - 1;
        const auto run = p.limits.of_sequence(tile.rows.batch, tile.own.q_len, tile.own.kv_len);
        if (Limits::HIDES_FIRST) own.first = run.first(first_row) / BC, own.whole.from = (run.first(last_row) + BC - 1) / BC;
        if (Limits::HIDES_LAST) own.end = (run.end(last_row) + BC - 1) / BC, own.whole.to = run.end(first_row) / BC;
        if (first_row > last_row || own.first >= own.end) own.first = own.end = tile.keys.first;
    }
    return own;
}
