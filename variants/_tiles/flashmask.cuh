// FlashMask's spans of rows that do not see a key (Wang et al. 2024, arXiv 2410.01359), as visits.cuh, which follows, asks
// for them. The Numba twin is numba_flashmask_rule.py.
//
// Compile-time parameter: SPANS_PER_KEY. Key j's span p starts at row hidden_rows[2 p][j] and ends before hidden_rows[2 p + 1][j].
// `extremes` has, of each tile of keys and each span, the least and the largest start, and the least and the largest end:
// tile_extremes.cu brings them together.

constexpr unsigned ALL_LANES = 0xffffffff;
constexpr int EXTREMES = 4 * SPANS_PER_KEY;  // of a tile

#define RULE_PARAMETERS const int *__restrict__ hidden_rows, const int *__restrict__ extremes
#define RULE(head) Rule{hidden_rows, extremes, kv_len}

struct Rule {
    const int *hidden_rows, *extremes;
    int kv_len;

    // Whether rows may see any of the tile's keys, and whether they see them all, as far as extremes tell (the paper's
    // algorithm 1): the same in all lanes of a warp.
    __device__ __forceinline__ void look_at_tile(bool &any, bool &all, int tile, int first_row, int rows, int, int) const
    {
        const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32, last_row = first_row + rows - 1;
        const int own = lane < EXTREMES ? extremes[(size_t)tile * EXTREMES + lane] : 0;
        any = all = true;
#pragma unroll
        for (int p = 0; p < SPANS_PER_KEY; ++p) {
            const int least_start = __shfl_sync(ALL_LANES, own, 4 * p), largest_start = __shfl_sync(ALL_LANES, own, 4 * p + 1);
            const int least_end = __shfl_sync(ALL_LANES, own, 4 * p + 2), largest_end = __shfl_sync(ALL_LANES, own, 4 * p + 3);
            any = any && !(largest_start <= first_row && last_row < least_end);
            all = all && (last_row < least_start || largest_end <= first_row);
        }
    }

    // What a lane knows of a key: its spans.
    struct Key {
        int start[SPANS_PER_KEY], end[SPANS_PER_KEY];
    };
    __device__ __forceinline__ Key key(int key) const
    {
        Key of;
#pragma unroll
        for (int p = 0; p < SPANS_PER_KEY; ++p) {
            of.start[p] = hidden_rows[(size_t)(2 * p) * kv_len + key];
            of.end[p] = hidden_rows[(size_t)(2 * p + 1) * kv_len + key];
        }
        return of;
    }

    __device__ __forceinline__ bool sees(int row, const Key &key) const
    {
        bool hidden = false;
#pragma unroll
        for (int p = 0; p < SPANS_PER_KEY; ++p) hidden = hidden || (key.start[p] <= row && row < key.end[p]);
        return !hidden;
    }
};
