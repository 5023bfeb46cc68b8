// FlashAttention-3 with factors of 8 bits, forward pass: Shah et al. 2024, arXiv 2407.08608, section 3.3. Roles and loops are
// as in fa3/kernel.cu, with the line numbers of algorithms 1 and 2; Q, K and V are e4m3, as factors.cu leaves them, and so is
// P, so that all products take half as long. The pipeline and its producer are in _hopper/pipeline.cuh, tiles of rows and of
// keys in row_tiles.cuh and key_tiles.cuh, softmax in softmax.cuh. Limits, TileOrder and Turns are types that the plan chooses.

constexpr int WARPS = WARPGROUP / 32;
constexpr int KV_BYTES = BC * D;  // of K_j, and of V_j

// Registers per thread, of 65536 on a multiprocessor: addresses for the producer, S, P and O for consumers.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 160;

// P is 2^WEIGHT_OFFSET times exp(tau S - m), so that it uses more of the numbers of e4m3. m may be less than the maximum,
// so P is LARGEST_WEIGHT at most, e4m3's largest number, and 2^-9 at least.
constexpr int WEIGHT_OFFSET = 6, WEIGHT_HEADROOM = 2;
constexpr float LARGEST_WEIGHT = 448.0f;
constexpr float SMALLEST_FLOAT = 1.175494351e-38f, LARGEST_FLOAT = 3.402823466e38f;  // normal ones
constexpr float LARGEST_ADDEND = LARGEST_FLOAT / TN;  // a thread has TN / 2 fours of a row to add up

typedef Pipeline<1, Inspection<false>> Barriers;  // Q_i comes at once
typedef TileBuffer<KV_BYTES> KeyBuffer;

// A consumer warpgroup.
struct Consumer {
    int number;
    bool leads;  // this thread, for its warp
    bool stores;  // this thread, for its warpgroup
    unsigned Q_tile, Q_rows, O_rows;
    KeyBuffer K, V;
};

// Q and K before they were rounded.
struct Originals {
    const stored *Q, *K;
    int head_dim;
    float sign;  // of tau
};

// Algorithm 2, lines 3 to 19: O_i, m and l of the warpgroup's rows, over the tiles of keys that the tile of rows visits, from
// the last to the first. The lane's rows are row[0] and row[1]; `step` counts the block's tiles of keys.
__device__ __forceinline__ void attend(Rows &rows, int &step, const Consumer &consumer, const RowTile &tile,
                                       const int (&row)[2], const Problem &p, float tau2, bool infinite_K,
                                       const Originals &originals, Slots<1> &Q)
{
    const auto &keys = tile.keys;
    const WholeTiles whole = whole_tiles<1>(tile, p);
    const auto lane = p.limits.of_lane(row, tile.rows.batch, p.q_len, p.kv_len);
    const auto seen = [&](int j) { return keys_seen(lane, j * BC, NoBits()); };
    Scores S;
    ByteWeights P;
    PerRow correction;
    bool corrects = false;  // in some row of the warp
    int j = keys.end - 1;
    const int first_step = step;

    const auto add_infinities_of_K = [&] {
        const size_t kv_head = tile.pack / p.packs.per_kv_head;
        add_infinities(S, originals.Q + ((size_t)tile.pack * p.q_len + row[0]) * originals.head_dim,
                       originals.K + (kv_head * p.kv_len + j * BC) * originals.head_dim, p.q_len - row[0],
                       p.kv_len - j * BC, originals.head_dim, originals.sign);
    };
    const auto softmax = [&] {
        mask(S, seen(j));
        exponentiate<WEIGHT_OFFSET, WEIGHT_HEADROOM>(rows, S, correction, Powers{tau2});
        corrects = __any_sync(0xffffffff, correction[0] != 1.0f || correction[1] != 1.0f);
    };
    // Lines 14 to 16: from softmax of a tile to P V of it, once P V of the tile before is done. It stands at the beginning of
    // the loops: in the middle the compiler waits for P V first, and has no softmax beside it.
    const auto settle = [&](int j) {
        wait_for_products<0>(rows.O);
        if (consumer.leads && step > first_step) consumer.V.release(step - 1);
        if (corrects) correct(rows.O, correction);
        round_weights(P, S);
        // Rows must not meet NaN in V_j of a key that they do not see.
        if (whole.has(j)) return;
        consumer.V.wait_until_full(step);
        take_nans(rows.O, shared_pointer(consumer.V.tile(step)), seen(j));
    };

    // Lines 3 to 6: S_cur = Q_i K_j^T of the first tile, alone; m, P_cur and l. It may reach beyond the last key.
    consumer.K.wait_until_full(step);
    Turns::begin(consumer.number);
    multiply_Q_Kt(S, consumer.Q_rows, consumer.K.tile(step));
    Turns::end(consumer.number);
    wait_for_products<0>(S);
    if (consumer.leads) consumer.K.release(step);
    if (infinite_K) add_infinities_of_K();
    softmax();
    --j;

    // Lines 8 to 12: S_next of this tile and P_cur V of the one before are under way together, softmax beside P_cur V. Nothing
    // is waited for between the tile's weights and both products.
    const auto advance = [&] {
        consumer.K.wait_until_full(step + 1);                      // line 8
        consumer.V.wait_until_full(step);                          // line 10
        settle(j + 1);
        const int older = step++;
        Turns::begin(consumer.number);
        multiply_Q_Kt(S, consumer.Q_rows, consumer.K.tile(step));  // line 9
        add_P_V(rows.O, P, consumer.V.tile(older));                // line 11
        Turns::end(consumer.number);
        wait_for_products<1>(S);                                   // line 12
    };
    const auto visit = [&] {
        advance();
        if (consumer.leads) consumer.K.release(step);              // line 15, K
        softmax();                                                 // line 13
    };
    // Line 13 where all is seen: exponentials do not wait for the maximum. Mostly m stays; else P tells.
    const auto visit_whole = [&] {
        advance();
        PerRow sums;
        const float largest = exponentiate_with_m<WEIGHT_OFFSET>(rows, S, sums, tau2);
        corrects = __any_sync(0xffffffff, largest > LARGEST_WEIGHT);
        if (!corrects) {
            rows.l[0] += sums[0];
            rows.l[1] += sums[1];
        } else if (__any_sync(0xffffffff, largest > LARGEST_ADDEND)) {
            multiply_alone(S, consumer.Q_tile, consumer.K.tile(step));
            exponentiate<WEIGHT_OFFSET, WEIGHT_HEADROOM>(rows, S, correction, Powers{tau2});
        } else {
            raise_m<WEIGHT_OFFSET>(rows, S, sums, correction);
        }
        if (consumer.leads) consumer.K.release(step);
    };
    // One product after the other, where some of K is infinite, which leaves room for what that takes.
    const auto visit_slowly = [&] {
        settle(j + 1);
        const int older = step++;
        consumer.V.wait_until_full(older);
        Turns::begin(consumer.number);
        add_P_V(rows.O, P, consumer.V.tile(older));
        Turns::end(consumer.number);
        wait_for_products<0>(rows.O);
        consumer.K.wait_until_full(step);
        multiply_Q_Kt(S, consumer.Q_rows, consumer.K.tile(step));
        wait_for_products<0>(S);
        if (consumer.leads) consumer.K.release(step);
        add_infinities_of_K();
        softmax();
    };
    // Line 7. Tiles that all rows see whole are in a loop of their own.
    for (; infinite_K && j >= keys.first; --j) visit_slowly();
    for (; Limits::HIDES_LAST && j >= max(whole.to, keys.first); --j) visit();
    for (; j >= max(whole.from, keys.first); --j) visit_whole();
    for (; Limits::HIDES_FIRST && j >= keys.first; --j) visit();

    // Lines 18 and 19: P V of the last tile.
    if (consumer.leads) Q.release(0);
    settle(keys.first);
    consumer.V.wait_until_full(step);
    add_P_V(rows.O, P, consumer.V.tile(step));
    wait_for_products<0>(rows.O);
    if (consumer.leads) consumer.V.release(step);
    ++step;
}

// Algorithm 1, lines 13 to 25, for one tile of rows after the other.
__device__ __forceinline__ void consume(Barriers &barriers, const Consumer &consumer, const TensorMap &O,
                                        float *__restrict__ lse, const Problem &p, float tau2,
                                        const int *__restrict__ scales, const Originals &originals)
{
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    Slots<1> &Q = barriers.Q[0];
    Turns::start(consumer.number);
    for (int round = 0, step = 0;; ++round) {
        const int index = barriers.next_tile(round);
        if (index >= p.packs.tiles()) break;
        const RowTile tile = row_tile(index, p);
        const int head = tile.pack, kv_head = head / p.packs.per_kv_head, kv_heads = p.packs.count / p.packs.per_kv_head;
        const int first_row = tile.rows.first_row + 64 * consumer.number;
        const int row[2] = {first_row + 16 * warp + lane / 4, first_row + 16 * warp + lane / 4 + 8};

        // Scales of Q, of K and of V are stored one behind the other, see factors.cu. S is multiplied by those of Q and K, and
        // by neither 0 nor infinity: S may be 0, and -infinity behind a mask.
        const int of_Q = scales[head], of_K = scales[p.packs.count + kv_head];
        const float2 scale_of_S = powers_of_two(max(-250, min((of_Q >> 1) + (of_K >> 1), 250)));
        const float tau2_S = fmaxf(SMALLEST_FLOAT, fminf(tau2 * scale_of_S.x * scale_of_S.y, LARGEST_FLOAT));

        // Line 13: O_i = 0, l = 0, m = -inf, in registers. Line 14: wait for Q_i. Lines 15 to 23: algorithm 2.
        Rows rows;
        clear(rows);
        Q.wait_until_full(round);
        if (tile.sees_some_key()) {
            attend(rows, step, consumer, tile, row, p, tau2_S, of_K & 1, originals, Q);
        } else if (consumer.leads) {
            Q.release(round);
        }

        // Line 24: O_i = diag(l)^-1 O_i, L_i = m + log(l). A row that saw nothing has l = 0: its O stays 0, its L is -inf. l is
        // that of P, and of O_i the scale of V is left.
        const float2 scale_of_V = powers_of_two(scales[p.packs.count + kv_heads + kv_head] >> 1);
        PerRow factor;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float l = quad_sum(rows.l[h]);
            factor[h] = l == 0.0f ? 0.0f : scale_of_V.x / l;
            if (lane % 4 == 0 && row[h] < p.q_len) {
                lse[(size_t)head * p.q_len + row[h]] = (rows.m[h] - WEIGHT_OFFSET) * LN_2 + logf(l);
            }
        }
        // Line 25: write O_i, by way of shared memory, once the O_i before has left it.
        if (consumer.stores) wait_until_read();
        sync_threads(OWN + consumer.number, WARPGROUP);
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 2; ++e) rows.O[e] *= scale_of_V.y;
        stage_output(rows.O, factor, consumer.O_rows);
        publish_to_async();
        sync_threads(OWN + consumer.number, WARPGROUP);
        if (consumer.stores) store_rows<BR>(consumer.O_rows, O, first_row, head);
    }
    if (consumer.stores) wait_until_read();
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void fa3_fp8(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap O, const int *__restrict__ scales, const stored *__restrict__ own_Q,
    const stored *__restrict__ own_K, float *__restrict__ lse, int q_len, int kv_len, int head_dim, Packs packs, float tau2,
    float sign, Limits limits, TileOrder order)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    const unsigned O_tile = (shared_address(dynamic) + 1023) / 1024 * 1024;
    const unsigned Q_tile = O_tile + BR * D * (int)sizeof(stored);
    const KeyBuffer K_tiles = {barriers.K, Q_tile + QTile::BYTES}, V_tiles = {barriers.V, K_tiles.tiles + STAGES * KV_BYTES};
    const Problem p = {q_len, kv_len, packs.of_one(), limits, order};

    // Line 1.
    if (threadIdx.x == 0) barriers.init(WARPS);
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        // Lines 2 to 10.
        keep_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            const auto load_Q = [&](int, const RowTile &tile, u64 &full) {
                QTile::load(Q_tile, Q, 0, tile.rows.first_row, tile.pack, full);
            };
            const auto load_K = [&](unsigned to, const RowTile &tile, int first_key, u64 &full) {
                KTile::load(to, K, 0, first_key, tile.kv_number(packs), full);
            };
            const auto load_V = [&](unsigned to, const RowTile &tile, int first_key, u64 &full) {
                VTile::load(to, V, first_key, 0, tile.kv_number(packs), full);
            };
            produce<QTile::BYTES>(barriers, K_tiles, V_tiles, p, load_Q, load_K, load_V);
        }
    } else {
        // Lines 11 to 26.
        take_registers<CONSUMER_REGISTERS>();
        const int number = uniform(threadIdx.x / WARPGROUP) - 1;
        const Consumer consumer = {number, threadIdx.x % 32 == 0, threadIdx.x % WARPGROUP == 0, Q_tile,
                             Q_tile + number * 64 * QTile::BOX, O_tile + number * 64 * ROW_BYTES, K_tiles, V_tiles};
        consume(barriers, consumer, O, lse, p, tau2, scales, {own_Q, own_K, head_dim, sign});
    }
}
