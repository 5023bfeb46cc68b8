// Flash-Decoding: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference"; steps are that text's.
// _mma/mma.cuh is put before this text.
//
// Compile-time parameters: D (elements per row), SPLIT (keys per split), WARPS and COMBINE_WARPS (per block of the first
// and of the second kernel), SLOTS (tiles of keys or values that a warp has room for), BLOCKS_PER_SM (at least).
//
// A thread block takes one split of the keys of one key/value head, and 16 rows of queries. Rows of all query heads that
// share the head lie one after the other in Q and in O, so they are counted through: row r of the group belongs to query
// r % q_len. Within the block each warp goes its own way over every WARPS-th tile of keys, with its own O, l and m and
// its own ring of slots, and waits for nobody until the end.

constexpr int BR = 16;  // rows of an mma
constexpr int BC = 16;  // keys per tile: what one warp multiplies at once
constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = (D + 15) / 16;                            // a row in pieces of 16 elements, the last one padded
constexpr int ROW_BYTES = (D * (int)sizeof(stored) + 127) / 128 * 128;  // of a tile in shared memory
constexpr int LD = ROW_BYTES / (int)sizeof(stored);
constexpr int SLOT_BYTES = BC * ROW_BYTES;
static_assert(SPLIT % (BC * WARPS) == 0 && SLOTS >= 3, "tiles begin where splits do; one slot is read while two are filled");

// The widest piece that divides a row: where all rows begin at a multiple of it, so does every copy.
constexpr int PIECE_BYTES = D % 8 == 0 ? 16 : D % 4 == 0 ? 8 : D % 2 == 0 ? 4 : 2;
constexpr int PIECES = D * (int)sizeof(stored) / PIECE_BYTES;  // per row

// 16 consecutive rows of global memory -> a slot, of which `rows` are there and the others become zeros: a weight of zero
// times what an earlier tile left could be NaN. LANES threads copy, and this is the one with that number.
template <int LANES>
__device__ __forceinline__ void copy_tile(unsigned slot, const stored *rows_from, int rows, int lane)
{
    const char *from = reinterpret_cast<const char *>(rows_from);
#pragma unroll(PIECE_BYTES == 16 ? 16 : 2)
    for (int first = 0; first < BC * PIECES; first += LANES) {
        const int piece = first + lane;
        const int row = piece / PIECES, byte = piece % PIECES * PIECE_BYTES;
        if (BC * PIECES % LANES != 0 && piece >= BC * PIECES) break;
        const unsigned to = slot + swizzled<ROW_BYTES>(row, byte / CHUNK_BYTES) + byte % CHUNK_BYTES;
        if constexpr (PIECE_BYTES >= 4) {
            copy_async<PIECE_BYTES>(to, from + piece * PIECE_BYTES, row < rows);
        } else {
            // No asynchronous copy is as narrow as this.
            const unsigned short x = row < rows ? *reinterpret_cast<const unsigned short *>(from + piece * PIECE_BYTES) : 0;
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(x) : "memory");
        }
    }
}

// How many keys, counted from the first, a query sees. Causal is aligned bottom-right.
__device__ __forceinline__ int keys_seen(int query, int q_len, int kv_len, int causal)
{
    return causal ? min(max(query + 1 - q_len + kv_len, 0), kv_len) : kv_len;
}

// exp(x - m), and 0 for x = -inf even where nothing was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
__device__ __forceinline__ float exp_below(float x, float m) { return __expf(x - (m == MINUS_INFINITY ? 0.0f : m)); }

// Where element e of row r lies in a tile of floats of LD per row: the 8 rows that a warp stores at once, 2 floats per
// lane, fall into different banks.
__device__ __forceinline__ int place(int r, int e) { return r * LD + (e ^ r % 8 * 8); }

// Step 2: attention of each split on its own. O is not divided by l yet.
extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void split_kv(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V,
    float *__restrict__ O_split, float *__restrict__ l_split, float *__restrict__ m_split, int q_len, int kv_len,
    int group, float tau, int causal)
{
    extern __shared__ __align__(128) unsigned char shared[];
    float *const O_tiles = reinterpret_cast<float *>(shared);  // one per warp, once the slots are no longer needed
    float *const l_tiles = reinterpret_cast<float *>(shared + (WARPS * SLOTS + 1) * SLOT_BYTES);
    float *const m_tiles = l_tiles + WARPS * BR;

    const int t = threadIdx.x, warp = t / 32, lane = t % 32, g = lane / 4, q = lane % 4;

    // Step 1: this block's rows, split and key/value head. Blocks that share keys are neighbours.
    const int group_rows = group * q_len, row_tiles = (group_rows + BR - 1) / BR;
    const int first_row = blockIdx.x % row_tiles * BR, split = blockIdx.x / row_tiles;
    const int rows = min(BR, group_rows - first_row);
    const size_t kv_head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t first_stat = kv_head * group_rows + first_row;
    const size_t split_stat = split * ((size_t)gridDim.z * gridDim.y * group_rows) + first_stat;

    // Rows of several heads in one tile: the last query of one and the first of the next are among them.
    const int first_query = first_row % q_len, last_query = first_query + rows - 1;
    const bool heads_meet = last_query >= q_len;
    const int seen_by_some = keys_seen(heads_meet ? q_len - 1 : last_query, q_len, kv_len, causal);
    const int seen_by_all = keys_seen(heads_meet ? 0 : first_query, q_len, kv_len, causal);
    const int first_key = split * SPLIT, last_key = min(first_key + SPLIT, seen_by_some);
    if (first_key >= last_key) return;  // what nobody sees is not read when splits are put together
    const stored *const K_head = K + kv_head * kv_len * D;
    const stored *const V_head = V + kv_head * kv_len * D;

    const unsigned ring = shared_address(shared) + warp * SLOTS * SLOT_BYTES;
    const unsigned Q_tile = shared_address(shared) + WARPS * SLOTS * SLOT_BYTES;
    if constexpr (D % 16 != 0) {
        // Copies do not write the padding, and products read it.
        for (int i = t; i < (WARPS * SLOTS + 1) * SLOT_BYTES / 16; i += THREADS) {
            reinterpret_cast<uint4 *>(shared)[i] = uint4();
        }
        __syncthreads();
    }

    // K and V of this warp's tiles in turn, each into the next slot of the ring, SLOTS - 1 of them ahead.
    int copied = 0, copy_key = first_key + warp * BC;
    auto copy_next = [&]() {
        if (copy_key < last_key) {
            const stored *const from = (copied % 2 == 0 ? K_head : V_head) + (size_t)copy_key * D;
            copy_tile<32>(ring + copied % SLOTS * SLOT_BYTES, from, last_key - copy_key, lane);
        }
        commit_copies();
        if (copied++ % 2 == 1) copy_key += WARPS * BC;
    };

    copy_tile<THREADS>(Q_tile, Q + first_stat * D, rows, t);
    commit_copies();
#pragma unroll 1
    for (int i = 0; i < SLOTS - 1; ++i) copy_next();
    wait_for_copies<SLOTS - 1>();
    __syncthreads();

    // Where this lane's row begins of the four matrices that are a 16 x 16 tile: rows first, for Q and for V, which is
    // transposed on its way, or columns first, for K^T.
    const unsigned by_row = swizzled<ROW_BYTES>(lane % 16, lane / 16);
    const unsigned by_key = swizzled<ROW_BYTES>(lane % 8 + lane / 16 * 8, lane / 8 % 2);

    // Rows g and g + 8 of the tile are this thread's, of which it has every fourth pair of keys or of elements.
    int seen[2];
    float O[2 * STEPS][4] = {}, l[2] = {}, m[2] = {MINUS_INFINITY, MINUS_INFINITY};
#pragma unroll
    for (int i = 0; i < 2; ++i) seen[i] = keys_seen((first_row + g + 8 * i) % q_len, q_len, kv_len, causal);

    unsigned slot = ring;
    auto next_slot = [&]() { slot = slot + SLOT_BYTES == ring + SLOTS * SLOT_BYTES ? ring : slot + SLOT_BYTES; };
#pragma unroll 1
    for (int tile_key = first_key + warp * BC; tile_key < last_key; tile_key += WARPS * BC) {
        // S = tau Q K^T where the row sees the key, -inf elsewhere: chosen, not added, so that NaN stays behind the mask.
        wait_for_copies<SLOTS - 2>();
        __syncwarp();
        copy_next();
        float S[2][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            unsigned query[4], key[4];
            load_matrices(query, chunks_further(Q_tile + by_row, 2 * s));
            load_matrices(key, chunks_further(slot + by_key, 2 * s));
            multiply_add(S[0], query, key[0], key[1]);
            multiply_add(S[1], query, key[2], key[3]);
        }
        next_slot();
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                S[n][e] = tile_key + 8 * n + 2 * q + e % 2 < seen[e / 2] ? tau * S[n][e] : MINUS_INFINITY;
            }

        // m = max(m, rowmax(S)), P = exp(S - m), l and O shrink by exp(m_old - m). P takes the place of S.
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float *const S_i[4] = {&S[0][2 * i], &S[0][2 * i + 1], &S[1][2 * i], &S[1][2 * i + 1]};
            const float m_new = fmaxf(m[i], quad_max(fmaxf(fmaxf(*S_i[0], *S_i[1]), fmaxf(*S_i[2], *S_i[3]))));
            const float correction = exp_below(m[i], m_new);
            m[i] = m_new;
            l[i] *= correction;
#pragma unroll
            for (int j = 0; j < 4; ++j) l[i] += *S_i[j] = exp_below(*S_i[j], m_new);
#pragma unroll
            for (int n = 0; n < 2 * STEPS; ++n) {
                O[n][2 * i] *= correction;
                O[n][2 * i + 1] *= correction;
            }
        }

        // O = O + P V.
        wait_for_copies<SLOTS - 2>();
        __syncwarp();
        copy_next();
        if (min(tile_key + BC, last_key) <= seen_by_all) {
            const unsigned P[4] = {packed(S[0][0], S[0][1]), packed(S[0][2], S[0][3]), packed(S[1][0], S[1][1]),
                                   packed(S[1][2], S[1][3])};
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                unsigned value[4];
                load_matrices_transposed(value, chunks_further(slot + by_row, 2 * s));
                multiply_add(O[2 * s], P, value[0], value[1]);
                multiply_add(O[2 * s + 1], P, value[2], value[3]);
            }
        } else {
            // A row must not even multiply a key that it does not see by its zero weight: V may hold NaN or infinity.
#pragma unroll 1
            for (int k = 0; k < min(BC, last_key - tile_key); ++k) {
                float p[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float even = k < 8 ? S[0][2 * i] : S[1][2 * i];
                    const float odd = k < 8 ? S[0][2 * i + 1] : S[1][2 * i + 1];
                    p[i] = __shfl_sync(0xffffffff, k % 2 == 0 ? even : odd, lane / 4 * 4 + k % 8 / 2);
                }
#pragma unroll
                for (int n = 0; n < 2 * STEPS; ++n) {
                    unsigned both;
                    asm volatile("ld.shared.u32 %0, [%1];"
                                 : "=r"(both)
                                 : "r"(slot + swizzled<ROW_BYTES>(k, n) + 4 * q)
                                 : "memory");
                    const float2 v = unpacked(both);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const bool sees = tile_key + k < seen[i];
                        O[n][2 * i] = sees ? O[n][2 * i] + p[i] * v.x : O[n][2 * i];
                        O[n][2 * i + 1] = sees ? O[n][2 * i + 1] + p[i] * v.y : O[n][2 * i + 1];
                    }
                }
            }
        }
        next_slot();
    }

    // The warps' O, l and m become the block's: the same step again, with each warp's keys for a tile.
    if (q == 0) {
        m_tiles[warp * BR + g] = m[0];
        m_tiles[warp * BR + g + 8] = m[1];
    }
    __syncthreads();  // from here on nobody needs a slot
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = g + 8 * i;
        float m_block = MINUS_INFINITY;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) m_block = fmaxf(m_block, m_tiles[w * BR + row]);
        const float correction = exp_below(m[i], m_block);
        const float l_row = quad_sum(l[i]) * correction;
        if (q == 0) l_tiles[warp * BR + row] = l_row;
#pragma unroll
        for (int n = 0; n < 2 * STEPS; ++n) {
            *reinterpret_cast<float2 *>(&O_tiles[warp * BR * LD + place(row, 8 * n + 2 * q)]) =
                make_float2(O[n][2 * i] * correction, O[n][2 * i + 1] * correction);
        }
    }
    __syncthreads();

#pragma unroll 1
    for (int start = 0; start < rows * D; start += THREADS) {
        const int e = start + t;
        if (e < rows * D) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += O_tiles[w * BR * LD + place(e / D, e % D)];
            O_split[split_stat * D + e] = sum;
        }
    }
    if (t < rows) {
        float m_block = MINUS_INFINITY, l_block = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            m_block = fmaxf(m_block, m_tiles[w * BR + t]);
            l_block += l_tiles[w * BR + t];
        }
        l_split[split_stat + t] = l_block;
        m_split[split_stat + t] = m_block;
    }
}

// Step 3: the splits put together, a thread block per row. Each warp goes over every COMBINE_WARPS-th split, in the same
// way as over keys before, and at last what the warps have is added up. What a row sees nothing of is not read: it may not
// have been written.
extern "C" __global__ __launch_bounds__(32 * COMBINE_WARPS) void split_kv_combine(
    const float *__restrict__ O_split, const float *__restrict__ l_split, const float *__restrict__ m_split,
    stored *__restrict__ O, float *__restrict__ lse, int q_len, int kv_len, int causal)
{
    __shared__ float O_warps[COMBINE_WARPS][D], l_warps[COMBINE_WARPS], m_warps[COMBINE_WARPS];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const size_t row = blockIdx.x, rows = gridDim.x;
    const int splits = (keys_seen(row % q_len, q_len, kv_len, causal) + SPLIT - 1) / SPLIT;

    constexpr int PARTS = (D + 31) / 32;
    float O_row[PARTS] = {}, l = 0.0f, m = MINUS_INFINITY;
#pragma unroll 4
    for (int i = warp; i < splits; i += COMBINE_WARPS) {
        const size_t stat = i * rows + row;
        const float m_i = m_split[stat], m_new = fmaxf(m, m_i);
        const float correction = exp_below(m, m_new), weight = exp_below(m_i, m_new);
        m = m_new;
        l = correction * l + weight * l_split[stat];
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            const int e = lane + 32 * j;
            if (D % 32 == 0 || e < D) O_row[j] = correction * O_row[j] + weight * O_split[stat * D + e];
        }
    }
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        const int e = lane + 32 * j;
        if (D % 32 == 0 || e < D) O_warps[warp][e] = O_row[j];
    }
    if (lane == 0) {
        l_warps[warp] = l;
        m_warps[warp] = m;
    }
    __syncthreads();

    m = MINUS_INFINITY;
#pragma unroll
    for (int w = 0; w < COMBINE_WARPS; ++w) m = fmaxf(m, m_warps[w]);
    float weight[COMBINE_WARPS];
    l = 0.0f;
#pragma unroll
    for (int w = 0; w < COMBINE_WARPS; ++w) {
        weight[w] = exp_below(m_warps[w], m);
        l += weight[w] * l_warps[w];
    }
    // A row that saw nothing has l = 0 and m = -inf: its O is 0, its lse is -inf.
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int e = t; e < D; e += 32 * COMBINE_WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < COMBINE_WARPS; ++w) sum += weight[w] * O_warps[w][e];
        O[row * D + e] = stored(sum * inverse);
    }
    if (t == 0) lse[row] = m + logf(l);
}
