// FlashAttention-4, forward pass: Zadouri et al. 2026, arXiv 2603.05451. Two tiles of 128 rows take turns: while the
// tensor cores multiply for one, the softmax of the other is computed. Each role is a warp or a warpgroup of its own: load,
// products and store below, softmax in softmax.cuh, correction in correction.cuh. Sums are in tensor memory. Limits is a type that
// the plan chooses.

constexpr int SOFTMAX_REGISTERS = 192, CORRECTION_REGISTERS = 64, OTHER_REGISTERS = 64;  // per thread
constexpr int THREADS = 4 * WARPGROUP;
constexpr int ALLOCATED = 512;  // columns: all of them, for S_0, S_1, O_0 and O_1

// The warps of the last warpgroup.
enum Warp { PRODUCTS = 12, LOAD, STORE, INSPECT };

// S_t = Q_t K^T.
__device__ __forceinline__ void multiply_Q_Kt(unsigned S, unsigned Q_tile, unsigned K_tile)
{
    const u64 Q = factor_along_rows(Q_tile), K = factor_along_rows(K_tile);
#pragma unroll
    for (int k = 0; k < D / DEPTH; ++k)
        multiply_shared(S, Q + steps_along<ROWS>(k), K + steps_along<BC>(k), product_of(BC, false), k > 0);
}

// O_t (+)= P_t V.
__device__ __forceinline__ void multiply_P_V(unsigned O, unsigned P, unsigned V_tile, bool adds)
{
    const u64 V = factor_across_rows<BC>(V_tile);
#pragma unroll
    for (int k = 0; k < BC / DEPTH; ++k)
        multiply_tensor(O, P + k * WORDS_PER_DEPTH, V + steps_across(k), product_of(D, true), adds || k > 0);
}

// By one thread. Products are carried out in the order in which they are issued: S of the next tile of keys may take the columns
// of a P that is still multiplied.
__device__ __forceinline__ void run_products(Barriers &barriers, const Tiles &tiles, const Problem &p)
{
    Slots<STAGES> &keys = barriers.keys;
    const auto release = [&](int item) { arrive_behind_products(keys.are_empty[keys.slot(item)]); };
    const auto scores = [&](int t, int step) {
        multiply_Q_Kt(barriers.S(t), tiles.rows(t), tiles.item(item_of_K(step)));
        arrive_behind_products(barriers.rows[t].S_ready.barrier);
    };
    const auto output = [&](int t, int step, bool adds) {
        barriers.rows[t].P_ready.wait_for(step);
        after_wait();
        multiply_P_V(barriers.O(t), barriers.S(t), tiles.item(item_of_V(step)), adds);
    };
    int step = 0, inspected = 0;
    for (int round = 0, index = blockIdx.x; index >= 0; index = barriers.schedule.tile_after(round++)) {
        const RowTile tile = row_tile(index, p);
        const auto wait_for_V = [&](int j) {
            keys.wait_until_full(item_of_V(step));
            if (tile.is_inspected(j)) barriers.inspection.wait_until_clean(inspected++);
        };
        // S of the first tile of keys.
        keys.wait_until_full(item_of_K(step));
#pragma unroll 1
        for (int t = 0; t < 2; ++t) {
            barriers.rows[t].Q.wait_until_full(round);
            scores(t, step);
        }
        release(item_of_K(step));
        // P V of this tile of keys and S of the next one, in turns.
        for (int j = tile.key_tiles - 1; j > 0; --j, ++step) {
            const bool adds = j < tile.key_tiles - 1;
            wait_for_V(j);
#pragma unroll 1
            for (int t = 0; t < 2; ++t) {
                output(t, step, adds);
                if (t == 0) keys.wait_until_full(item_of_K(step + 1));
                if (t == 1) release(item_of_V(step));
                scores(t, step + 1);
            }
            release(item_of_K(step + 1));
        }
        // P V of the last one, when Q is not needed any more.
        for (int t = 0; t < 2; ++t) arrive_behind_products(barriers.rows[t].Q.is_empty.barrier);
        wait_for_V(0);
#pragma unroll 1
        for (int t = 0; t < 2; ++t) {
            output(t, step, tile.key_tiles > 1);
            arrive_behind_products(barriers.rows[t].O_ready.barrier);
        }
        release(item_of_V(step));
        ++step;
    }
}

// By one thread: tiles in the order in which products ask for them.
__device__ __forceinline__ void run_load(Barriers &barriers, const Tiles &tiles, const TensorMap &Q, const TensorMap &K,
                                         const TensorMap &V, const Problem &p)
{
    Slots<STAGES> &keys = barriers.keys;
    int step = 0;
    for (int round = 0, index = blockIdx.x; index >= 0; index = barriers.schedule.tile_after(round++)) {
        const RowTile tile = row_tile(index, p);
        const auto load_rows = [&](int t) {
            Handover &rows = barriers.rows[t].Q;
            rows.wait_until_empty(round);
            arrive_and_expect(rows.is_full.barrier, ROW_TILE_BYTES);
            load_tile<ROWS>(tiles.rows(t), Q, tile.first_row + t * ROWS, tile.head, rows.is_full.barrier);
        };
        const auto load_keys = [&](int item, const TensorMap &map, int j) {
            keys.wait_until_empty(item);
            keys.expect(item, KEY_TILE_BYTES);
            load_tile<BC>(tiles.item(item), map, j * BC, tile.head / p.heads_per_kv_head, keys.full(item));
        };
        for (int j = tile.key_tiles - 1; j >= 0; --j, ++step) {
            const bool is_first = j == tile.key_tiles - 1;
            if (is_first) load_rows(0);
            load_keys(item_of_K(step), K, j);
            if (is_first) load_rows(1);
            load_keys(item_of_V(step), V, j);
        }
    }
}

// By one thread, which is the scheduler, too: what it stores comes at the end of a tile of rows.
__device__ __forceinline__ void run_store(Barriers &barriers, const Tiles &tiles, const TensorMap &O, const Problem &p)
{
    for (int round = 0, index = blockIdx.x; index >= 0; index = barriers.schedule.tile_after(round++)) {
        barriers.schedule.request_next(round);
        const RowTile tile = row_tile(index, p);
#pragma unroll 1
        for (int t = 0; t < 2; ++t) {
            barriers.output.wait_until_full(2 * round + t);
            store_tile<ROWS>(tiles.O, O, tile.first_row + t * ROWS, tile.head);
            wait_until_read();
            barriers.output.release();
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void fa4(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap O, float *__restrict__ lse, int q_len, int kv_len, int heads, int heads_per_kv_head,
    float tau2, int sign, Limits limits)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    const unsigned first = (shared_address(dynamic) + 1023) / 1024 * 1024;
    const Tiles tiles = {first, first + 2 * ROW_TILE_BYTES, first + 3 * ROW_TILE_BYTES};
    const Problem p = {q_len, kv_len, heads, heads_per_kv_head, limits};
    const int warp = uniform(threadIdx.x / 32);
    const bool leads = threadIdx.x % 32 == 0;

    if (threadIdx.x == 0) barriers.init();
    if (warp == PRODUCTS) allocate_columns<ALLOCATED>(barriers.tensor_memory);
    before_arrival();
    __syncthreads();
    after_wait();

    // setmaxnreg counts where each role is one branch.
    if (warp < 8) {
        take_registers<SOFTMAX_REGISTERS>();
        run_softmax(warp / 4, barriers, lse, p, tau2, sign);
    } else if (warp < PRODUCTS) {
        keep_registers<CORRECTION_REGISTERS>();
        run_correction(barriers, tiles, p);
    } else {
        keep_registers<OTHER_REGISTERS>();
        if (warp == PRODUCTS) {
            if (leads) {
                run_products(barriers, tiles, p);
                barriers.finished.wait_for(0);
            }
            __syncwarp();
            free_columns<ALLOCATED>(barriers.tensor_memory);
        } else if (warp == LOAD && leads) {
            run_load(barriers, tiles, Q, K, V, p);
        } else if (warp == STORE && leads) {
            run_store(barriers, tiles, O, p);
        } else if (warp == INSPECT) {
            barriers.inspection.run(barriers.schedule, barriers.keys, tiles, p);
        }
    }
}
