// Factors that are not finite. _hopper/e4m3_tiles.cuh, pipeline.cuh and registers.cuh are put before this text.

// S += q k for each k of a tile of `keys` keys that is infinite, of which K_tile has 0: -infinity where q has the other
// sign. `q` and `k` are the problem's own, the lane's first row and the tile's first key.
__device__ __forceinline__ void add_infinities(Scores &S, const stored *q, const stored *k, int rows, int keys,
                                               int head_dim, float sign)
{
    const unsigned short *const k_bits = reinterpret_cast<const unsigned short *>(k);
    const unsigned short *const q_bits = reinterpret_cast<const unsigned short *>(q);
#pragma unroll 1
    for (int j = 0; j < TN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int key = 8 * j + threadIdx.x % 4 * 2 + e % 2, row = 8 * (e / 2);
            if (key >= keys || row >= rows) continue;
#pragma unroll 1
            for (int i = 0; i < head_dim; ++i) {
                const unsigned x = k_bits[key * head_dim + i];
                if ((x & 0x7fff) == EXPONENT) S[e] += sign * unpacked(q_bits[row * head_dim + i]).x * unpacked(x).x;
            }
        }
        move_up<4>(S);
    }
}

// O = NaN for each NaN of a tile of V, in rows that see its key. It is to be short, and need not be fast.
template <class Bits>
__device__ __forceinline__ void add_nans(Output &O, const unsigned char *V_tile, const KeysSeen<Bits> &seen)
{
    const int quarter = threadIdx.x % 4;
#pragma unroll 1
    for (int j = 0; j < TD; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
#pragma unroll 1
            for (int place = 0; place < BC; ++place) {
                const unsigned char v = V_tile[VTile::place(8 * j + 2 * quarter + c, place)];
                if ((v & 0x7f) != 0x7f) continue;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (seen.sees(h, key_of_place(place))) O[2 * h + c] = __int_as_float(0x7fffffff);
                }
            }
        }
        move_up<4>(O);
    }
}

// Before P V of a tile that holds keys which only some rows see: a row must not even multiply NaN by its zero weight. All
// consumers look through V together. NaN is added where it is seen, and then counts as 0, so rows that see none of it
// get the bits that they would get without.
template <class Bits>
__device__ __forceinline__ void take_nans(Output &O, unsigned char *V_tile, const KeysSeen<Bits> &seen)
{
    const int thread = threadIdx.x - WARPGROUP;
    unsigned *const V = reinterpret_cast<unsigned *>(V_tile);
    bool found = false;
#pragma unroll 4
    for (int e = thread; e < VTile::BYTES / 16; e += CONSUMER_THREADS) {
        const uint4 v = reinterpret_cast<const uint4 *>(V_tile)[e];
        found |= (nans_of_e4m3(v.x) | nans_of_e4m3(v.y) | nans_of_e4m3(v.z) | nans_of_e4m3(v.w)) != 0;
    }
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, found)) return;
    add_nans(O, V_tile, seen);
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
#pragma unroll 1
    for (int e = thread; e < VTile::BYTES / 4; e += CONSUMER_THREADS) {
        const unsigned nans = nans_of_e4m3(V[e]);
        if (nans) V[e] &= ~((nans >> 7) * 0xff);
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
}
