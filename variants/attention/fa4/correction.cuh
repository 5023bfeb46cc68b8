// The correction warpgroup: O is rescaled in tensor memory where the maximum of a row has risen, beside products and softmax of
// the other tile of rows, and divided at the end. A thread has a row of each tile. pipeline.cuh is put before this text.

// O = growth O.
__device__ __forceinline__ void rescale(unsigned O_rows, float growth)
{
#pragma unroll 1
    for (int c = 0; c < D; c += 32) {
        float x[32];
        unsigned y[32];
        load_columns(x, O_rows + c);
        wait_for_loads(x);
#pragma unroll
        for (int i = 0; i < 32; ++i) y[i] = __float_as_uint(growth * x[i]);
        store_columns(O_rows + c, y);
    }
    wait_for_stores();
}

// O / l, rounded to 16 bits -> a row of a tile in shared memory. A row that saw no key has l = 0: its O is 0.
__device__ __forceinline__ void stage_row(unsigned tile, int row, unsigned O_rows, float l, bool has_notes, int end,
                                          const Inspection<Limits::HIDES_LAST> &inspection)
{
    const float inverse = 1.0f / l;
#pragma unroll 1
    for (int c = 0; c < D; c += 32) {
        float x[32];
        load_columns(x, O_rows + c);
        wait_for_loads(x);
#pragma unroll
        for (int i = 0; i < 32; ++i) x[i] = l == 0.0f ? 0.0f : inverse * x[i];
        if (has_notes) {
#pragma unroll
            for (int i = 0; i < 32; ++i) x[i] = inspection.with_notes(x[i], c + i, end);
        }
        unsigned char *const box = shared_pointer(tile + c / COLUMNS * ROWS * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < 32; i += 8) {
            const uint4 piece = {packed(x[i], x[i + 1]), packed(x[i + 2], x[i + 3]), packed(x[i + 4], x[i + 5]),
                                 packed(x[i + 6], x[i + 7])};
            *reinterpret_cast<uint4 *>(box + piece_of_row(row, (c % COLUMNS + i) / 8)) = piece;
        }
    }
}

__device__ __forceinline__ void run_correction(Barriers &barriers, const Tiles &tiles, const Problem &p)
{
    const int mine = threadIdx.x % WARPGROUP;
    int step = 0;
    for (int round = 0, index = blockIdx.x; index >= 0; index = barriers.schedule.tile_after(round++)) {
        const RowTile tile = row_tile(index, p);
        // The first P V of the round begins O anew: the last round's O has been read.
        before_arrival();
        for (int t = 0; t < 2; ++t) barriers.rows[t].P_ready.arrive();

        for (const int last = step + tile.key_tiles - 1; step < last; ++step) {
#pragma unroll 1
            for (int t = 0; t < 2; ++t) {
                RowBarriers &rows = barriers.rows[t];
                rows.growth.wait_until_full(step);
                after_wait();
                const float growth = barriers.growth[t][mine];
                rows.growth.release();
                if (__any_sync(0xffffffff, growth != 1.0f)) rescale(barriers.O(t) + lanes_of_warp(), growth);
                before_arrival();
                rows.P_ready.arrive();
            }
        }
        const bool has_notes = barriers.inspection.wait_for_notes(round);
#pragma unroll 1
        for (int t = 0; t < 2; ++t) {
            RowBarriers &rows = barriers.rows[t];
            rows.growth.wait_until_full(step);
            const float l = barriers.growth[t][mine];
            rows.growth.release();
            rows.O_ready.wait_for(round);
            after_wait();
            barriers.output.wait_until_empty(2 * round + t);
            const int end = p.end_key(tile.first_row + t * ROWS + mine);
            stage_row(tiles.O, mine, barriers.O(t) + lanes_of_warp(), l, has_notes, end, barriers.inspection);
            publish_to_async();
            barriers.output.publish();
        }
        barriers.inspection.release_notes();
        ++step;
    }
    before_arrival();
    barriers.finished.arrive();
}
