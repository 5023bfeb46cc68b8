// V that is not finite. _hopper/pipeline.cuh and registers.cuh are put before this text.

// O += p v for each v of a tile of so many keys that is NaN or infinity, in rows that see its key. It is to be short, and need
// not be fast.
template <class Bits>
__device__ __forceinline__ void add_not_finite(Output &O, Weights &P, const unsigned char *V_tile, int keys,
                                               const KeysSeen<Bits> &seen)
{
    const int lane = threadIdx.x % 32, quarter = lane % 4;
#pragma unroll 1
    for (int j = 0; j < TD; ++j) {
#pragma unroll 1
        for (int first_key = 0; first_key < BC; first_key += 16) {
#pragma unroll 1
            for (int key = first_key; key < min(first_key + 16, keys); ++key) {
                const int at = 8 * j / COLUMNS * BC * ROW_BYTES + piece_of_row(key, j % (COLUMNS / 8)) + 4 * quarter;
                const unsigned both = *reinterpret_cast<const unsigned *>(V_tile + at);
                const float2 v = unpacked(both);
                if (!__any_sync(0xffffffff, not_finite(both))) continue;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    // Of the four lanes that share a row each has two keys of 8.
                    const unsigned pair = __shfl_sync(0xffffffff, key & 8 ? P[2 + h] : P[h], (lane & ~3) | key % 8 / 2);
                    const float p = key % 2 ? unpacked(pair).y : unpacked(pair).x;
                    const bool sees = seen.sees(h, key);
                    if (sees && !isfinite(v.x)) O[2 * h] += p * v.x;
                    if (sees && !isfinite(v.y)) O[2 * h + 1] += p * v.y;
                }
            }
            move_up<4>(P);
        }
        move_up<4>(O);
    }
}

__device__ __forceinline__ bool not_finite(const uint4 &v)
{
    return not_finite(v.x) || not_finite(v.y) || not_finite(v.z) || not_finite(v.w);
}

// By all consumers, once each has added what its rows see of it: from here on what is not finite in a tile of V counts as 0.
__device__ __forceinline__ void clear_not_finite(unsigned char *V_tile)
{
    constexpr int PIECES = BC * D * (int)sizeof(stored) / 16;
    uint4 *const V = reinterpret_cast<uint4 *>(V_tile);
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
#pragma unroll 1
    for (int e = threadIdx.x - WARPGROUP; e < PIECES; e += CONSUMER_THREADS) {
        const uint4 v = V[e];
        if (not_finite(v)) {
            V[e] = make_uint4(finite_or_zero(v.x), finite_or_zero(v.y), finite_or_zero(v.z), finite_or_zero(v.w));
        }
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
}

// Before P V of a tile of keys that not all rows see all of, with NaN or infinity in V: a row must not even multiply it by its
// zero weight. By all consumers. What is not finite is added one by one, and then counts as 0, so rows that see none of it get
// the bits that they would get without.
template <class Bits>
__device__ __forceinline__ void take_not_finite(Output &O, Weights &P, unsigned char *V_tile, int keys,
                                                const KeysSeen<Bits> &seen)
{
    add_not_finite(O, P, V_tile, keys, seen);
    clear_not_finite(V_tile);
}
