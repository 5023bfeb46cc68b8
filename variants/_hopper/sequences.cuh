// Sequences of _features/sequences.cuh for blocks that take tile after tile, and store O_i as boxes of a tensor map. Behind the
// last row of a sequence O has the next one's: a box that reaches there is not stored. sequences.cuh and hopper.cuh are put
// before this text.

// A batch: boxes end with the tensor, or with the axis of rows.
struct WarpgroupOneLength : OneLength {
    enum { ARE_RAGGED = false };
    template <class Packs> __device__ __forceinline__ int tiles(const Packs &packs) const { return packs.tiles(); }
    __device__ __forceinline__ void store_rows_of_sequence(unsigned, const Own &, int, int, int) const {}
};

struct WarpgroupVarlen : Varlen {
    enum { ARE_RAGGED = true };
    stored *O;
    long long row_stride, head_stride;  // of O, in elements
    int all_tiles;                      // of rows, of all packs

    template <class Packs> __device__ __forceinline__ int tiles(const Packs &) const { return all_tiles; }
    // Of so many rows, that a sequence has.
    __device__ __forceinline__ int tiles_of(int sequence, int rows) const
    {
        return (__ldg(cu_seqlens_q + sequence + 1) - __ldg(cu_seqlens_q + sequence) + rows - 1) / rows;
    }

    // Of a tile of rows that the sequence reaches to: all at once.
    __device__ __forceinline__ Own at(unsigned sequence, int, int, int) const
    {
        const int q_first = __ldg(cu_seqlens_q + sequence), q_end = __ldg(cu_seqlens_q + sequence + 1);
        const int k_first = __ldg(cu_seqlens_k + sequence), k_end = __ldg(cu_seqlens_k + sequence + 1);
        return {0, q_first, q_end - q_first, k_first, k_end - k_first, true};
    }

    // The rows of a warpgroup that its sequence has, from a tile on chip, 16 bytes per lane. The warpgroup's 64 rows are
    // 1 << shift of each head from `head` on; the first one is row `first_row` of the sequence.
    __device__ __forceinline__ void store_rows_of_sequence(unsigned rows, const Own &own, int head, int first_row, int shift) const
    {
        constexpr int PIECES = HEAD_DIM / 8, PIECES_PER_BOX = COLUMNS / 8;
#pragma unroll 1
        for (int e = threadIdx.x % WARPGROUP; e < 64 * PIECES; e += WARPGROUP) {
            const int mine = e / PIECES, piece = e % PIECES, row = first_row + (mine & (1 << shift) - 1);
            if (row >= own.q_len) continue;
            const unsigned box = rows + piece / PIECES_PER_BOX * (BR * ROW_BYTES);
            const uint4 o = *reinterpret_cast<const uint4 *>(
                shared_pointer(box + piece_of_row(mine, piece % PIECES_PER_BOX)));
            stored *const to = O + (head + (mine >> shift)) * head_stride + own.row(row) * row_stride;
            *reinterpret_cast<uint4 *>(to + 8 * piece) = o;
        }
    }
};
