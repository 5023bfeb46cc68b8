// Which tiles of keys a tile of rows visits, from the last one to the first, and which keys of a tile each of a lane's two rows
// sees: the orders of _features/tile_order.cuh on warpgroups. limits.cuh, softmax.cuh, and Limits and TileOrder, which the plan
// chooses, are put before this text.

constexpr int WORDS = (BC + 31) / 32;  // of bits, a key each

// Nothing of a tile is hidden but what Limits hide.
struct NoBits {
    __device__ __forceinline__ bool hide_some() const { return false; }
    __device__ __forceinline__ unsigned word(int, int) const { return 0xffffffff; }
};

// A bit for each row of the warpgroup and each key of a tile; null if no pair is hidden.
struct RowBits {
    const unsigned (*rows)[WORDS];
    __device__ __forceinline__ bool hide_some() const { return rows; }
    // Those of the lane's row h, for keys 32 w and after.
    __device__ __forceinline__ unsigned word(int h, int w) const
    {
        return rows[threadIdx.x % WARPGROUP / 32 * 16 + 8 * h + threadIdx.x % 32 / 4][w];
    }
};

// Tiles j = end - 1, ..., first of an order.
template <class Order> struct KeyTiles;

template <> struct KeyTiles<AllTiles> {
    static constexpr bool ARE_LISTED = false;
    int first, end;

    struct Tile {
        int number;
        __device__ __forceinline__ int first_key() const { return number * BC; }
        __device__ __forceinline__ bool is_mixed() const { return false; }
        __device__ __forceinline__ int index() const { return number; }
    };

    template <class Run>
    static __device__ __forceinline__ KeyTiles of(const AllTiles &, const RowBlock &rows, const Run &run, int, int kv_len)
    {
        const int first = Limits::HIDES_FIRST ? run.first(rows.first_row) / BC : 0;
        const int end_key = Limits::HIDES_LAST ? run.end(rows.last_row()) : kv_len;
        return {first, (end_key + BC - 1) / BC};
    }
    __device__ __forceinline__ Tile operator[](int j) const { return {j}; }
    __device__ __forceinline__ void compute_bits(const Tile &, int) const {}
    __device__ __forceinline__ NoBits bits(const Tile &) const { return {}; }
};

template <class Rule> struct KeyTiles<ListedTiles<Rule>> {
    typedef ListedTiles<Rule> Order;
    static constexpr bool ARE_LISTED = true;
    int first, end;
    typename Order::OfBlock block;

    struct Tile {
        int entry;
        __device__ __forceinline__ int index() const { return entry / 2; }
        __device__ __forceinline__ int first_key() const { return index() * BC; }
        __device__ __forceinline__ bool is_mixed() const { return entry % 2 != 0; }
    };

    template <class Run>
    static __device__ __forceinline__ KeyTiles of(const Order &order, const RowBlock &rows, const Run &, int q_len, int kv_len)
    {
        const auto block = order.of_block(rows, 0, kv_len, q_len, kv_len);
        return {0, block.count, block};
    }
    __device__ __forceinline__ Tile operator[](int j) const { return {__ldg(block.list + 1 + j)}; }

    static __device__ __forceinline__ typename Order::Bits &bits_of_block()
    {
        __shared__ typename Order::Bits bits;
        return bits;
    }

    // Each warp computes the bits of its own rows.
    __device__ __forceinline__ void compute_bits(const Tile &tile, int kv_len) const
    {
        if (!tile.is_mixed()) return;
        const int keys = min(BC, kv_len - tile.first_key()), consumer_thread = threadIdx.x - WARPGROUP;
        __syncwarp();
        block.template compute_bits<16>(bits_of_block(), {tile.entry, 0, tile.first_key()}, keys, consumer_thread);
        __syncwarp();
    }
    __device__ __forceinline__ RowBits bits(const Tile &tile) const
    {
        return {tile.is_mixed() ? bits_of_block() + (threadIdx.x / WARPGROUP - 1) * 64 : nullptr};
    }
};

// What the lane's two rows see of a tile, counted from the first of the lane's columns there: row h sees keys first[h] to
// end[h] - 1 but those that bits hide.
template <class Bits> struct KeysSeen {
    int first[2], end[2];
    Bits bits;
    // `key` is counted from the tile's first.
    __device__ __forceinline__ bool sees(int h, int key) const
    {
        const int from_column = key - (int)threadIdx.x % 4 * 2;
        const bool in_run = from_column >= first[h] && from_column < end[h];
        return in_run && !(bits.hide_some() && !(bits.word(h, key / 32) >> key % 32 & 1));
    }
};

template <class Bits>
__device__ __forceinline__ KeysSeen<Bits> keys_seen(const typename Limits::OfLane &lane, int first_key, const Bits &bits)
{
    KeysSeen<Bits> seen;
    const int column = first_key + (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        seen.first[h] = lane.first(h) - column;
        seen.end[h] = lane.end(h) - column;
    }
    seen.bits = bits;
    return seen;
}

// S = -inf where the row does not see the key: chosen, not added, so that NaN behind the mask stays there.
template <class Bits> __device__ __forceinline__ void mask(Scores &S, const KeysSeen<Bits> &seen)
{
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int key = 8 * j + c;
                const bool is_early = Limits::HIDES_FIRST && key < seen.first[h];
                if (is_early || key >= seen.end[h]) S[4 * j + 2 * h + c] = MINUS_INFINITY;
            }
    if (!seen.bits.hide_some()) return;
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned bits = seen.bits.word(h, j / 4) >> j % 4 * 8 + threadIdx.x % 4 * 2;
            if (!(bits & 1)) S[4 * j + 2 * h] = MINUS_INFINITY;
            if (!(bits & 2)) S[4 * j + 2 * h + 1] = MINUS_INFINITY;
        }
}
