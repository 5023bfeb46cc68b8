// TileOrder: which tiles of BC keys a block of rows visits, and which row sees which key of a tile. The plan chooses one of the
// two types below as `TileOrder`. limits.cuh is put before this text, and for ListedTiles a mask's rule: block_mask.cuh or
// flashmask.cuh. The Numba twin is numba_tile_order.py.
//
//     const auto tiles = order.of_block(block, seen.first_key, seen.end_key, q_len, kv_len);
//     for (auto next = tiles.first(); next.exists();) {
//         const auto tile = next;                                  // its keys begin at tile.first_key
//         next = tiles.after(tile);
//         const auto pairs = tiles.pairs<THREADS>(tile, keys);     // called by all threads of the block
//         if (pairs.hides_some()) pairs.sees(row, key)             // of the block and of the tile
//     }
//
// In a block that owns keys, rows and keys are exchanged, as in its limits, and the rule is Mirrored.
//
// Compile-time parameters: BR and BC (rows and keys per tile).

// All tiles with a key that some row sees, where what a row sees is a run of keys.
struct AllTiles {
    struct Tile {
        int first_key, end_key;
        __device__ __forceinline__ bool exists() const { return first_key < end_key; }
    };

    // Limits alone hide keys.
    struct Pairs {
        __device__ __forceinline__ bool hides_some() const { return false; }
        __device__ __forceinline__ bool sees(int, int) const { return true; }
    };

    struct OfBlock {
        int first_key, end_key;
        __device__ __forceinline__ Tile first() const { return {first_key / BC * BC, end_key}; }
        __device__ __forceinline__ Tile after(const Tile &tile) const { return {tile.first_key + BC, tile.end_key}; }
        template <int THREADS> __device__ __forceinline__ Pairs pairs(const Tile &, int) const { return {}; }
    };
    __device__ __forceinline__ OfBlock of_block(const RowBlock &, int first_key, int end_key, int, int) const
    {
        return {first_key, end_key};
    }
};

// The rule of a mask for blocks that own BR keys and visit tiles of rows. A tile is looked at the other way round; `key` and
// `sees` are the mask's own, of its keys and its rows.
template <class Rule> struct Mirrored : Rule {
    struct OfHead : Rule::OfHead {
        __device__ __forceinline__ void look_at_tile(bool &any, bool &all, int /*tile*/, int first_key, int keys, int first_row,
                                                     int rows) const
        {
            Rule::OfHead::look_at_tile(any, all, first_key / BR, first_row, rows, first_key, keys);
        }
    };
    __device__ __forceinline__ OfHead of_head(int head, int kv_len, int q_len) const
    {
        return {Rule::of_head(head, q_len, kv_len)};
    }
};
template <class Rule> constexpr bool is_mirrored = false;
template <class Rule> constexpr bool is_mirrored<Mirrored<Rule>> = true;

// Masks under which what a row sees is no run of keys. Which tiles each block visits is listed ahead, by list_visits.cu. Of a
// tile that rows see in part, the block computes which row sees which key, a bit each, into shared memory.
//
// There is a list for each of a head's blocks: how many tiles it has, and an entry for each: twice its number, plus one where
// the rule hides some of its keys from some rows.
template <class Rule> struct ListedTiles {
    const int *visits;
    int lists_per_sequence, lists_per_head;  // 0 where all have the same
    Rule rule;

    struct Tile {
        int entry, index, first_key;
        __device__ __forceinline__ bool exists() const { return index >= 0; }
        __device__ __forceinline__ bool is_mixed() const { return entry % 2 != 0; }
    };

    // A bit for each of the mask's rows and keys, whichever of them the block owns.
    static constexpr bool OWNS_KEYS = is_mirrored<Rule>;
    static constexpr int ROWS = OWNS_KEYS ? BC : BR, KEYS = OWNS_KEYS ? BR : BC;
    static constexpr int WORDS = (KEYS + 31) / 32, ROOM = (ROWS + 15) / 16 * 16;
    typedef unsigned Bits[ROOM][WORDS];

    struct Pairs {
        const Bits *bits;
        bool mixed;
        __device__ __forceinline__ bool hides_some() const { return mixed; }
        __device__ __forceinline__ bool sees(int owned, int visited) const
        {
            const int row = OWNS_KEYS ? visited : owned, key = OWNS_KEYS ? owned : visited;
            return (*bits)[row][key / 32] >> key % 32 & 1;
        }
    };

    struct OfBlock {
        const int *list;
        int count;
        typename Rule::OfHead rule;
        RowBlock block;

        __device__ __forceinline__ Tile at(int index) const
        {
            if (index >= count) return {0, -1, 0};
            const int entry = __ldg(list + 1 + index);
            return {entry, index, entry / 2 * BC};
        }
        __device__ __forceinline__ Tile first() const { return at(0); }
        __device__ __forceinline__ Tile after(const Tile &tile) const { return at(tile.index + 1); }

        // Which of the tile's `keys` keys each row sees, if rows see different ones: a key per lane. Rows after the last
        // repeat the last. (Of a block that owns keys: which of them each of the tile's `keys` rows sees.)
        template <int THREADS> __device__ __forceinline__ Pairs pairs(const Tile &tile, int keys) const
        {
            __shared__ Bits bits;
            if (tile.is_mixed()) {
                compute_bits<ROOM * 32 / THREADS>(bits, tile, keys, threadIdx.y * blockDim.x + threadIdx.x);
                __syncthreads();
            }
            return {&bits, tile.is_mixed()};
        }

        // Each warp computes the bits of SHARE rows; `t` counts the threads that do.
        template <int SHARE>
        __device__ __forceinline__ void compute_bits(Bits &bits, const Tile &tile, int keys, int t) const
        {
            const int first_key = OWNS_KEYS ? block.first_row : tile.first_key, last_key = (OWNS_KEYS ? block.rows : keys) - 1;
            const int first_row = OWNS_KEYS ? tile.first_key : block.first_row, last_row = (OWNS_KEYS ? keys : block.rows) - 1;
            const int lane = t % 32;
            typename Rule::Key of[WORDS];
#pragma unroll
            for (int w = 0; w < WORDS; ++w) of[w] = rule.key(first_key + min(32 * w + lane, last_key));
#pragma unroll 1
            for (int row = t / 32 * SHARE; row < t / 32 * SHARE + SHARE; ++row) {
                const int own_row = first_row + min(row, last_row);
                unsigned seen[WORDS];
#pragma unroll
                for (int w = 0; w < WORDS; ++w) seen[w] = __ballot_sync(0xffffffff, rule.sees(own_row, of[w]));
                if (lane != 0) continue;
#pragma unroll
                for (int w = 0; w < WORDS; ++w) bits[row][w] = seen[w];
            }
        }
    };
    __device__ __forceinline__ OfBlock of_block(const RowBlock &block, int, int, int q_len, int kv_len) const
    {
        const int lists = block.batch * lists_per_sequence + block.head * lists_per_head;
        const int *const list = visits + ((size_t)lists * block.blocks + block.number) * (1 + (kv_len + BC - 1) / BC);
        return {list, __ldg(list), rule.of_head(block.head * lists_per_head, q_len, kv_len), block};
    }
};
