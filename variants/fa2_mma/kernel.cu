// FlashAttention-2, forward pass, on tensor cores: Dao 2023, arXiv 2307.08691, algorithm 1. Line numbers are the paper's.
// _mma/mma.cuh is put before this text. The Numba twin is numba_kernel.py.
//
// Compile-time parameters: D (elements per row), BR and BC (rows and keys per tile), WARPS, STAGES (tiles of K and V on
// chip) and BLOCKS_PER_SM.

constexpr int THREADS = 32 * WARPS;
constexpr int WARP_ROWS = BR / WARPS;            // a warp owns so many rows of Q_i, S, P and O_i from end to end
constexpr int TM = WARP_ROWS / 16;               // tiles of 16 rows
constexpr int TN = BC / 8;                       // tiles of 8 keys
constexpr int STEPS = (D + 15) / 16;             // of 16 elements in which Q K^T is summed; zeros fill the last
constexpr int TD = 2 * STEPS;                    // tiles of 8 elements of O
constexpr int ROW_BYTES = (D + 63) / 64 * 128;   // of a row in shared memory
#ifndef QS
#define QS 64
#endif
constexpr bool Q_STAYS = D <= QS;                // Q_i in registers; else it is read anew for every tile of keys

// What one thread copies at once: as much as rows of D elements keep aligned.
constexpr int UNIT = D % 8 == 0 ? 8 : D % 4 == 0 ? 4 : D % 2 == 0 ? 2 : 1;
constexpr int UNIT_BYTES = UNIT * (int)sizeof(stored);
constexpr int UNITS = D / UNIT;  // per row

// m follows the maximum only where that ran away by more than this, in powers of two: weights stay below 2^SLACK.
#ifndef SLACK
#define SLACK 0.0f
#endif

typedef float Scores[TM][TN][4];
typedef float Output[TM][TD][4];
typedef float PerRow[TM][2];  // rows g and g + 8 of each tile of 16

// The grid is (blocks of a head, heads, batch). Heads are counted through the batch; `group` of them share K and V.
__device__ __forceinline__ size_t head_index() { return (size_t)blockIdx.z * gridDim.y + blockIdx.y; }
__device__ __forceinline__ size_t kv_head_index(unsigned group)
{
    return (size_t)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
}

// How many keys, counted from the first, a query row sees. Causal is aligned bottom-right.
__device__ __forceinline__ int keys_seen(int row, int q_len, int kv_len, int causal)
{
    return causal ? min(max(row + 1 - q_len + kv_len, 0), kv_len) : kv_len;
}

// Where unit e of a run of rows lies in a tile.
__device__ __forceinline__ unsigned place(int e)
{
    const int element = e % UNITS * UNIT;
    return swizzled<ROW_BYTES>(e / UNITS, element / CHUNK) + element % CHUNK * (int)sizeof(stored);
}

// `rows` rows of global memory -> a tile of EXTENT rows, zeros below. The rows of a head lie one after the other: the
// block copies them as one run, 32 consecutive units per warp.
template <int EXTENT>
__device__ __forceinline__ void copy_tile(unsigned char *tile, const stored *source, int rows)
{
#pragma unroll
    for (int start = 0; start < EXTENT * UNITS; start += THREADS) {
        const int e = start + threadIdx.x;
        if (EXTENT * UNITS % THREADS != 0 && e >= EXTENT * UNITS) break;
        const bool valid = e < rows * UNITS;
        if constexpr (UNIT > 1) {
            copy_async<UNIT_BYTES>(shared_address(tile) + place(e), source + (valid ? (size_t)e * UNIT : 0), valid);
        } else {
            *reinterpret_cast<stored *>(tile + place(e)) = valid ? source[e] : stored();
        }
    }
}

// Whether what this thread copied into a tile holds NaN or infinity.
template <int EXTENT>
__device__ __forceinline__ bool copied_not_finite(const unsigned char *tile)
{
    bool found = false;
#pragma unroll 1
    for (int e = threadIdx.x; e < EXTENT * UNITS; e += THREADS) {
        const unsigned char *unit = tile + place(e);
        if constexpr (UNIT > 1) {
#pragma unroll
            for (int i = 0; i < UNIT_BYTES; i += 4) found |= not_finite(*reinterpret_cast<const unsigned *>(unit + i));
        } else {
            found |= not_finite(*reinterpret_cast<const unsigned short *>(unit));
        }
    }
    return found;
}

// S = Q_i K_j^T for the warp's rows.
__device__ __forceinline__ void multiply_Q_Kt(Scores &S, const unsigned (&Q_kept)[TM][Q_STAYS ? STEPS : 1][4],
                                              unsigned Q_lane, unsigned K_lane)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) S[i][j][c] = 0.0f;
#pragma unroll
    for (int k = 0; k < STEPS; ++k) {
        unsigned q[TM][4];
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            if constexpr (Q_STAYS) {
#pragma unroll
                for (int c = 0; c < 4; ++c) q[i][c] = Q_kept[i][k][c];
            } else {
                load_matrices(q[i], chunks_further(Q_lane, 2 * k) + i * 16 * ROW_BYTES);
            }
        }
#pragma unroll
        for (int j = 0; j < TN; j += 2) {
            unsigned key[4];
            load_matrices(key, chunks_further(K_lane, 2 * k) + j * 8 * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                multiply_add(S[i][j], q[i], key[0], key[1]);
                multiply_add(S[i][j + 1], q[i], key[2], key[3]);
            }
        }
    }
}

// O += P V over 16 keys; what is NaN or infinity in V counts as 0 where not FINITE.
template <bool FINITE>
__device__ __forceinline__ void add_P_V(Output &O, const unsigned (&P)[TM][4], unsigned V_lane)
{
#pragma unroll
    for (int j = 0; j < TD; j += 2) {
        unsigned v[4];
        load_matrices_transposed(v, chunks_further(V_lane, j));
        if constexpr (!FINITE) {
#pragma unroll
            for (int c = 0; c < 4; ++c) v[c] = finite_or_zero(v[c]);
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            multiply_add(O[i][j], P[i], v[0], v[1]);
            multiply_add(O[i][j + 1], P[i], v[2], v[3]);
        }
    }
}

// O += p v over the same keys for each v that is NaN or infinity, in rows that see its key. A row must not even multiply
// a key that it does not see by its zero weight then. seen[i]: how many keys of the tile a row sees.
__device__ __forceinline__ void add_not_finite(Output &O, const unsigned (&P)[TM][4], const unsigned char *V_tile,
                                               int first_key, const int (&seen)[TM][2])
{
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int k = 0; k < 16; ++k) {
        PerRow p;
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const unsigned both = __shfl_sync(0xffffffff, k < 8 ? P[i][h] : P[i][2 + h], (lane & ~3) | k % 8 / 2);
                p[i][h] = k % 2 ? unpacked(both).y : unpacked(both).x;
            }
#pragma unroll
        for (int j = 0; j < TD; ++j) {
            const unsigned both = *reinterpret_cast<const unsigned *>(V_tile + swizzled<ROW_BYTES>(first_key + k, j) + lane % 4 * 4);
            if (!not_finite(both)) continue;
            const float2 v = unpacked(both);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (first_key + k < seen[i][h] && !isfinite(v.x)) O[i][j][2 * h] += p[i][h] * v.x;
                    if (first_key + k < seen[i][h] && !isfinite(v.y)) O[i][j][2 * h + 1] += p[i][h] * v.y;
                }
        }
    }
}

// O += P V where V holds NaN or infinity in keys that some rows do not see.
__device__ __forceinline__ void add_P_V_where_seen(Output &O, unsigned (&P)[TN / 2][TM][4], const unsigned char *V_tile,
                                                   unsigned V_lane, const int (&seen)[TM][2])
{
#pragma unroll 1
    for (int s = 0; s < TN / 2; ++s) {
        add_P_V<false>(O, P[0], V_lane + s * 16 * ROW_BYTES);
        add_not_finite(O, P[0], V_tile, 16 * s, seen);
        // The next 16 keys move up: registers have no index at run time.
#pragma unroll
        for (int t = 1; t < TN / 2; ++t)
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int c = 0; c < 4; ++c) P[t - 1][i][c] = P[t][i][c];
    }
}

// P = exp(tau S - m) of 16 keys, rounded to 16 bits as A of the next product, and l += rowsum(P), not rounded.
__device__ __forceinline__ void exponentiate(unsigned (&P)[TM][4], PerRow &l, const Scores &S, const PerRow &m,
                                             float tau2, int s)
{
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float above = m[i][h] == MINUS_INFINITY ? 0.0f : -m[i][h];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const float low = exp2_approx(fmaf(S[i][2 * s + j][2 * h], tau2, above));
                const float high = exp2_approx(fmaf(S[i][2 * s + j][2 * h + 1], tau2, above));
                l[i][h] += low;
                l[i][h] += high;
                P[i][2 * j + h] = packed(low, high);
            }
        }
}

// Lines 8 to 10 for the warp's rows and one tile of keys. m is in powers of two: log2(e) is part of tau2. l is that of
// this lane's columns alone.
template <bool MASKED>
__device__ __forceinline__ void visit_tile(Output &O, PerRow &m, PerRow &l,
                                           const unsigned (&Q_kept)[TM][Q_STAYS ? STEPS : 1][4], unsigned Q_lane,
                                           unsigned K_lane, const unsigned char *V_tile, unsigned V_lane, float tau2,
                                           int row, int first_key, int q_len, int kv_len, int causal, bool poisoned)
{
    const int column = threadIdx.x % 4 * 2;

    // Line 8: S = Q_i K_j^T. Where the row does not see the key: -inf, chosen and not added, so that NaN stays there.
    Scores S;
    multiply_Q_Kt(S, Q_kept, Q_lane, K_lane);
    int seen[TM][2];
    if constexpr (MASKED) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                seen[i][h] = keys_seen(row + 16 * i + 8 * h, q_len, kv_len, causal) - first_key;
#pragma unroll
                for (int j = 0; j < TN; ++j)
#pragma unroll
                    for (int c = 0; c < 2; ++c)
                        if (8 * j + column + c >= seen[i][h]) S[i][j][2 * h + c] = MINUS_INFINITY;
            }
    }

    // Line 9, first half: m = max(m, rowmax(tau S)).
    PerRow largest;
    bool rises = false;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float x = fmaxf(S[i][0][2 * h], S[i][0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < TN; ++j) x = fmaxf(x, fmaxf(S[i][j][2 * h], S[i][j][2 * h + 1]));
            largest[i][h] = tau2 * quad_max(x);
            rises |= largest[i][h] > m[i][h] + SLACK;
        }

    // Line 10, first half: O_i = diag(exp(m_old - m)) O_i, unless that is 1 for all of the warp's rows.
    if (__any_sync(0xffffffff, rises)) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float m_new = fmaxf(m[i][h], largest[i][h]);
                const float correction = exp2_approx(m[i][h] - (m_new == MINUS_INFINITY ? 0.0f : m_new));
                m[i][h] = m_new;
                l[i][h] *= correction;
#pragma unroll
                for (int j = 0; j < TD; ++j)
#pragma unroll
                    for (int c = 0; c < 2; ++c) O[i][j][2 * h + c] *= correction;
            }
    }

    // Line 9, second half: P = exp(tau S - m), l = l + rowsum(P). Line 10, second half: O_i = O_i + P V_j. 16 keys at a
    // time, so that exponentials of the next can be under way with the products of these.
    if (MASKED && poisoned) {
        unsigned P[TN / 2][TM][4];
#pragma unroll
        for (int s = 0; s < TN / 2; ++s) exponentiate(P[s], l, S, m, tau2, s);
        add_P_V_where_seen(O, P, V_tile, V_lane, seen);
    } else {
#pragma unroll
        for (int s = 0; s < TN / 2; ++s) {
            unsigned P[TM][4];
            exponentiate(P, l, S, m, tau2, s);
            add_P_V<true>(O, P, V_lane + s * 16 * ROW_BYTES);
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void fa2_mma(
    const stored *__restrict__ Q, const stored *__restrict__ K, const stored *__restrict__ V, stored *__restrict__ O,
    float *__restrict__ lse, int q_len, int kv_len, int group, float tau2, int sign, int causal)
{
    extern __shared__ __align__(1024) unsigned char Q_tile[];
    constexpr int KV_BYTES = BC * ROW_BYTES;  // of K_j, and of V_j
    unsigned char *const KV_tiles = Q_tile + BR * ROW_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    // Line 3: the block owns Q_i and O_i of one head. Where causal, the blocks with most keys start first.
    const int first_row = (causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BR;
    const int rows = min(BR, q_len - first_row);
    const size_t first_stat = head_index() * q_len + first_row;
    const stored *K_head = K + kv_head_index(group) * kv_len * D;
    const stored *V_head = V + kv_head_index(group) * kv_len * D;

    // Columns beyond D belong to the last step of a product: zeros, once and for all.
    if constexpr (D % 16 != 0) {
        for (int i = threadIdx.x * 16; i < BR * ROW_BYTES + STAGES * 2 * KV_BYTES; i += THREADS * 16) {
            *reinterpret_cast<uint4 *>(Q_tile + i) = make_uint4(0, 0, 0, 0);
        }
        __syncthreads();
    }

    // Lines 6 and 7: K_j and V_j that the last row of Q_i sees are visited, STAGES - 1 of them ahead of their use.
    const int seen_by_first = keys_seen(first_row, q_len, kv_len, causal);
    const int seen_by_last = keys_seen(first_row + rows - 1, q_len, kv_len, causal);
    const int tiles = (seen_by_last + BC - 1) / BC;
    const auto copy_keys = [&](int j) {
        if (j < tiles) {
            unsigned char *const K_tile = KV_tiles + j % STAGES * 2 * KV_BYTES;
            copy_tile<BC>(K_tile, K_head + (size_t)j * BC * D, kv_len - j * BC);
            copy_tile<BC>(K_tile + KV_BYTES, V_head + (size_t)j * BC * D, kv_len - j * BC);
        }
        commit_copies();
    };

    // Line 4: load Q_i.
    copy_tile<BR>(Q_tile, Q + first_stat * D, rows);
    commit_copies();
#pragma unroll
    for (int j = 0; j < STAGES - 1; ++j) copy_keys(j);
    wait_for_copies<STAGES - 1>();
    __syncthreads();
    if (sign != 1) {  // tau2 is positive: Q_i takes the sign of tau, or becomes 0
        for (int e = threadIdx.x; e < BR * TD * 4; e += THREADS) {
            unsigned &both = *reinterpret_cast<unsigned *>(Q_tile + swizzled<ROW_BYTES>(e / (TD * 4), e / 4 % TD) + e % 4 * 4);
            both = sign < 0 ? both ^ 0x80008000 : packed(0.0f * unpacked(both).x, 0.0f * unpacked(both).y);
        }
        __syncthreads();
    }

    // This lane's part in loads of fragments, in rows 0 to 15 of a tile.
    const unsigned A_lane = swizzled<ROW_BYTES>(lane % 16, lane / 16);
    const unsigned K_lane = swizzled<ROW_BYTES>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    const unsigned Q_lane = shared_address(Q_tile) + warp * WARP_ROWS * ROW_BYTES + A_lane;
    unsigned Q_kept[TM][Q_STAYS ? STEPS : 1][4];
    if constexpr (Q_STAYS) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                load_matrices(Q_kept[i][k], chunks_further(Q_lane, 2 * k) + i * 16 * ROW_BYTES);
            }
    }

    // Line 5: O_i = 0, l_i = 0, m_i = -inf, in registers.
    Output O_acc;
    PerRow m, l;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            m[i][h] = MINUS_INFINITY;
            l[i][h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < TD; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) O_acc[i][j][c] = 0.0f;
    }

    const int warp_row = first_row + warp * WARP_ROWS;
    const int row = warp_row + lane / 4;
    const int seen_by_warps_first = keys_seen(warp_row, q_len, kv_len, causal);
    const int seen_by_warps_last = keys_seen(warp_row + WARP_ROWS - 1, q_len, kv_len, causal);
#pragma unroll 1
    for (int j = 0; j < tiles; ++j) {
        // Line 7: K_j and V_j have come, and nobody reads the tiles any more that the next copies overwrite. V_j of a
        // tile of which some rows do not see every key must not hold NaN or infinity, or products are not enough.
        const int first_key = j * BC;
        unsigned char *const K_tile = KV_tiles + j % STAGES * 2 * KV_BYTES;
        wait_for_copies<STAGES - 2>();
        bool poisoned = false;
        if (first_key + BC > seen_by_first && seen_by_first < kv_len) {
            poisoned = __syncthreads_or(copied_not_finite<BC>(K_tile + KV_BYTES));
        } else {
            __syncthreads();
        }
        copy_keys(j + STAGES - 1);

        const unsigned K_at = shared_address(K_tile) + K_lane, V_at = shared_address(K_tile) + KV_BYTES + A_lane;
        if (first_key + BC <= seen_by_warps_first) {
            visit_tile<false>(O_acc, m, l, Q_kept, Q_lane, K_at, K_tile + KV_BYTES, V_at, tau2, row, first_key, q_len,
                              kv_len, causal, false);
        } else if (first_key < seen_by_warps_last) {
            visit_tile<true>(O_acc, m, l, Q_kept, Q_lane, K_at, K_tile + KV_BYTES, V_at, tau2, row, first_key, q_len,
                             kv_len, causal, poisoned);
        }
    }

    // Line 12: O_i = diag(l_i)^-1 O_i, gathered where the warp's rows of Q_i were. A row that saw nothing has l = 0: its
    // O stays 0.
    wait_for_copies<0>();
    __syncthreads();
    unsigned char *const O_tile = Q_tile + warp * WARP_ROWS * ROW_BYTES;
    float L[TM][2];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float sum = quad_sum(l[i][h]);
            const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
            for (int j = 0; j < TD; ++j) {
                const unsigned at = swizzled<ROW_BYTES>(16 * i + 8 * h + lane / 4, j) + lane % 4 * 4;
                *reinterpret_cast<unsigned *>(O_tile + at) =
                    packed(O_acc[i][j][2 * h] * inverse, O_acc[i][j][2 * h + 1] * inverse);
            }
            L[i][h] = m[i][h] * 0.693147180559945f + logf(sum);
        }
    __syncwarp();

    // Line 14: write O_i, 32 consecutive units at once.
    const int warp_rows = rows - warp * WARP_ROWS;
    const size_t warp_stat = first_stat + warp * WARP_ROWS;
#pragma unroll
    for (int e = lane; e < WARP_ROWS * UNITS; e += 32) {
        if (e >= warp_rows * UNITS) break;
        stored *const to = O + warp_stat * D + e * UNIT;
        const unsigned char *const from = O_tile + place(e);
        if constexpr (UNIT == 8) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        if constexpr (UNIT == 4) *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(from);
        if constexpr (UNIT == 2) *reinterpret_cast<unsigned *>(to) = *reinterpret_cast<const unsigned *>(from);
        if constexpr (UNIT == 1) *to = *reinterpret_cast<const stored *>(from);
    }

    // Lines 13 and 15: L_i = m_i + log(l_i), which is -inf where nothing was seen; write it, lane t that of row t.
    float mine = 0.0f;
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float of_eight_rows = __shfl_sync(0xffffffff, L[i][h], lane % 8 * 4);
            if (lane / 8 == 2 * i + h) mine = of_eight_rows;
        }
    if (lane < min(WARP_ROWS, warp_rows)) lse[warp_stat + lane] = mine;
}
