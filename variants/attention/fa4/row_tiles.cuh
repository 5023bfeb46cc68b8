// Which tiles of rows a block takes, and which tiles of keys each visits. _hopper/limits.cuh, Limits, which the plan chooses,
// events.cuh and launch_control.cuh are put before this text.
//
// Compile-time parameters: BR (rows per block, two tiles of 128), BC (keys per tile).

// What does not change during a launch.
struct Problem {
    int q_len, kv_len;
    int heads;  // query heads of all sequences
    int heads_per_kv_head;
    Limits limits;

    __device__ __forceinline__ int row_tiles() const { return (q_len + BR - 1) / BR; }
    // The row sees keys 0 to before this one.
    __device__ __forceinline__ int end_key(int row) const
    {
        return Limits::HIDES_LAST ? limits.of_sequence(0, q_len, kv_len).end(row) : kv_len;
    }
};

// A block of the grid is a tile of rows. Blocks that run cancel those that have not started, and take their tiles, one in each
// round: who is done first takes the next one. The tile of the next round is requested while this one is worked on.
struct Schedule {
    static constexpr int READERS = 3 * WARPGROUP + 3 + (Limits::HIDES_LAST ? 32 : 0);  // softmax, correction, 3 or 4 warps

    Handover next;  // scheduler -> all roles
    Response response;

    __device__ __forceinline__ void init() { next.init(1, READERS); }

    // By the scheduler, at the beginning of a round.
    __device__ __forceinline__ void request_next(int round)
    {
        next.wait_until_empty(round);
        arrive_and_expect(next.is_full.barrier, RESPONSE_BYTES);
        request_block(response, next.is_full.barrier);
    }

    // By every role, at the end of a round: the next tile of rows, -1 if there is none.
    __device__ __forceinline__ int tile_after(int round)
    {
        next.wait_until_full(round);
        const int index = cancelled_block(response);
        publish_to_async();  // the next response is written by the asynchronous proxy
        next.release();
        return index;
    }
};

struct RowTile {
    int head, first_row;
    int key_tiles;  // that the rows visit, from the last one to the first; at least one
    int inspected;  // tiles of keys from this one on are not seen whole by all rows

    __device__ __forceinline__ bool is_inspected(int j) const { return Limits::HIDES_LAST && j >= inspected; }
};

// Tile `index` of all. Blocks start, and are cancelled, about in order. Under a causal mask the last rows, which see most keys,
// come first in all heads: short work is left for the end, when not all blocks find some.
__device__ __forceinline__ RowTile row_tile(int index, const Problem &p)
{
    RowTile tile;
    int number;
    if constexpr (Limits::HIDES_LAST) {
        tile.head = index % p.heads;
        number = p.row_tiles() - 1 - index / p.heads;
    } else {
        tile.head = index / p.row_tiles();
        number = index % p.row_tiles();
    }
    tile.first_row = number * BR;
    const int last_row = min(tile.first_row + BR, p.q_len) - 1;
    tile.key_tiles = max((p.end_key(last_row) + BC - 1) / BC, 1);
    tile.inspected = p.end_key(tile.first_row) / BC;
    return tile;
}
