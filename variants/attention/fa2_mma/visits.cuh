// In which order a block visits the tiles of keys that its rows see: the plan chooses one of the types below as `Visits`.
// _features/limits.cuh, tile_order.cuh and registers.cuh are put before this text.
//
//     Visits visits(block, seen, tiles, q_len, kv_len);
//     for (int n = visits.first; visits.exists(n); n += Visits::NEXT) {
//         visits.meet_ends(n, warps_end_key);
//         const auto tile = visits.take(n);             // what comes after it moves up
//         const auto pairs = visits.pairs(tile, keys);  // which row sees which key of it, as tile_order.cuh
//     }
//
// visits.coming(n, further): the number of the tile of visit n, which is `further` visits ahead of the current one;
// visits.is_copied(n): whether there is such a visit. STAGES - 1 tiles are copied ahead.

// What most of them have in common: visits are numbered as tiles are, and rows see a run of tiles.
struct RunOfTiles {
    static constexpr int NEXT = 1;
    int first, end;

    __device__ __forceinline__ explicit RunOfTiles(const AllTiles::OfBlock &tiles)
        : first(tiles.first_key / BC), end((tiles.end_key + BC - 1) / BC)
    {
    }
    __device__ __forceinline__ bool exists(int n) const { return n < end; }
    __device__ __forceinline__ bool is_copied(int n) const { return n < end; }
    __device__ __forceinline__ void meet_ends(int &, int) const {}
    __device__ __forceinline__ AllTiles::Pairs pairs(const AllTiles::Tile &, int) const { return {}; }
    static __device__ __forceinline__ AllTiles::Tile tile(int number) { return {number * BC, 0}; }
};

// The first tile first.
struct InOrder : RunOfTiles {
    template <class Seen>
    __device__ __forceinline__ InOrder(const RowBlock &, const Seen &, const AllTiles::OfBlock &tiles, int, int)
        : RunOfTiles(tiles)
    {
    }
    __device__ __forceinline__ int coming(int n, int) const { return n; }
    __device__ __forceinline__ AllTiles::Tile take(int n) const { return tile(n); }
};

// ALiBi takes least off the keys that are nearest: where they come first, those before them next, and those after them last,
// m is mostly what it stays, and O_i need not be rescaled.
struct NearestFirst : RunOfTiles {
    int nearest;

    template <class Seen>
    __device__ __forceinline__ NearestFirst(const RowBlock &block, const Seen &, const AllTiles::OfBlock &tiles, int q_len,
                                            int kv_len)
        : RunOfTiles(tiles), nearest(min(max((block.last_row() + kv_len - q_len) / BC, first), end - 1))
    {
    }
    __device__ __forceinline__ int coming(int n, int) const { return n <= nearest ? first + nearest - n : n; }
    __device__ __forceinline__ AllTiles::Tile take(int n) const { return tile(coming(n, 0)); }
};

// Under a window the first warps alone see its first tile, and others alone the last one. The first tile is visited after the
// last one then, and a warp visits one of the two.
struct EndsAtOnce : RunOfTiles {
    int end_copied;

    template <class Seen>
    __device__ __forceinline__ EndsAtOnce(const RowBlock &block, const Seen &seen, const AllTiles::OfBlock &tiles, int, int)
        : RunOfTiles(tiles)
    {
        bool apart = first + 1 < end;
#pragma unroll
        for (int row = block.first_row; row < block.first_row + BR; row += WARP_ROWS) {
            const int of_warp = min(row, block.last_row()), last_of_warp = min(row + WARP_ROWS - 1, block.last_row());
            apart &= seen.run.first(of_warp) >= (first + 1) * BC || seen.run.end(last_of_warp) <= (end - 1) * BC;
        }
        first += apart;
        end_copied = end + apart;
    }
    __device__ __forceinline__ bool is_copied(int n) const { return n < end_copied; }
    __device__ __forceinline__ int coming(int n, int) const { return n < end ? n : first - 1; }
    __device__ __forceinline__ AllTiles::Tile take(int n) const { return tile(coming(n, 0)); }

    // At the last visit both tiles have come: a warp whose rows end before the last tile goes on to the first one.
    __device__ __forceinline__ void meet_ends(int &n, int warps_end_key) const
    {
        if (n == end - 1 && end_copied > end) {
            wait_for_copies<0>();
            __syncthreads();
            n += warps_end_key <= (anew(end) - 1) * BC;
        }
    }
};

// Those of a list (_features/tile_order.cuh), the last one first: how many there were need not be kept. STAGES entries are
// read before they are copied; after the last one, how many there were.
template <class TileOrder> struct LastListedFirst {
    static constexpr int NEXT = -1;
    typename TileOrder::OfBlock tiles;
    int first;
    int entries[STAGES];

    template <class Seen>
    __device__ __forceinline__ LastListedFirst(const RowBlock &, const Seen &, const typename TileOrder::OfBlock &tiles, int,
                                               int)
        : tiles(tiles), first(tiles.count - 1)
    {
#pragma unroll
        for (int n = 0; n < STAGES; ++n) entries[n] = entry(first - n);
    }
    __device__ __forceinline__ int entry(int n) const { return __ldg(tiles.list + 1 + max(n, -1)); }
    __device__ __forceinline__ bool exists(int n) const { return n > -1; }
    __device__ __forceinline__ bool is_copied(int n) const { return n > -1; }
    __device__ __forceinline__ int coming(int, int further) const { return entries[further] / 2; }
    __device__ __forceinline__ void meet_ends(int &, int) const {}

    __device__ __forceinline__ typename TileOrder::Tile take(int n)
    {
        const typename TileOrder::Tile taken = {entries[0], n, entries[0] / 2 * BC};
#pragma unroll
        for (int further = 1; further < STAGES; ++further) entries[further - 1] = entries[further];
        entries[STAGES - 1] = entry(n - STAGES);
        return taken;
    }

    // Each warp computes the bits of its own rows.
    __device__ __forceinline__ typename TileOrder::Pairs pairs(const typename TileOrder::Tile &tile, int keys) const
    {
        __shared__ typename TileOrder::Bits bits;
        if (tile.is_mixed()) {
            tiles.template compute_bits<WARP_ROWS>(bits, tile, min(BC, keys), threadIdx.x);
            __syncwarp();
        }
        return {&bits, tile.is_mixed()};
    }
};
