// Tiles in shared memory: two of Q, one for O on its way out, and a circular buffer of tiles of keys. products.cuh is put before
// this text.
//
// Compile-time parameters: STAGES (tiles of K or V on chip), BC (keys per tile).

constexpr int ROWS = LANES;  // of each of a block's two tiles
constexpr int ROW_TILE_BYTES = ROWS * D * (int)sizeof(stored);
constexpr int KEY_TILE_BYTES = BC * D * (int)sizeof(stored);

// K_j and V_j of the block's step s, counted over all of its tiles of rows, are items 2 s and 2 s + 1 of the buffer.
__device__ __forceinline__ constexpr int item_of_K(int step) { return 2 * step; }
__device__ __forceinline__ constexpr int item_of_V(int step) { return 2 * step + 1; }

struct Tiles {
    unsigned Q, O, keys;
    __device__ __forceinline__ unsigned rows(int t) const { return Q + t * ROW_TILE_BYTES; }
    __device__ __forceinline__ unsigned item(int n) const { return keys + n % STAGES * KEY_TILE_BYTES; }
};
