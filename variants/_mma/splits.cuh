// A split of keys on tensor cores: 16 rows of queries meet tiles of 16 keys, each warp its own, in a ring of slots in
// shared memory. _features/scores.cuh and mma.cuh are put before this text.
//
// Compile-time parameters: D and DV (elements per row of Q and K, and of V and O), SPLIT (keys per split), WARPS (per block),
// SLOTS (tiles of K or V that a warp has room for). If DV is not D, D is a multiple of 16: a slot has K after V, and nothing
// may be left of V where K ends. ends_alone.cuh or continues.cuh is put before this text, too.

constexpr int BR = 16;  // rows of queries
constexpr int BC = 16;  // keys per tile: what one product sums over
constexpr int THREADS = 32 * WARPS;
constexpr int STEPS = (D + 15) / 16;  // a row of Q or K in pieces of 16 elements, zeros after the last
constexpr int V_STEPS = (DV + 15) / 16;  // a row of V or O
constexpr int TD = 2 * V_STEPS;  // O in tiles of 8 elements
constexpr int ROW_BYTES = (D + 63) / 64 * 128;  // of a row of Q or K in shared memory
constexpr int V_ROW_BYTES = (DV + 63) / 64 * 128;
constexpr int SLOT_BYTES = BC * (ROW_BYTES < V_ROW_BYTES ? V_ROW_BYTES : ROW_BYTES);
constexpr int RING_BYTES = SLOTS * SLOT_BYTES;
static_assert(SPLIT % (BC * WARPS) == 0, "splits are whole tiles of every warp");
static_assert(D == DV || D % 16 == 0, "K fills what products read of a slot that had V");
static_assert(SLOTS >= 3, "two slots are filled while one is read, and two hold a warp's O at the end");

// In shared memory: the warps' rings, then Q, then l and m of each row from each warp. At the end, each warp's O lies
// where the rings were, or behind if the next keys are on their way there, as are the next rows of Q.
extern __shared__ __align__(128) unsigned char shared[];
constexpr int Q_TILE = WARPS * RING_BYTES;
constexpr int Q_ROWS_END = Q_TILE + (1 + CONTINUES) * SLOT_BYTES;
constexpr int L_ROWS = Q_ROWS_END, M_ROWS = L_ROWS + WARPS * BR * (int)sizeof(float);
constexpr int O_ROWS = CONTINUES ? M_ROWS + WARPS * BR * (int)sizeof(float) : 0;
constexpr int LD = V_ROW_BYTES / 2;  // floats per row of O

// S and O as products leave them: [n][e] is row g + 8 (e / 2), column 8 n + 2 q + e % 2, g = lane / 4, q = lane % 4.
typedef float ScoreTile[2][4];
typedef float Output[TD][4];

// What one thread copies at once: as much as rows of `width` elements keep aligned.
__device__ constexpr int unit_over(int width) { return width % 8 == 0 ? 8 : width % 4 == 0 ? 4 : width % 2 == 0 ? 2 : 1; }

// Rows of ELEMENTS elements from `first` to before `end` of global memory, which lie one after the other -> a tile of 16 in shared memory,
// zeros above and below: a zero weight times what was there before could be NaN. This is `lane` of LANES threads;
// neighbours copy neighbouring units.
template <int LANES, int ELEMENTS = D>
__device__ __forceinline__ void copy_tile(int tile, const stored *source, int first, int end, int lane)
{
    constexpr int UNIT = unit_over(ELEMENTS), UNITS = ELEMENTS / UNIT, PITCH = (ELEMENTS + 63) / 64 * 128;
#pragma unroll(UNIT == 8 ? BC * UNITS / LANES + 1 : 2)
    for (int start = 0; start < BC * UNITS; start += LANES) {
        const int unit = start + lane, row = unit / UNITS, element = unit % UNITS * UNIT;
        if (BC * UNITS % LANES != 0 && unit >= BC * UNITS) break;
        const int to = tile + swizzled<PITCH>(row, element / CHUNK) + element % CHUNK * (int)sizeof(stored);
        const bool wanted = row >= first && row < end;
        if constexpr (UNIT > 1) {
            copy_async<UNIT * (int)sizeof(stored)>(shared_address(shared) + to, source + unit * UNIT, wanted);
        } else {
            *reinterpret_cast<stored *>(shared + to) = wanted ? source[unit] : stored();
        }
    }
}

// exp(x - m), and 0 for x = -inf even where nothing was seen yet (m = -inf), for (-inf) - (-inf) is NaN.
__device__ __forceinline__ float exp_below(float x, float m) { return __expf(x - (m == MINUS_INFINITY ? 0.0f : m)); }

// S = Q K^T. Q_lane and K_lane: where this lane's row of each 8 x 8 matrix begins.
__device__ __forceinline__ void multiply_Q_Kt(ScoreTile &S, unsigned Q_lane, unsigned K_lane)
{
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) S[n][e] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        unsigned q[4], k[4];
        load_matrices(q, chunks_further(Q_lane, 2 * s));
        load_matrices(k, chunks_further(K_lane, 2 * s));
        multiply_add(S[0], q, k[0], k[1]);
        multiply_add(S[1], q, k[2], k[3]);
    }
}

// O += P V.
__device__ __forceinline__ void add_P_V(Output &O, const ScoreTile &P, unsigned V_lane)
{
    const unsigned p[4] = {packed(P[0][0], P[0][1]), packed(P[0][2], P[0][3]), packed(P[1][0], P[1][1]),
                           packed(P[1][2], P[1][3])};
#pragma unroll
    for (int s = 0; s < V_STEPS; ++s) {
        unsigned v[4];
        load_matrices_transposed(v, chunks_further(V_lane, 2 * s));
        multiply_add(O[2 * s], p, v[0], v[1]);
        multiply_add(O[2 * s + 1], p, v[2], v[3]);
    }
}

// The same, key after key and only in rows that see it: others must not even multiply it by their zero weight, for V
// may hold NaN or infinity. `V_pair(k, n)`: the two elements of V that belong to O[n].
template <class Seen, class Pair>
__device__ __forceinline__ void add_P_V_where_seen(Output &O, const ScoreTile &P, const Pair &V_pair, const Seen &seen, int lane)
{
#pragma unroll 1
    for (int k = 0; k < BC; ++k) {
        float p[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float even = k < 8 ? P[0][2 * i] : P[1][2 * i];
            const float odd = k < 8 ? P[0][2 * i + 1] : P[1][2 * i + 1];
            p[i] = __shfl_sync(0xffffffff, k % 2 == 0 ? even : odd, lane / 4 * 4 + k % 8 / 2);
        }
#pragma unroll
        for (int n = 0; n < TD; ++n) {
            const float2 v = unpacked(V_pair(k, n));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool sees = seen.sees(i, k);
                O[n][2 * i] = sees ? O[n][2 * i] + p[i] * v.x : O[n][2 * i];
                O[n][2 * i + 1] = sees ? O[n][2 * i + 1] + p[i] * v.y : O[n][2 * i + 1];
            }
        }
    }
}

// The pair in a tile of V as ldmatrix takes it.
struct PairsInTile {
    int V_tile, lane;
    __device__ __forceinline__ unsigned operator()(int k, int n) const
    {
        const int at = V_tile + swizzled<V_ROW_BYTES>(k, n) + lane % 4 * 4;
        return *reinterpret_cast<const unsigned *>(shared + at);
    }
};

// Element e of a row of O from a warp. Half a warp stores pairs of floats at once, in 4 neighbouring rows: these go to
// different banks.
__device__ __forceinline__ float *O_element(int warp, int row, int e)
{
    return reinterpret_cast<float *>(shared + O_ROWS) + (warp * BR + row) * LD + (e ^ row % 8 * 8);
}
