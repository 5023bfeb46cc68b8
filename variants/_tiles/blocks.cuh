constexpr unsigned ALL_LANES = 0xffffffff;

// A mask of blocks of rows and keys that are on or off, as visits.cuh, which follows, asks for it.

// Blocks are block_rows x block_keys pairs of a row and a key, counted from row 0 and key 0.
#define RULE_PARAMETERS const int *__restrict__ blocks, int block_rows, int block_keys
#define RULE(head) rule_of(blocks, head, block_rows, block_keys, q_len, kv_len)

struct Rule {
    const int *blocks;
    int block_rows, block_keys, columns;

    // Whether rows see any of the tile's keys, and whether they see them all: the same in all lanes of a warp, which takes
    // a row of blocks after the other.
    __device__ __forceinline__ void look_at_tile(bool &any, bool &all, int, int first_row, int rows, int first_key,
                                                 int keys) const
    {
        const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
        const int first_i = first_row / block_rows, last_i = (first_row + rows - 1) / block_rows;
        const int first_j = first_key / block_keys, last_j = (first_key + keys - 1) / block_keys;
        bool some = false, each = true;
        for (int i = first_i; i <= last_i; ++i) {
            for (int j = first_j + lane; j <= last_j; j += 32) {
                const bool on = blocks[(size_t)i * columns + j] != 0;
                some = some || on;
                each = each && on;
            }
        }
        any = __any_sync(ALL_LANES, some);
        all = __all_sync(ALL_LANES, each);
    }

    // What a lane knows of a key: its block, in the row of blocks that it has looked at last.
    struct Key {
        int j, i;
        bool on;
    };
    __device__ __forceinline__ Key key(int key) const { return {key / block_keys, -1, false}; }

    // All lanes ask for the same row.
    __device__ __forceinline__ bool sees(int row, Key &key) const
    {
        const int i = row / block_rows;
        if (i != key.i) {
            key.i = i;
            key.on = blocks[(size_t)i * columns + key.j] != 0;
        }
        return key.on;
    }
};

// Of a query head whose blocks are its own; 0 where they are those of all.
__device__ __forceinline__ Rule rule_of(const int *__restrict__ blocks, int head, int block_rows, int block_keys, int q_len,
                                        int kv_len)
{
    const int columns = (kv_len + block_keys - 1) / block_keys;
    const size_t of_head = (size_t)((q_len + block_rows - 1) / block_rows) * columns;
    return {blocks + head * of_head, block_rows, block_keys, columns};
}
