// O_i on its way out. softmax.cuh and turns.cuh are put before this text.

// O_i, each row times its factor, rounded to 16 bits -> the warpgroup's rows of a tile.
__device__ __forceinline__ void stage_output(const Output &O, const PerRow &factor, unsigned rows)
{
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < TD; j += 2) {
        unsigned o[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            const int e = 4 * j + 2 * c;
            o[c] = e < HEAD_DIM / 2 ? packed(O[e] * factor[c % 2], O[e + 1] * factor[c % 2]) : 0;  // a row may end in the pair
        }
        const int box = 8 * j / COLUMNS, piece = j % (COLUMNS / 8) + lane / 16;
        const unsigned at = rows + box * BR * ROW_BYTES + piece_of_row(16 * warp + lane % 16, piece);
        store_matrices(at, o);
    }
}
