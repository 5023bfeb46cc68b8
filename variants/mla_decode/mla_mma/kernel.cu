// Latent attention, decoding, on Hopper: DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1, in absorbed form.
// Tiles of keys arrive as boxes of pages (TMA), and are factors of both products (wgmma): K is a row's columns, V the
// latent ones. hopper.cuh, registers.cuh and the products of these sizes are put before this text. Limits, a type that the
// plan chooses, is in _features/.
//
// Compile-time parameters: HEAD_DIM = D (elements of a row of the cache), LATENT (of these, the ones that are values), PAGE
// (rows of a page), SPLIT (keys per block), WHOLE (whether a block has all keys of its rows, and writes O and not a part of
// it).
//
// A block has 64 rows of Q and 64 keys at once, and three warpgroups: one lane per piece of a page copies, two consumers
// multiply. O, 64 x LATENT floats, is too large for the registers of one: each consumer has half of its columns. The
// consumers take turns with tiles of keys: consumer n % 2 computes S and P of tile n, and gives P to the other one; both
// add P V to their columns. While one is at softmax, the other one's products are under way. S of a tile needs no part of
// its row that is no value any more once it is there: P is put there, so that Q and two tiles fill shared memory.

constexpr int ROWS = 64, KEYS = 64, CONSUMERS = 2;
constexpr int THREADS = (1 + CONSUMERS) * WARPGROUP;
constexpr int HALF = LATENT / CONSUMERS, HALF_BOXES = HALF / COLUMNS;
constexpr int BOX_BYTES = KEYS * ROW_BYTES, TILE_BYTES = BOXES * BOX_BYTES;
constexpr int P_BOX = BOXES - 1;
constexpr int BOX_ROWS = PAGE % 64 == 0 ? 64 : PAGE % 32 == 0 ? 32 : 16;  // of a page, which one copy brings
constexpr int PIECES = KEYS / BOX_ROWS;
constexpr int NO_PAGE = -1;
constexpr int PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
constexpr int ALL_CONSUMERS = 1, OWN = 2;  // named barriers; a consumer's own is OWN and its number
static_assert(COLUMNS == 64 && HALF % COLUMNS == 0 && HEAD_DIM == D, "halves of values are whole boxes");
static_assert(HEAD_DIM - LATENT >= KEYS, "P takes a box that has no values");
static_assert(SPLIT % KEYS == 0, "a tile lies in one split");

// What a lane has of 64 rows, as products leave it: [4 j + 2 h + c] is row 16 warp + lane / 4 + 8 h, column 8 j + 2 (lane %
// 4) + c.
typedef float Scores[KEYS / 2];
typedef float Output[HALF / 2];
typedef float PerRow[2];
typedef unsigned Weights[KEYS / 4];

struct Shared {
    u64 Q, full[2][BOXES];  // of each slot for a tile: each box has arrived
    u64 empty[2][2];        // the boxes of the first half of the values; all others
    u64 P[2];               // P, m and the correction of a tile are there
    float m[2][ROWS], correction[2][ROWS], l[CONSUMERS][ROWS];
};

// The keys of a block: tiles of 64 from `first` on, up to before `end`. All rows see the keys before `end_for_all`.
struct Keys {
    int first, end, end_for_all;
    __device__ __forceinline__ int tiles() const { return (end - first + KEYS - 1) / KEYS; }
    __device__ __forceinline__ int first_of(int tile) const { return first + tile * KEYS; }
    __device__ __forceinline__ bool all_see(int tile) const { return first_of(tile) + KEYS <= end_for_all; }
};

__device__ __forceinline__ int slot_of(int tile) { return tile % 2; }
__device__ __forceinline__ int phase_of(int tile) { return tile / 2 & 1; }

// One warp: the boxes of each tile once its slot is empty, a lane for each piece of a page. Behind the last key there is no
// page: zeros arrive from outside of the tensor.
__device__ __forceinline__ void produce(Shared &shared, unsigned Q_tile, unsigned tiles, const TensorMap &Q, const TensorMap &C,
                                        const int *pages, const Keys &keys, int sequence, int first_row)
{
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
        arrive_and_expect(shared.Q, TILE_BYTES);
        load_tile<ROWS>(Q_tile, Q, first_row, sequence, shared.Q);
    }
    const auto key_of = [&](int tile) { return keys.first_of(tile) + lane * BOX_ROWS; };
    const auto page_of = [&](int tile) {
        return lane < PIECES && key_of(tile) < keys.end ? pages[key_of(tile) / PAGE] : NO_PAGE;
    };
    int page = page_of(0);
    const int count = keys.tiles();
    for (int tile = 0; tile < count; ++tile) {
        const int slot = slot_of(tile), row = key_of(tile) % PAGE;
        const int next_page = page_of(tile + 1);
        const unsigned to = tiles + slot * TILE_BYTES + lane * BOX_ROWS * ROW_BYTES;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            wait(shared.empty[slot][half], phase_of(tile) ^ 1);
            const int first = half * HALF_BOXES, end = half == 0 ? HALF_BOXES : BOXES;
            if (lane == 0) {
                for (int box = first; box < end; ++box) arrive_and_expect(shared.full[slot][box], BOX_BYTES);
            }
            __syncwarp();
            if (lane < PIECES) {
                for (int box = first; box < end; ++box) {
                    load_box(to + box * BOX_BYTES, C, box * COLUMNS, row, page, shared.full[slot][box]);
                }
            }
        }
        page = next_page;
    }
}

// A consumer warpgroup.
struct Consumer {
    int number, warp, lane;
    unsigned Q_tile, tiles;
    Shared &shared;
    __device__ __forceinline__ unsigned tile(int n) const { return tiles + slot_of(n) * TILE_BYTES; }
    __device__ __forceinline__ unsigned P(int n) const { return tile(n) + P_BOX * BOX_BYTES; }
    __device__ __forceinline__ unsigned V(int n) const { return tile(n) + number * HALF_BOXES * BOX_BYTES; }
    __device__ __forceinline__ int row(int h) const { return 16 * warp + lane / 4 + 8 * h; }
    // Where this lane's row of matrices of 16 rows x 16 keys of P lies.
    __device__ __forceinline__ unsigned matrices(unsigned P_box, int i) const
    {
        return P_box + piece_of_row(16 * warp + lane % 16, 2 * i + lane / 16);
    }
    __device__ __forceinline__ void sync() const { sync_threads(OWN + number, WARPGROUP); }
};

// What a consumer carries from tile to tile: its columns of O, m in powers of two, and l of the tiles that are its own.
struct Rows {
    Output O;
    PerRow m, l;
};

// S = Q K^T, under way, box by box as they arrive.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, const Consumer &consumer, int tile)
{
    const u64 Q = along_rows(consumer.Q_tile), K = along_rows(consumer.tile(tile));
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        wait(consumer.shared.full[slot_of(tile)][box], phase_of(tile));
        begin_products();
#pragma unroll
        for (int k = 4 * box; k < 4 * box + 4; ++k) {
            if (k == 0) {
                multiply(S, Q, K);
            } else {
                multiply_add(S, Q + steps_along<ROWS>(k), K + steps_along<KEYS>(k));
            }
        }
    }
    commit_products();
}

// O += P V in the consumer's columns, under way.
__device__ __forceinline__ void add_P_V(Output &O, const Weights &P, unsigned V_half)
{
    const u64 V = across_rows<KEYS>(V_half);
    begin_products();
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) multiply_add(O, P + 4 * k, V + steps_across(k));
    commit_products();
}

__device__ __forceinline__ void correct(Output &O, const PerRow &correction)
{
#pragma unroll
    for (int e = 0; e < HALF / 2; ++e) O[e] *= correction[e / 2 % 2];
}

// Of a tile with keys that some row does not see: their values, which may be NaN or infinity, meet only rows that see them.
// They are added key by key, and zeros left to the products. P is in shared memory.
__device__ __forceinline__ void add_where_seen(Output &O, const Consumer &consumer, const Keys &keys, const int (&end)[2],
                                               int tile)
{
    const int first_key = keys.first_of(tile), first = max(keys.end_for_all - first_key, 0);
    unsigned char *const V = shared_pointer(consumer.V(tile));
    const unsigned char *const P = shared_pointer(consumer.P(tile));
#pragma unroll 1
    for (int k = first; k < min(keys.end - first_key, KEYS); ++k) {
        PerRow p;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int at = piece_of_row(consumer.row(h), k / 8) + k % 8 / 2 * 4;
            const float2 pair = unpacked(*reinterpret_cast<const unsigned *>(P + at));
            p[h] = k % 2 == 0 ? pair.x : pair.y;
        }
#pragma unroll
        for (int j = 0; j < HALF / 8; ++j) {
            const int at = j / 8 * BOX_BYTES + piece_of_row(k, j % 8) + consumer.lane % 4 * 4;
            const float2 v = unpacked(*reinterpret_cast<const unsigned *>(V + at));
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const bool sees = first_key + k < end[h];
                O[4 * j + 2 * h] = sees ? O[4 * j + 2 * h] + p[h] * v.x : O[4 * j + 2 * h];
                O[4 * j + 2 * h + 1] = sees ? O[4 * j + 2 * h + 1] + p[h] * v.y : O[4 * j + 2 * h + 1];
            }
        }
    }
    consumer.sync();
    constexpr int ROW_PIECES = COLUMNS / 8;
    for (int e = threadIdx.x % WARPGROUP; e < HALF_BOXES * (KEYS - first) * ROW_PIECES; e += WARPGROUP) {
        const int piece = e % ROW_PIECES, row = first + e / ROW_PIECES % (KEYS - first), box = e / ROW_PIECES / (KEYS - first);
        *reinterpret_cast<uint4 *>(V + box * BOX_BYTES + piece_of_row(row, piece)) = make_uint4(0, 0, 0, 0);
    }
    publish_to_async();
    consumer.sync();
}

// Attention of the block's keys, in the consumer's columns of O. `end`: before which key what the lane's two rows see ends.
__device__ __forceinline__ void attend(Rows &rows, const Consumer &consumer, const Keys &keys, const int (&end)[2], float tau2)
{
    Shared &shared = consumer.shared;
    const int count = keys.tiles();
    Scores S;
    Weights P;
    PerRow correction;

    // Its values have been read, by all lanes of the warp.
    const auto release_V = [&](int tile) {
        if (consumer.lane == 0) arrive(shared.empty[slot_of(tile)][consumer.number]);
    };
    // m = max(m, rowmax(tau S)), P = exp(tau S - m), l = exp(m_old - m) l + rowsum(P): m_old is that of the other
    // consumer's tile. They go to the other consumer.
    const auto softmax = [&](int tile) {
        const int first_key = keys.first_of(tile);
#pragma unroll
        for (int e = 0; e < KEYS / 2; ++e) S[e] *= tau2;
        if (!keys.all_see(tile)) {
#pragma unroll
            for (int e = 0; e < KEYS / 2; ++e) {
                const int key = first_key + e / 4 * 8 + consumer.lane % 4 * 2 + e % 2;
                if (key >= end[e / 2 % 2]) S[e] = MINUS_INFINITY;
            }
        }
        PerRow largest = {S[0], S[2]}, minus_m;
#pragma unroll
        for (int e = 0; e < KEYS / 2; ++e) largest[e / 2 % 2] = fmaxf(largest[e / 2 % 2], S[e]);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float m = fmaxf(rows.m[h], quad_max(largest[h]));
            minus_m[h] = m == MINUS_INFINITY ? 0.0f : -m;  // (-inf) - (-inf) would be NaN
            correction[h] = exp2_approx(rows.m[h] + minus_m[h]);
            rows.m[h] = m;
            rows.l[h] *= correction[h];
            if (consumer.lane % 4 == 0) {
                shared.m[slot_of(tile)][consumer.row(h)] = m;
                shared.correction[slot_of(tile)][consumer.row(h)] = correction[h];
            }
        }
#pragma unroll
        for (int e = 0; e < KEYS / 2; ++e) {
            S[e] = exp2_approx(S[e] + minus_m[e / 2 % 2]);
            rows.l[e / 2 % 2] += S[e];
        }
#pragma unroll
        for (int i = 0; i < KEYS / 4; ++i) P[i] = packed(S[2 * i], S[2 * i + 1]);
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) store_matrices(consumer.matrices(consumer.P(tile), i), P + 4 * i);
        publish_to_async();  // the next tile's copy into this box is ordered behind
        arrive(shared.P[slot_of(tile)]);
    };
    // O += P V of the other consumer's tile, under way; its P, m and correction are there once it says so.
    const auto add_other = [&](int tile) {
        wait(shared.P[slot_of(tile)], phase_of(tile));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            rows.m[h] = shared.m[slot_of(tile)][consumer.row(h)];
            correction[h] = shared.correction[slot_of(tile)][consumer.row(h)];
            rows.l[h] *= correction[h];
        }
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) load_matrices(P + 4 * i, consumer.matrices(consumer.P(tile), i));
        correct(rows.O, correction);
        if (!keys.all_see(tile)) add_where_seen(rows.O, consumer, keys, end, tile);
        __syncwarp();
        if (consumer.lane == 0) arrive(shared.empty[slot_of(tile)][1]);  // P has been read
        add_P_V(rows.O, P, consumer.V(tile));
    };
    // O += P V of its own tile.
    const auto add_own = [&](int tile) {
        correct(rows.O, correction);
        if (!keys.all_see(tile)) {
            consumer.sync();  // all of P is there
            add_where_seen(rows.O, consumer, keys, end, tile);
        }
        add_P_V(rows.O, P, consumer.V(tile));
        wait_for_products<0>(rows.O);
        release_V(tile);
    };

    int tile = consumer.number;
    if (consumer.number == 0) {
        multiply_Q_Kt(S, consumer, 0);
        wait_for_products<0>(S);
        softmax(0);
        add_own(0);
        tile = 2;
    }
    for (; tile < count; tile += 2) {
        add_other(tile - 1);
        multiply_Q_Kt(S, consumer, tile);
        wait_for_products<1>(rows.O);
        release_V(tile - 1);
        wait_for_products<0>(S);
        softmax(tile);
        add_own(tile);
    }
    if (tile - 1 < count) {
        add_other(tile - 1);
        wait_for_products<0>(rows.O);
    }
}

// The consumer's columns of O, each row times its factor: rounded, by way of shared memory where Q was.
__device__ __forceinline__ void store_output(const Output &O, const PerRow &factor, const Consumer &consumer, stored *to,
                                             int rows)
{
    const unsigned staged = consumer.Q_tile + consumer.number * HALF_BOXES * BOX_BYTES;
#pragma unroll
    for (int j = 0; j < HALF / 8; j += 2) {
        unsigned o[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) o[c] = packed(O[4 * j + 2 * c] * factor[c % 2], O[4 * j + 2 * c + 1] * factor[c % 2]);
        store_matrices(consumer.matrices(staged + j / 8 * BOX_BYTES, j % 8 / 2), o);
    }
    consumer.sync();
    constexpr int ROW_PIECES = HALF / 8;
    const unsigned char *const from = shared_pointer(staged);
    for (int e = threadIdx.x % WARPGROUP; e < rows * ROW_PIECES; e += WARPGROUP) {
        const int row = e / ROW_PIECES, piece = e % ROW_PIECES;
        const uint4 x = *reinterpret_cast<const uint4 *>(from + piece / 8 * BOX_BYTES + piece_of_row(row, piece % 8));
        *reinterpret_cast<uint4 *>(to + (size_t)row * LATENT + consumer.number * HALF + piece * 8) = x;
    }
}

// The consumer's columns of a part of O, which is not divided yet.
__device__ __forceinline__ void store_part(const Output &O, const Consumer &consumer, float *to, int rows)
{
#pragma unroll
    for (int j = 0; j < HALF / 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = consumer.row(h), column = consumer.number * HALF + 8 * j + consumer.lane % 4 * 2;
            if (row >= rows) continue;
            float2 *const pair = reinterpret_cast<float2 *>(to + (size_t)row * LATENT + column);
            __stcg(pair, make_float2(O[4 * j + 2 * h], O[4 * j + 2 * h + 1]));
        }
}

// `O` and `lse` if a block has all keys of its rows, else `O_split`, `l_split` and `m_split`.
extern "C" __global__ __launch_bounds__(THREADS, 1) void mla_mma(
    const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap C, const int *__restrict__ table,
    const int *__restrict__ lengths, stored *__restrict__ O, float *__restrict__ lse, float *__restrict__ O_split,
    float *__restrict__ l_split, float *__restrict__ m_split, int q_len, int table_len, int heads, float tau2, Limits limits)
{
    extern __shared__ unsigned char dynamic[];
    __shared__ Shared shared;
    const unsigned Q_tile = (shared_address(dynamic) + 1023) / 1024 * 1024, tiles = Q_tile + TILE_BYTES;

    // All heads of a sequence read the same rows of the cache. Their rows of Q lie one after the other, and are counted
    // through: row r of a sequence is query r % q_len. Blocks with the same keys are neighbours.
    const int sequence = blockIdx.z, split = blockIdx.y, splits = gridDim.y;
    const int sequence_rows = heads * q_len, first_row = blockIdx.x * ROWS;
    const int rows = min(ROWS, sequence_rows - first_row);
    const int kv_len = lengths[sequence];

    // Keys up to the last that the tile's last query sees. Where the rows of two heads meet, the last query of all is among
    // them, and the first.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const auto run = limits.of_sequence(sequence, q_len, kv_len);
    const int end_of_rows = run.end(min(last_query, q_len - 1)), split_first = split * SPLIT;
    const int end_of_split = WHOLE ? end_of_rows : min(split_first + SPLIT, end_of_rows);
    const Keys keys = {split_first, end_of_split, run.end(last_query >= q_len ? 0 : first_query)};
    if (!WHOLE && keys.first >= keys.end) return;  // no row asks for it

    if (threadIdx.x == 0) {
        init_barrier(shared.Q, 1);
        for (int slot = 0; slot < 2; ++slot) {
            for (int box = 0; box < BOXES; ++box) init_barrier(shared.full[slot][box], 1);
            init_barrier(shared.empty[slot][0], 4);  // warps that have V
            init_barrier(shared.empty[slot][1], 8);  // and those that read P
            init_barrier(shared.P[slot], WARPGROUP);
        }
        publish_barriers();
    }
    __syncthreads();

    // setmaxnreg counts where each role is one branch.
    if (threadIdx.x < WARPGROUP) {
        keep_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32 && keys.first < keys.end) {
            produce(shared, Q_tile, tiles, Q, C, table + (size_t)sequence * table_len, keys, sequence, first_row);
        }
        return;
    }
    take_registers<CONSUMER_REGISTERS>();
    const int number = uniform(threadIdx.x / WARPGROUP) - 1;
    const Consumer consumer = {number, (int)threadIdx.x % WARPGROUP / 32, (int)threadIdx.x % 32, Q_tile, tiles, shared};
    Rows own;
#pragma unroll
    for (int e = 0; e < HALF / 2; ++e) own.O[e] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        own.m[h] = MINUS_INFINITY;
        own.l[h] = 0.0f;
    }
    if (keys.first < keys.end) {
        const int end[2] = {run.end((first_row + consumer.row(0)) % q_len), run.end((first_row + consumer.row(1)) % q_len)};
        wait(shared.Q, 0);
        attend(own, consumer, keys, end, tau2);
    }

    // l, of which each consumer has the part of its tiles. Behind the barrier no product reads Q any more.
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        own.l[h] = quad_sum(own.l[h]);
        if (consumer.lane % 4 == 0) shared.l[number][consumer.row(h)] = own.l[h];
    }
    sync_threads(ALL_CONSUMERS, CONSUMERS * WARPGROUP);
    const size_t first_output = (size_t)sequence * sequence_rows + first_row;
    const size_t first_stat = ((size_t)sequence * splits + split) * sequence_rows + first_row;
    PerRow inverse;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = consumer.row(h);
        const float l = shared.l[0][row] + shared.l[1][row], m = own.m[h] * LN_2;
        // A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
        inverse[h] = l == 0.0f ? 0.0f : 1.0f / l;
        if (number == 0 && consumer.lane % 4 == 0 && row < rows) {
            if (WHOLE) {
                lse[first_output + row] = m + logf(l);
            } else {
                l_split[first_stat + row] = l;
                m_split[first_stat + row] = m;
            }
        }
    }
    if (WHOLE) {
        store_output(own.O, inverse, consumer, O + first_output * LATENT, rows);
    } else {
        store_part(own.O, consumer, O_split + first_stat * LATENT, rows);
    }
}
