// A mask of blocks of rows and keys that are on or off, as the rule of ListedTiles (tile_order.cuh, list_visits.cu). The Numba
// twin is _tiles/numba_block_rule.py.

struct BlockMask {
    const int *blocks;           // rows of blocks of each head, or of all heads
    int block_rows, block_keys;  // of each block, counted from row 0 and key 0

    struct Key {
        int column, row;  // its block, in the row of blocks that was looked at last
        bool on;
    };

    struct OfHead {
        const int *blocks;
        int block_rows, block_keys, columns;

        // Whether rows see any of the tile's keys, and whether they see them all: the same in all lanes of a warp, which takes
        // one row of blocks after the other.
        __device__ __forceinline__ void look_at_tile(bool &any, bool &all, int /*tile*/, int first_row, int rows,
                                                     int first_key, int keys) const
        {
            const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
            const int first_i = first_row / block_rows, last_i = (first_row + rows - 1) / block_rows;
            const int first_j = first_key / block_keys, last_j = (first_key + keys - 1) / block_keys;
            bool some = false, each = true;
            for (int i = first_i; i <= last_i; ++i) {
                for (int j = first_j + lane; j <= last_j; j += 32) {
                    const bool on = __ldg(blocks + (size_t)i * columns + j) != 0;
                    some = some || on;
                    each = each && on;
                }
            }
            any = __any_sync(0xffffffff, some);
            all = __all_sync(0xffffffff, each);
        }

        __device__ __forceinline__ Key key(int key) const { return {key / block_keys, -1, false}; }

        // All lanes ask for the same row.
        __device__ __forceinline__ bool sees(int row, Key &key) const
        {
            const int i = row / block_rows;
            if (i != key.row) {
                key.row = i;
                key.on = __ldg(blocks + (size_t)i * columns + key.column) != 0;
            }
            return key.on;
        }
    };

    // `head`: 0 where all heads have the same blocks.
    __device__ __forceinline__ OfHead of_head(int head, int q_len, int kv_len) const
    {
        const int columns = (kv_len + block_keys - 1) / block_keys;
        const size_t per_head = (size_t)((q_len + block_rows - 1) / block_rows) * columns;
        return {blocks + head * per_head, block_rows, block_keys, columns};
    }
};
