// Gradients of attention on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 2, lines 5 to 19, whose numbers are below.
// What surrounds them is in prepare.cu and round.cu, what a tile of rows takes in scoring.cuh, which is put before this text
// with what it needs. Limits, Dropout, DQ, ScoreTerms, TileOrder, Sequences (mirrored), Layout and GradientLayout are types
// that the plan chooses. The Numba twin is numba_keys.py.

// What a thread copies at once.
constexpr int AT_ONCE = UNIT < Layout::ALIGNED ? UNIT : Layout::ALIGNED;

// Lines 8 and 9: load Q_i, dO_i, L_i, D_i.
struct RowsInMemory {
    const stored *Q, *dO;
    const float *L, *delta;
    Layout layout;
    GradientLayout gradients;

    __device__ __forceinline__ void copy(const KeyBlock &block, const Turn &turn) const
    {
        const int rows = min(BR, block.q_len - turn.first_row);
        const int row = RowsIn<Sequences>::row(turn.first_row);
        const size_t first = (block.first_head() + turn.head) * block.all_rows + row;
        const unsigned Q_tile = block.chip.Q_tile(turn.stage());
        const unsigned head = blockIdx.x * block.group + turn.head;
        copy_tile_anew<BR>(Q_tile, layout.Q_rows(Q, first, block.sequence.batch, head, row), rows);
        copy_tile_anew<BR>(Q_tile + ROWS_BYTES, gradients.O_rows(dO, first, block.sequence.batch, head, row), rows);
        const int thread = thread_anew();
        if (thread < BR) {
            const unsigned L_at = shared_address(block.chip.L(turn.stage(), thread));
            const size_t from = thread < rows ? first + thread : first;
            copy_async<4>(L_at, L + from, thread < rows);
            copy_async<4>(L_at + BR * sizeof(float), delta + from, thread < rows);
        }
    }
};

// In a tile with a row that does not see all keys, Q_i and dO_i must be finite: products of 0 are not. L_i is NaN where they
// are not, and with it what the row adds where it sees a key.
__device__ __forceinline__ void clear_rows_not_finite(const Chip &chip, const Turn &turn)
{
    unsigned char *const Q_tile = chip.K_tile + SHARED_ROWS + turn.stage() * 2 * ROWS_BYTES, *const dO_tile = Q_tile + ROWS_BYTES;
    if (__syncthreads_or(copied_not_finite_anew<BR, AT_ONCE>(Q_tile) || copied_not_finite_anew<BR, AT_ONCE>(dO_tile))) {
        const int r = threadIdx.x;
        if (r < BR) {
            const bool in_Q = clear_not_finite(Q_tile, r), in_dO = clear_not_finite(dO_tile, r);
            if (in_Q || in_dO) *chip.L(turn.stage(), r) = __int_as_float(0x7fffffff);
        }
        __syncthreads();
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void bwd_mma_of_keys(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    const stored *__restrict__ dO, const float *__restrict__ L, const float *__restrict__ delta, stored *__restrict__ dK,
    stored *__restrict__ dV, int q_len, int kv_len, int group, float tau, float tau2, Limits limits, Dropout dropout, DQ dQ,
    ScoreTerms terms, TileOrder order, Sequences sequences, Layout layout, GradientLayout gradients)
{
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ Turns::Numbers numbers;
    __shared__ bool keys_not_finite;
    const Chip chip(shared);

    // Line 5: the block owns K_j, V_j, dK_j and dV_j of one head. L is lse times log2 e, D = rowsum(dO o O), tau2 is tau times
    // log2 e, or what S is multiplied by before score terms. The grid is (heads of K and V, tiles of keys, batch): the first
    // keys, which most rows see where causal, of all heads start first. Rows and keys count from the beginning of a sequence.
    const int first_key = blockIdx.y * BC, all_rows = q_len, all_keys = kv_len;
    const auto sequence = sequences.at(blockIdx.z, first_key, kv_len, q_len);
    if (!sequence.has_rows()) return;
    kv_len = sequence.q_len, q_len = sequence.kv_len;  // it is mirrored
    const size_t kv_head = sequence.number((size_t)blockIdx.z * gridDim.x + blockIdx.x, blockIdx.x);
    const int keys = min(BC, kv_len - first_key);
    const RowBlock own_keys = {(int)sequence.batch, (int)blockIdx.x, (int)blockIdx.y, (int)gridDim.y, first_key, keys};
    const auto seeing = limits.of_block<BC>(own_keys, kv_len, q_len);  // rows, which are what a key sees in mirrored limits
    const KeyBlock block = {chip, seeing.run, &keys_not_finite, first_key, q_len, group, tau2, dropout, terms, kv_len,
                            sequence, all_rows};
    const RowsInMemory rows = {Q, dO, L, delta, layout, gradients};
    const Turns turns(numbers, order);
    if (threadIdx.x == 0) {
        turns.note(numbers, seeing.first_key, seeing.end_key, q_len, group);
        RowsIn<Sequences>::note(sequence);
    }

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) clear_tiles(shared, SHARED_STATS);
    __syncthreads();

    // Line 6: load K_j, V_j, if any row sees one of the keys. Line 7: dK_j = 0, dV_j = 0, in registers, not yet times tau.
    Sums sums[SUMS];
    clear(sums);
    if (turns.count() > 0) {
        const int key = sequence.row(first_key);
        const size_t first_kv = kv_head * all_keys + key;
        copy_tile<BC>(chip.K_tile, layout.K_rows(K, first_kv, sequence.batch, blockIdx.x, key), keys);
        copy_tile<BC>(chip.V_tile, layout.V_rows(V, first_kv, sequence.batch, blockIdx.x, key), keys);
        rows.copy(block, turns.first());
        commit_copies();
        wait_for_copies<0>();
        const bool found = __syncthreads_or(copied_not_finite<BC, AT_ONCE>(chip.K_tile));
        if (threadIdx.x == 0) keys_not_finite = found;
        if (found && threadIdx.x < BC) move_not_finite(chip.K_tile, chip.V_tile, threadIdx.x);
    }

    // Line 8: for all tiles of rows with one that sees some key, of all heads that share the keys.
#pragma unroll 1
    for (Turn turn = turns.first(); turn.number < turns.count(); turn = turns.after(turn)) {
        // Q_i and dO_i have come, and nobody reads the tiles any more that the next copies overwrite, nor weights of two
        // turns before.
        const int last_row = min(turn.first_row + BR, q_len) - 1;
        const auto hidden = turns.pairs(turn);
        const bool all_seen = all_see(block.seeing, {turn.first_row, last_row, first_key, BC}, hidden);
        wait_for_copies<0>();
        if (!all_seen && turns.scores(turn)) {
            clear_rows_not_finite(chip, turn);
        } else {
            __syncthreads();
        }
        if (turn.number + 1 < turns.count() - LAG) rows.copy(block, turns.after(turn));
        turns.copy_entry(turn, q_len);
        commit_copies();
        turns.compute(hidden, turn, first_key, q_len, kv_len);

        // Lines 10 to 16. Half of eight warps score while the others sum: exponentials, and products, at the same time.
        const int scores_in = HANDS_WEIGHTS && thread_anew() >= THREADS / 2;
#pragma unroll(HANDS_WEIGHTS ? 1 : 2)
        for (int half = 0; half < 1 + LAG; ++half) {
            if (half == scores_in) {
                if (turns.scores(turn)) score(sums, block, turn, all_seen && !keys_not_finite, hidden);
            } else if (turn.number > 0) {
                sum(sums, block, turns.before(turn), dQ);
            }
        }
    }

    // Line 18: write dK_j, which is times tau, and dV_j, gathered where K_j and V_j were.
    __syncthreads();
    const Share own = share_of(threadIdx.x);
    if constexpr (HANDS_WEIGHTS) {
        gather(own.of_dV ? chip.V_tile : chip.K_tile, sums[0], own.of_dV ? dropout.factor() : tau, own);
    } else {
        gather(chip.K_tile, sums[SUMS - 1], tau, own);
        gather(chip.V_tile, sums[0], dropout.factor(), own);
    }
    __syncthreads();
    const int key = sequence.row(first_key);
    const size_t first_kv = kv_head * all_keys + key;
    store_tile<BC>(gradients.K_rows(dK, first_kv, sequence.batch, blockIdx.x, key), chip.K_tile, keys);
    store_tile<BC>(gradients.V_rows(dV, first_kv, sequence.batch, blockIdx.x, key), chip.V_tile, keys);
}
