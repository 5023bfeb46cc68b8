// FlashAttention-3, backward pass: Shah et al. 2024, arXiv 2407.08608, algorithm 3 (roles), whose loop is lines 8 to 16 of
// Dao 2023, arXiv 2307.08691, algorithm 2; line numbers below are those. What surrounds it is in _mma_backward/prepare.cu and
// round.cu, what a tile of rows takes in scoring.cuh and products.cuh. Limits, Stats and Order are types that the plan chooses.
// The Numba twin is numba_kernel.py.

// What the consumers of a block need, K_j and V_j of one head.
struct KeyBlock {
    Chip chip;
    RowsOfKey seeing;
    Visits visits;
    int first_head;  // of the query heads that share the keys, counted through the batch
    int first_key, q_len;
    float tau2;  // tau times log2 e
};

// Line 15, dQ_i = dQ_i + dS K_j, for the consumer's part, of N elements of a thread, of the tile that the block visits as its
// `n`-th. `begin_others` begins PENDING more products, which keep tensor cores busy while dQ_i leaves the registers.
template <int N, int PENDING, class BeginOthers>
__device__ __forceinline__ void add_part_of_dQ(const KeyBlock &block, Barriers &barriers, int n, const Visit &visit, int consumer,
                                               float *dQ, const BeginOthers &begin_others)
{
    float dQ_i[N];
    barriers.dS.wait_until_full(n);
    multiply_dS_K(dQ_i, block.chip.dS_tile(n), block.chip.K_tile, consumer);
    begin_others();
    wait_for_products<PENDING>(dQ_i);
    if (threadIdx.x % 32 == 0) barriers.dS.release(n);
    float *const dQ_head = dQ + (block.first_head + visit.head) * floats_of_head(unknown(block.q_len));
    add_dQ(dQ_i, block.chip, barriers, n, dQ_head, visit.first_row(), block.q_len);
}

template <int PENDING, class BeginOthers>
__device__ __forceinline__ void add_to_dQ(const KeyBlock &block, Barriers &barriers, int n, const Visit &visit, int consumer,
                                          float *dQ, const BeginOthers &begin_others)
{
    if (FIRST_COLUMNS == LAST_COLUMNS || consumer == 0) {
        add_part_of_dQ<FIRST_COLUMNS / 2, PENDING>(block, barriers, n, visit, consumer, dQ, begin_others);
    } else {
        add_part_of_dQ<LAST_COLUMNS / 2, PENDING>(block, barriers, n, visit, consumer, dQ, begin_others);
    }
}

// A consumer warpgroup. Lines 7 to 16 for its keys, and its part of dQ_i.
__device__ __forceinline__ void consume(Sums &dK, Sums &dV, const KeyBlock &block, Barriers &barriers, int consumer, float *dQ)
{
    const Chip &chip = block.chip;
    const bool leads = threadIdx.x % 32 == 0;  // its warp
    const int first_key = block.first_key + 64 * consumer;
    const unsigned own_keys = 64 * consumer * ROW_BYTES;
    barriers.K.wait_until_full(0);
    barriers.V.wait_until_full(0);
    bool keys_not_finite = false;
    KeptKeys K;
    keep_keys(K, chip.K_tile + own_keys);
    Visit visit = Visit::first(block.visits), before = visit;
#pragma unroll 1
    for (; visit.number < block.visits.count; visit.next(block.visits)) {
        const int n = uniform(visit.number), row = visit.first_row();
        Scores S, dP;
        Weights P, dS;
        barriers.Q.wait_until_full(n);
        const Pairs pairs = {row, min(row + BR, block.q_len) - 1, block.first_key, BC};
        const bool cut = !all_see(block.seeing, pairs);
        RowStats L;
        if (L_BEFORE_S) L.load(chip.L(n));
        if constexpr (D_BEFORE_DP) {
            barriers.dO.wait_until_full(n);
            begin_with_D(dP, chip.delta(n));
        }
        multiply_K_Qt(S, K, chip.K_tile + own_keys, chip.Q_tile(n));    // line 10: S^T = K_j Q_i^T
        if constexpr (D_BEFORE_DP) {
            add_rows(dP, chip.V_tile() + own_keys, chip.dO_tile(n));
        } else {
            barriers.dO.wait_until_full(n);
            multiply_rows(dP, chip.V_tile() + own_keys, chip.dO_tile(n));  // line 13: dP^T = V_j dO_i^T
        }
        wait_for_products<1>(S);
        bool not_finite = keys_not_finite;
        if (cut) {
            wait_for_products<0>(dP);
            not_finite |= clear_not_finite(chip, n, S, dP, keys_not_finite);
        }
        if (cut || !L_BEFORE_S) L.load(chip.L(n));
        exponentiate(S, L, block.tau2);                                 // line 11: P = exp(tau S - L_i)
        if (cut) mask(S, block.seeing, first_key, row);
        wait_for_products<0>(dP);
        multiply_P(dP, S, chip.delta(n));                               // line 14: dS = P o (dP - D_i)
        if (not_finite) {
            mask(dP, block.seeing, first_key, row);
            bring_NaN(S, dP);
        }
        round_weights(P, S);
        round_weights(dS, dP);
        barriers.dS.wait_until_empty(n);
        store_dS(chip.dS_tile(n), consumer, dS);
        publish_to_async();
        __syncwarp();
        if (leads) barriers.dS.fill(n);
        const auto add_to_dV_and_dK = [&] {
            add_product(dV, P, chip.dO_tile(n));                        // line 12: dV_j = dV_j + P^T dO_i
            add_product(dK, dS, chip.Q_tile(n));                        // line 16: dK_j = dK_j + dS^T Q_i
        };
        if (n > 0 && has_dQ(n - 1, consumer)) {
            add_to_dQ<2>(block, barriers, n - 1, before, consumer, dQ, add_to_dV_and_dK);
        } else {
            add_to_dV_and_dK();
        }
        wait_for_products<1>(dV);
        if (leads) barriers.dO.release(n);
        wait_for_products<0>(dK);
        if (leads) barriers.Q.release(n);
        before = visit;
    }
    const int last = block.visits.count - 1;
    if (has_dQ(last, consumer)) add_to_dQ<0>(block, barriers, last, before, consumer, dQ, [] {});
    if (leads && !Order::IS_FIXED) wait_until_read();
}

// The producer, one lane: K_j and V_j, and all Q_i and dO_i that the block visits.
__device__ __forceinline__ void produce(const KeyBlock &block, Barriers &barriers, const TensorMap &Q, const TensorMap &K,
                                        const TensorMap &V, const TensorMap &dO, const float *L, const float *delta, int kv_head)
{
    const Chip &chip = block.chip;
    const int padded = Stats::rows(block.q_len);
    Visit visit = Visit::first(block.visits);
#pragma unroll 1
    for (; visit.number < block.visits.count; visit.next(block.visits)) {
        const int n = visit.number, row = visit.first_row();
        const int head = block.first_head + visit.head;
        const size_t first = (size_t)head * padded + row;
        if (n == 0) {
            barriers.K.expect(0, KEYS_BYTES);
            load_tile<BC>(chip.K_tile, K, block.first_key, kv_head, barriers.K.full(0));
        }
        barriers.Q.wait_until_empty(n);
        barriers.Q.expect(n, ROWS_BYTES + STAT_BYTES);
        load_tile<BR>(chip.Q_tile(n), Q, row, head, barriers.Q.full(n));
        load_run(chip.L(n), L + first, STAT_BYTES, barriers.Q.full(n));
        if (n == 0) {
            barriers.V.expect(0, KEYS_BYTES);
            load_tile<BC>(chip.V_tile(), V, block.first_key, kv_head, barriers.V.full(0));
        }
        barriers.dO.wait_until_empty(n);
        barriers.dO.expect(n, ROWS_BYTES + STAT_BYTES);
        load_tile<BR>(chip.dO_tile(n), dO, row, head, barriers.dO.full(n));
        load_run(chip.delta(n), delta + first, STAT_BYTES, barriers.dO.full(n));
    }
}

// One thread, if the order is fixed. Line 15 in memory: dQ_i of all tiles that the block visits, of each once those of the tile
// of keys before, which visits `before`, have been added.
__device__ __forceinline__ void add_in_order(const KeyBlock &block, Barriers &barriers, const Order &order, const Visits &before,
                                             float *dQ)
{
    const int number = blockIdx.y, first_that_waits = before.tiles > 0 ? before.first_tile : 1;
    Visit visit = Visit::first(block.visits);
#pragma unroll 1
    for (; visit.number < block.visits.count; visit.next(block.visits)) {
        const int n = visit.number, row = visit.first_row(), q_len = unknown(block.q_len);  // there are few registers
        const unsigned head = block.first_head + visit.head;
        int *const turn = order.turn(head, row, q_len);
        barriers.wait_until_dQ_is_full(n);
        if (visit.tile >= first_that_waits) wait_for_turn(turn, number);
        add_parts_of_dQ(block.chip, n, dQ + head * floats_of_head(q_len), row, q_len);
        wait_until_read();
        barriers.release_dQ(n);
        pass_turn(turn, number + 1);
    }
}

// L is lse times log2 e, D = rowsum(dO o O). The grid is (heads of K and V, tiles of keys, batch): the first keys, which most
// rows see where causal, of all heads start first.
extern "C" __global__ __launch_bounds__(THREADS, 1) void bwd_fa3(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap dO, const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
    const float *__restrict__ L, const float *__restrict__ delta, float *__restrict__ dQ, int q_len, int kv_len, int group,
    float tau, float tau2, Limits limits, Order order)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    const Chip chip = {(shared_address(dynamic) + 1023) / 1024 * 1024};

    // Line 5: the block owns K_j, V_j, dK_j and dV_j of one head.
    const int kv_head = blockIdx.z * gridDim.x + blockIdx.x, first_key = blockIdx.y * BC;
    const RowBlock own = {(int)blockIdx.z, (int)blockIdx.x, (int)blockIdx.y, (int)gridDim.y, first_key,
                          min(BC, kv_len - first_key)};
    if (threadIdx.x == 0) barriers.init();
    const auto seeing = limits.of_block<BC>(own, kv_len, q_len);  // rows, which are what a key sees in mirrored limits
    const Visits visits = Visits::of(seeing.first_key, seeing.end_key, group);
    const KeyBlock block = {chip, seeing.run, visits, kv_head * group, first_key, q_len, tau2};
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        keep_registers<24>();
        if (threadIdx.x == 0) {
            produce(block, barriers, Q, K, V, dO, L, delta, kv_head);
        } else if (Order::IS_FIXED && threadIdx.x == ADDER && visits.count > 0) {
            const auto rows = limits.of_sequence(blockIdx.z, kv_len, q_len);
            const bool is_first = blockIdx.y == 0;
            const Visits before = is_first ? Visits{} : Visits::of(rows.first(first_key - BC), rows.end(first_key - 1), group);
            add_in_order(block, barriers, order, before, dQ);
        }
    } else {
        take_registers<240>();
        const int consumer = uniform(threadIdx.x / WARPGROUP) - 1;
        // Line 7: dK_j = 0, dV_j = 0, in registers, not yet times tau.
        Sums dK_j, dV_j;
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 2; ++e) dK_j[e] = dV_j[e] = 0.0f;
        if (visits.count > 0) consume(dK_j, dV_j, block, barriers, consumer, dQ);
        // Line 18: write dK_j, which is times tau, and dV_j, by way of where V_j and K_j were.
        write_keys(dV_j, 1.0f, chip.V_tile(), consumer, dV, first_key, kv_head);
        sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
        write_keys(dK_j, tau, chip.K_tile, consumer, dK, first_key, kv_head);
        if (threadIdx.x % WARPGROUP == 0) wait_until_read();
    }
}
