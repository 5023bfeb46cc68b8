// Masks under which what a row sees is no run of keys, where VISITS is defined. Which tiles of keys a block of rows visits
// is listed ahead, by list_visits.cu. Of a tile that rows see in part a block notes which row sees which key, a bit each.
// The mask's own rule, blocks.cuh, is put before this text. The Numba twin is numba_visits.py.
//
// Compile-time parameters: BR and BC (rows and keys per tile).

#define VISITS_PARAMETERS                                                        \
    , const int *__restrict__ visits, int lists_per_sequence, int lists_per_head, RULE_PARAMETERS

// A tile of a list: twice its number, and one more where the rule hides some of its keys from some rows.
struct Visit {
    int entry;

    __device__ __forceinline__ int tile() const { return entry / 2; }
    __device__ __forceinline__ bool is_mixed() const { return entry % 2 != 0; }
};

// A list is how many tiles it has, and these. There is one for each of a head's `row_blocks`, and room for all tiles in each.
struct Visits {
    const int *list;
    int count;

    __device__ __forceinline__ Visit operator[](int n) const { return {list[1 + n]}; }
};
#define VISITS_OF(sequence, head, row_block, row_blocks)                         \
    visits_of(visits, (sequence) * lists_per_sequence + (head) * lists_per_head, row_block, row_blocks, kv_len)
#define RULE_OF(head) RULE((head) * lists_per_head)
__device__ __forceinline__ Visits visits_of(const int *__restrict__ visits, int lists, int row_block, int row_blocks,
                                            int kv_len)
{
    const int *const list = visits + ((size_t)lists * row_blocks + row_block) * (1 + (kv_len + BC - 1) / BC);
    return {list, *list};
}

// A bit for each row and key of a tile; rows that it has room for besides are as the last one.
constexpr int WORDS = (BC + 31) / 32;
constexpr int ROWS_NOTED = (BR + 15) / 16 * 16;
typedef unsigned Noted[ROWS_NOTED][WORDS];

// Each warp of the block notes SHARE of its rows, one after the other, all 32 lanes a key each. `t` counts the threads
// that do.
template <int SHARE>
__device__ __forceinline__ void note_seen(Noted &noted, const Rule &rule, int first_row, int rows, int first_key, int keys,
                                          int t)
{
    const int lane = t % 32;
    Rule::Key of[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; ++w) of[w] = rule.key(first_key + min(32 * w + lane, keys - 1));
#pragma unroll 1
    for (int row = t / 32 * SHARE; row < t / 32 * SHARE + SHARE; ++row) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            const unsigned seen = __ballot_sync(ALL_LANES, rule.sees(first_row + min(row, rows - 1), of[w]));
            if (lane == 0) noted[row][w] = seen;
        }
    }
}

__device__ __forceinline__ bool is_noted(const Noted &noted, int row, int key)
{
    return noted[row][key / 32] >> key % 32 & 1;
}
