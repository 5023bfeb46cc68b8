// FlashMask's spans of rows that do not see a key (Wang et al. 2024, arXiv 2410.01359), as the rule of ListedTiles
// (tile_order.cuh, list_visits.cu). The Numba twin is _tiles/numba_flashmask_rule.py.
//
// Key j's span p starts at row hidden_rows[2 p][j] and ends before row hidden_rows[2 p + 1][j]. `extremes` holds, of each tile of
// keys and each span, the least and the largest start and the least and the largest end; tile_extremes.cu computes them.

template <int SPANS> struct FlashMask {
    const int *hidden_rows, *extremes;

    struct Key {
        int start[SPANS], end[SPANS];
    };

    struct OfHead {
        const int *hidden_rows, *extremes;
        int kv_len;

        // Whether rows may see any of the tile's keys, and whether they see them all, as far as extremes tell (the paper's
        // algorithm 1): the same in all lanes of a warp.
        __device__ __forceinline__ void look_at_tile(bool &any, bool &all, int tile, int first_row, int rows, int, int) const
        {
            constexpr int EXTREMES = 4 * SPANS;  // of a tile
            const int lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32, last_row = first_row + rows - 1;
            const int own = lane < EXTREMES ? __ldg(extremes + (size_t)tile * EXTREMES + lane) : 0;
            any = all = true;
#pragma unroll
            for (int p = 0; p < SPANS; ++p) {
                const int least_start = __shfl_sync(0xffffffff, own, 4 * p);
                const int largest_start = __shfl_sync(0xffffffff, own, 4 * p + 1);
                const int least_end = __shfl_sync(0xffffffff, own, 4 * p + 2);
                const int largest_end = __shfl_sync(0xffffffff, own, 4 * p + 3);
                any = any && !(largest_start <= first_row && last_row < least_end);
                all = all && (last_row < least_start || largest_end <= first_row);
            }
        }

        __device__ __forceinline__ Key key(int key) const
        {
            Key of;
#pragma unroll
            for (int p = 0; p < SPANS; ++p) {
                of.start[p] = __ldg(hidden_rows + (size_t)(2 * p) * kv_len + key);
                of.end[p] = __ldg(hidden_rows + (size_t)(2 * p + 1) * kv_len + key);
            }
            return of;
        }

        __device__ __forceinline__ bool sees(int row, const Key &key) const
        {
            bool hidden = false;
#pragma unroll
            for (int p = 0; p < SPANS; ++p) hidden |= (key.start[p] <= row) & (row < key.end[p]);
            return !hidden;
        }
    };

    __device__ __forceinline__ OfHead of_head(int, int, int kv_len) const { return {hidden_rows, extremes, kv_len}; }
};
