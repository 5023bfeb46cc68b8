// FlashAttention-3, forward pass: Shah et al. 2024, arXiv 2407.08608, algorithms 1 (roles) and 2 (a consumer). Line numbers are
// the paper's. The pipeline and its producer are in _hopper/pipeline.cuh, tiles of rows and of keys in row_tiles.cuh and
// key_tiles.cuh, softmax in softmax.cuh, score terms in scoring.cuh. Limits, TileOrder, ScoreTerms, Sink, Sequences, Turns and
// Layout are types that the plan chooses. The Numba twin is numba_kernel.py.
//
// Compile-time parameters besides tile sizes: O_APART (whether O_i has a place of its own on its way out, so that the next Q_i
// arrives meanwhile, or takes that of Q_i).

constexpr int Q_BYTES = BR * D * (int)sizeof(stored);
constexpr int KV_BYTES = BC * D * (int)sizeof(stored);  // of K_j, and of V_j

// Registers per thread, of 65536 on a multiprocessor: addresses for the producer, S, P and O for consumers.
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 160;

// Whether rows see other keys than all: they must not meet what is not finite in V_j of a key that they do not see.
constexpr bool HIDES_KEYS = Limits::HIDES_LAST || KeyTiles<TileOrder>::ARE_LISTED;
typedef Pipeline<CONSUMERS, Inspection<HIDES_KEYS>> Barriers;  // each consumer has its own rows of Q_i
typedef TileBuffer<KV_BYTES> KeyBuffer;

// O_i of long rows is corrected beside S_next, not between one tile's products and the next one's.
constexpr bool CORRECTS_BESIDE_S = D > 128;

// S_next = Q_i K_j^T for the warpgroup's rows, under way.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, unsigned Q_rows, unsigned K_tile)
{
    const u64 Q = along_rows(Q_rows), K = along_rows(K_tile);
    begin_products();
    multiply(S, Q, K);
#pragma unroll
    for (int k = 1; k < DEPTHS; ++k) multiply_add(S, Q + steps_along<BR>(k), K + steps_along<BC>(k));
    commit_products();
}

// O_i += P_cur V_j, under way.
__device__ __forceinline__ void add_P_V(Output &O, const Weights &P, unsigned V_tile)
{
    const u64 V = across_rows<BC>(V_tile);
    begin_products();
#pragma unroll
    for (int k = 0; k < BC / 16; ++k) multiply_add(O, P + 4 * k, V + steps_across(k));
    commit_products();
}

// A consumer warpgroup.
struct Consumer {
    int number;
    bool leads;  // this thread, for its warpgroup
    unsigned Q_rows, O_rows;
    KeyBuffer K, V;
};

// Tiles of keys that other warpgroups' rows see, but none of this one's.
__device__ __forceinline__ void pass_over(int tiles, int &step, const Consumer &consumer, Barriers &barriers)
{
#pragma unroll 1
    for (; tiles > 0; --tiles, ++step) {
        consumer.K.wait_until_full(step);
        Turns::begin(consumer.number), Turns::end(consumer.number);
        if (consumer.leads) consumer.K.release(step);
        consumer.V.wait_until_full(step);
        if (barriers.inspection.finds(step)) clear_not_finite(shared_pointer(consumer.V.tile(step)));
        sync_threads(OWN + consumer.number, WARPGROUP);
        if (consumer.leads) consumer.V.release(step);
    }
}

// Algorithm 2, lines 3 to 19: O_i, m and l of the warpgroup's rows, over the tiles of keys that they see, `own`, from the last
// to the first. The lane's rows are row[0] and row[1]; `step` counts the block's tiles of keys. With O_APART Q_i is released
// once S of the last tile is there.
__device__ __forceinline__ void attend(Rows &rows, int &step, const Consumer &consumer, const RowTile &tile,
                                       const OwnTiles &own, const int (&row)[2], const Problem &p,
                                       const Scoring<ScoreTerms> &scoring, Barriers &barriers)
{
    const auto &keys = tile.keys;
    const WholeTiles whole = whole_tiles(tile, p);
    const auto lane = p.limits.of_lane(row, tile.rows.batch, tile.own.q_len, tile.own.kv_len);
    Scores S;
    Weights P;
    PerRow correction;

    int j = own.end - 1;
    auto at = keys[j];
    keys.compute_bits(at, tile.own.kv_len);  // of pairs that the mask hides, before S takes the registers
    const auto seen = [&] { return keys_seen(lane, at.first_key(), keys.bits(at)); };
    const auto take_V = [&] {
        if (!barriers.inspection.finds(step)) return;
        if (CORRECTS_BESIDE_S) {
            correct(rows.O, correction);
            correction[0] = correction[1] = 1.0f;
        }
        consumer.V.wait_until_full(step);
        take_not_finite(rows.O, P, shared_pointer(consumer.V.tile(step)), tile.own.kv_len - at.first_key(), seen());
    };

    // Lines 3 to 6: S_cur = Q_i K_j^T of the first tile, alone; m, P_cur and l. It may reach beyond the last key.
    consumer.K.wait_until_full(step);
    Turns::begin(consumer.number);
    multiply_Q_Kt(S, consumer.Q_rows, consumer.K.tile(step));
    Turns::end(consumer.number);
    wait_for_products<0>(S);
    if (consumer.leads) consumer.K.release(step);
    const auto powers = scoring.template apply<AROUND>(S, at.first_key());
    mask(S, seen());
    exponentiate(rows, S, correction, powers);
    round_weights(P, S);
    if (!whole.has(at)) take_V();

    // Lines 8 to 16: S_next of this tile and P_cur V of the one before are under way together, softmax beside P_cur V.
    const auto visit = [&](auto side, bool masked, bool inspected) {
        const int older = uniform(step);
        step = older + 1;
        consumer.K.wait_until_full(step);                          // line 8
        Turns::begin(consumer.number);
        multiply_Q_Kt(S, consumer.Q_rows, consumer.K.tile(step));  // line 9
        if (CORRECTS_BESIDE_S) correct(rows.O, correction);
        consumer.V.wait_until_full(older);                         // line 10
        add_P_V(rows.O, P, consumer.V.tile(older));                // line 11
        Turns::end(consumer.number);
        wait_for_products<1>(S);                                   // line 12
        if (consumer.leads) consumer.K.release(step);              // line 15, K
        const auto powers = scoring.template apply<(Side)side.SIDE>(S, at.first_key());
        if (masked) mask(S, seen());
        exponentiate(rows, S, correction, powers);                 // line 13
        wait_for_products<0>(rows.O);                              // line 14
        if (consumer.leads) consumer.V.release(older);             // line 15, V
        if (!CORRECTS_BESIDE_S) correct(rows.O, correction);
        round_weights(P, S);                                       // line 16
        if (inspected) take_V();
    };
    // Line 7. Tiles that all rows see whole are in loops of their own, where ALiBi asks for it one for each side of the rows.
    --j;
    if constexpr (KeyTiles<TileOrder>::ARE_LISTED) {
        for (; j >= own.first; --j) {
            at = keys[j];
            keys.compute_bits(at, tile.own.kv_len);
            visit(On<AROUND>(), !whole.has(at), !whole.has(at));
        }
    } else {
        for (; Limits::HIDES_LAST && j >= max(whole.to, own.first); --j) {
            at = keys[j];
            visit(On<AROUND>(), !own.whole.has(at), true);
        }
        if constexpr (Scoring<ScoreTerms>::HAS_SIDES) {
            for (const int first = max(scoring.first_after(tile, p), whole.from); !Limits::HIDES_LAST && j >= first; --j) {
                at = keys[j];
                visit(On<AFTER>(), false, false);
            }
            for (const int end = max(scoring.end_before(tile, p), whole.from); j >= end; --j) {
                at = keys[j];
                visit(On<AROUND>(), false, false);
            }
        }
        for (; j >= whole.from; --j) {
            at = keys[j];
            visit(On<BEFORE>(), false, false);
        }
        for (; Limits::HIDES_FIRST && j >= own.first; --j) {
            at = keys[j];
            visit(On<AROUND>(), !own.whole.has(at), true);
        }
    }

    // Lines 18 and 19: P V of the last tile.
    if (O_APART && consumer.leads) barriers.Q[consumer.number].release(0);
    if (CORRECTS_BESIDE_S) correct(rows.O, correction);
    consumer.V.wait_until_full(step);
    add_P_V(rows.O, P, consumer.V.tile(step));
    wait_for_products<0>(rows.O);
    if (consumer.leads) consumer.V.release(step);
    ++step;
}

// The warpgroup's rows of O_i, from their place on chip, from row `first_row` of the sequence on.
__device__ __forceinline__ void store_output(const Consumer &consumer, const TensorMap &O, const RowTile &tile, int first_row,
                                             const Problem &p)
{
    if constexpr (Sequences::ARE_RAGGED) {
        if (first_row + (1 << p.packs.head_shift) > tile.own.q_len) {
            p.sequences.store_rows_of_sequence(consumer.O_rows, tile.own, tile.head(0, p), first_row, p.packs.head_shift);
            sync_threads(OWN + consumer.number, WARPGROUP);
            return;
        }
    }
    if (consumer.leads) store_rows<BR>(consumer.O_rows, O, tile.own.row(first_row), Layout::place(tile));
}

// Algorithm 1, lines 13 to 25, for one tile of rows after the other.
__device__ __forceinline__ void consume(Barriers &barriers, const Consumer &consumer, const TensorMap &O,
                                        float *__restrict__ lse, const Problem &p, float tau2, int sign,
                                        ScoreTerms terms, Sink sink)
{
    const int warp = threadIdx.x % WARPGROUP / 32, lane = threadIdx.x % 32;
    Slots<1> &Q = barriers.Q[consumer.number];
    Turns::start(consumer.number);
    for (int round = 0, step = 0;; ++round) {
        const int index = barriers.next_tile(round);
        if (index >= p.packs.tiles()) break;
        const RowTile tile = row_tile(index, p);
        // The lane's rows of the warpgroup's 64 are `mine` and mine + 8; in their heads they are row[0] and row[1].
        const int shift = unknown(p.packs.head_shift), last = (1 << shift) - 1, mine = 16 * warp + lane / 4;
        const int first_row = tile.rows.first_row + (consumer.number << shift);
        const int row[2] = {first_row + (mine & last), first_row + (mine + 8 & last)};

        // Line 13: O_i = 0, l = 0, m = -inf, in registers. Line 14: wait for Q_i. Lines 15 to 23: algorithm 2.
        Rows rows;
        clear(rows);
        Q.wait_until_full(round);
        if (sign != 1) apply_sign(consumer.Q_rows, consumer.number, sign);
        const OwnTiles own = own_tiles(tile, first_row, p);
        pass_over(tile.keys.end - own.end, step, consumer, barriers);
        if (own.first < own.end) {
            Scoring<ScoreTerms> scoring = {tau2};
            if constexpr (Scoring<ScoreTerms>::HAS_TERMS) scoring = scoring.of_rows(terms, tau2, row, mine, tile, p);
            attend(rows, step, consumer, tile, own, row, p, scoring, barriers);
            pass_over(own.first - tile.keys.first, step, consumer, barriers);
        } else if (O_APART && consumer.leads) {
            Q.release(round);
        }

        // Line 24: O_i = diag(l)^-1 O_i, L_i = m + log(l), with the head's sink. A row that saw nothing has l = 0 without one:
        // its O stays 0, its L is -inf.
        PerRow inverse;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float l = quad_sum(rows.l[h]), growth = 1.0f;
            if constexpr (Sink::WEIGHT > 0.0f) growth = add_sink(rows.m[h], l, sink.logit(tile.head(mine + 8 * h, p)));
            inverse[h] = l == 0.0f ? 0.0f : growth / l;
            if (lane % 4 == 0 && row[h] < tile.own.q_len) {
                const int head = (tile.number() << 6 - shift) + (mine + 8 * h >> shift);
                lse[(size_t)head * p.q_len + tile.own.row(row[h])] = rows.m[h] * LN_2 + logf(l);
            }
        }
        // Line 25: write O_i, by way of its place on chip, once the O_i before has left that.
        if (O_APART) {
            if (consumer.leads) wait_until_read();
            sync_threads(OWN + consumer.number, WARPGROUP);
        }
        stage_output(rows.O, inverse, consumer.O_rows);
        publish_to_async();
        sync_threads(OWN + consumer.number, WARPGROUP);
        store_output(consumer, O, tile, first_row, p);
        if (!O_APART && consumer.leads) {
            wait_until_read();
            Q.release(round);
        }
    }
    if (O_APART && consumer.leads) wait_until_read();
}

// What the plan chooses besides Limits, in one parameter, of which what is off takes nothing.
struct Choices : TileOrder, ScoreTerms, Sink, Sequences {};

extern "C" __global__ __launch_bounds__(THREADS, 1) void fa3(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
    const __grid_constant__ TensorMap O, float *__restrict__ lse, int q_len, int kv_len, Packs packs, float tau2, int sign,
    Limits limits, Choices choices)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Barriers barriers;
    const unsigned Q_tile = (shared_address(dynamic) + 1023) / 1024 * 1024;
    const KeyBuffer K_tiles = {barriers.K, Q_tile + Q_BYTES}, V_tiles = {barriers.V, K_tiles.tiles + STAGES * KV_BYTES};
    const unsigned O_tile = O_APART ? V_tiles.tiles + STAGES * KV_BYTES : Q_tile;
    const Problem p = {q_len, kv_len, packs, limits, choices, choices};

    // Line 1.
    if (threadIdx.x == 0) barriers.init(1);
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        // Lines 2 to 10.
        keep_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) {
            const auto load_Q = [&](int number, const RowTile &tile, u64 &full) {
                const int first_row = tile.own.row(tile.rows.first_row + (number << packs.head_shift));
                load_rows<BR>(Q_tile + number * 64 * ROW_BYTES, Q, first_row, Layout::place(tile), full);
            };
            const auto load_K = [&](unsigned to, const RowTile &tile, int first_key, u64 &full) {
                load_tile<BC>(to, K, first_key, Layout::kv_place(tile, packs), full);
            };
            const auto load_V = [&](unsigned to, const RowTile &tile, int first_key, u64 &full) {
                load_tile<BC>(to, V, first_key, Layout::kv_place(tile, packs), full);
            };
            produce<Q_BYTES>(barriers, K_tiles, V_tiles, p, load_Q, load_K, load_V);
        } else if (threadIdx.x >= 32) {
            barriers.inspection.inspect(V_tiles);
        }
    } else {
        // Lines 11 to 26.
        take_registers<CONSUMER_REGISTERS>();
        const int number = uniform(threadIdx.x / WARPGROUP) - 1;
        const unsigned first_row = number * 64 * ROW_BYTES;
        const bool leads = threadIdx.x % WARPGROUP == 0;
        const Consumer consumer = {number, leads, Q_tile + first_row, O_tile + first_row, K_tiles, V_tiles};
        consume(barriers, consumer, O, lse, p, tau2, sign, choices, choices);
    }
}
