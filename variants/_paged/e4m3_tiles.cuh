// Tiles of K and V whose elements are e4m3, in the slots of split_attention.cuh: copied as they are, widened to 16 bits on their
// way to tensor cores, which is exact. pools.cuh and split_attention.cuh are put before this text. sm_89 and later.
//
// ldmatrix moves pairs of bytes as it does elements of 16 bits. With g = lane / 4 and q = lane % 4, of 16 elements of a row of K
// a lane gets 4 q to 4 q + 3, where a product wants 2 q, 2 q + 1, 2 q + 8 and 2 q + 9: its sum may go over them in any order, so
// Q lies in K's. Of V, a lane gets columns 2 g and 2 g + 1, which become column g of two products: O's columns come out mixed.

static_assert(D == DV && D % 8 == 0, "rows of K and V are equally long, and whole copies of 8 bytes");

// Two times two e4m3, in their order, as elements of 16 bits.
struct Widened { unsigned low, high; };
__device__ __forceinline__ unsigned as_stored(unsigned halves)
{
    if constexpr (FLOAT16) return halves;
    float low, high;
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(low), "=f"(high)
        : "r"(halves));
    return packed(low, high);
}
__device__ __forceinline__ Widened widened(unsigned bytes)
{
    unsigned low, high;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
    return {as_stored(low), as_stored(high)};
}

template <> struct KeyTiles<e4m3> {
    // O[n] of a row are two neighbours; those of tiles 2 s and 2 s + 1 are four.
    struct Rows : ::Rows {
        __device__ __forceinline__ static int column(int n, int lane) { return n / 2 * 16 + lane % 4 * 4 + n % 2 * 2; }
    };
    enum : int { PITCH = (D + 127) / 128 * 128, SLOT = BC * PITCH, COUNT = RING_BYTES / SLOT };
    static_assert(COUNT >= 3, "two slots are filled while one is read");
    unsigned Q_lane, lane_in_tile;

    __device__ __forceinline__ explicit KeyTiles(int lane)
    {
        Q_lane = shared_address(shared) + swizzled<ROW_BYTES>(lane % 16, lane / 16);
        lane_in_tile = shared_address(shared) + swizzled<PITCH>(lane % 16, lane / 16);
    }

    __device__ __forceinline__ static void copy(int to, const e4m3 *source, int first, int end, int lane, bool)
    {
        constexpr int UNIT = D % 16 == 0 ? 16 : 8, UNITS = D / UNIT;
#pragma unroll
        for (int start = 0; start < BC * UNITS; start += 32) {
            const int unit = start + lane, row = unit / UNITS, byte = unit % UNITS * UNIT;
            if (BC * UNITS % 32 != 0 && unit >= BC * UNITS) break;
            const int at = to + swizzled<PITCH>(row, byte / CHUNK_BYTES) + byte % CHUNK_BYTES;
            copy_async<UNIT>(shared_address(shared) + at, source + unit * UNIT, row >= first && row < end);
        }
    }

    // Of each 16 elements of a row of Q, those that a lane has of K to where it looks for its own.
    __device__ __forceinline__ static void arrange_Q(int Q_tile, int t)
    {
        for (int i = t; i < BR * STEPS; i += THREADS) {
            const int row = i / STEPS, chunk = i % STEPS * 2;
            uint4 &x = *reinterpret_cast<uint4 *>(shared + Q_tile + swizzled<ROW_BYTES>(row, chunk));
            uint4 &y = *reinterpret_cast<uint4 *>(shared + Q_tile + swizzled<ROW_BYTES>(row, chunk + 1));
            const bool is_padding = D % 16 != 0 && chunk + 2 == 2 * STEPS;  // what an earlier Q has left
            const uint4 first = x, second = is_padding ? uint4() : y;
            x = make_uint4(first.x, first.z, second.x, second.z);
            y = make_uint4(first.y, first.w, second.y, second.w);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void multiply_Q_Kt(ScoreTile &S, int Q_tile, int slot) const
    {
#pragma unroll
        for (int e = 0; e < 8; ++e) S[e / 4][e % 4] = 0.0f;
        unsigned k[4];  // of two steps
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            unsigned q[4];
            load_matrices(q, chunks_further(Q_lane + Q_tile, 2 * s));
            if (s % 2 == 0) load_matrices(k, chunks_further(lane_in_tile + slot, s));
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const Widened of_keys = widened(k[s % 2 * 2 + n]);
                multiply_add(S[n], q, of_keys.low, of_keys.high);
            }
        }
    }

    __device__ __forceinline__ void add_P_V(Output &O, const ScoreTile &P, int slot) const
    {
        const unsigned p[4] = {packed(P[0][0], P[0][1]), packed(P[0][2], P[0][3]), packed(P[1][0], P[1][1]),
                               packed(P[1][2], P[1][3])};
        unsigned v[4];  // of two steps
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (s % 2 == 0) load_matrices_transposed(v, chunks_further(lane_in_tile + slot, s));
            // Bytes of two keys' neighbours in a row become neighbours of two keys.
            const Widened near = widened(__byte_perm(v[s % 2 * 2], 0, 0x3120));
            const Widened far = widened(__byte_perm(v[s % 2 * 2 + 1], 0, 0x3120));
            multiply_add(O[2 * s], p, near.low, far.low);
            multiply_add(O[2 * s + 1], p, near.high, far.high);
        }
    }

    // As products leave O: O[n] has every second of the lane's four columns.
    struct Pairs {
        int V_tile, lane;
        __device__ __forceinline__ unsigned operator()(int k, int n) const
        {
            const int at = V_tile + swizzled<PITCH>(k, n / 2) + lane % 4 * 4;
            const Widened v = widened(__byte_perm(*reinterpret_cast<const unsigned *>(shared + at), 0, 0x3120));
            return n % 2 == 0 ? v.low : v.high;
        }
    };
    __device__ __forceinline__ static Pairs pairs(int slot, int lane) { return {slot, lane}; }

    __device__ __forceinline__ static void sort_columns(Output &O)
    {
#pragma unroll
        for (int n = 0; n < TD; n += 2)
#pragma unroll
            for (int e = 0; e < 4; e += 2) {
                const float second = O[n][e + 1];
                O[n][e + 1] = O[n + 1][e];
                O[n + 1][e] = second;
            }
    }
};
