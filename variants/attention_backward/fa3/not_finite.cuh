// Tiles multiply whole: a P or dS of 0, where a row does not see a key, must not meet NaN or infinity. chip.cuh is put before
// this text. It is to be short, and need not be fast.

// Whether the thread, one of all consumers, finds NaN or infinity in its part of K_j.
__device__ __forceinline__ bool finds_not_finite(const Chip &chip)
{
    const uint4 *const pieces = reinterpret_cast<const uint4 *>(shared_pointer(chip.K_tile));
    bool found = false;
#pragma unroll 1
    for (int e = unknown(threadIdx.x) - WARPGROUP; e < KEYS_BYTES / 16; e += CONSUMER_THREADS) {
        const uint4 x = pieces[e];
        found |= not_finite(x.x) || not_finite(x.y) || not_finite(x.z) || not_finite(x.w);
    }
    return found;
}

// Row `row` of a tile of ROWS rows: what is NaN or infinity becomes 0. Whether there was any.
template <int ROWS> __device__ __forceinline__ bool clear_not_finite(unsigned tile, int row)
{
    bool found = false;
#pragma unroll 1
    for (int e = 0; e < D; e += 2) {
        const int piece = e / COLUMNS * ROWS * ROW_BYTES + piece_of_row(row, e % COLUMNS / CHUNK);
        unsigned &both = *reinterpret_cast<unsigned *>(shared_pointer(tile + piece + e % CHUNK * (int)sizeof(stored)));
        if (!not_finite(both)) continue;
        both = finite_or_zero(both);
        found = true;
    }
    return found;
}

// By all consumers, of K_j. In the place of what was there V_j has a NaN: dP = dO_i V_j^T brings it to the rows that see the
// key, and a mask keeps it from all others. Whether there was any.
__device__ __forceinline__ bool move_not_finite(const Chip &chip)
{
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, finds_not_finite(chip))) return false;
    const int key = unknown(threadIdx.x) - WARPGROUP;
    if (key < BC && clear_not_finite<BC>(chip.K_tile, key)) {
        *reinterpret_cast<unsigned short *>(shared_pointer(chip.V_tile() + piece_of_row(key, 0))) = 0x7fff;  // in either dtype
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
    return true;
}

// Whether any element is NaN or infinity.
__device__ __forceinline__ bool not_finite(const Scores &X)
{
    float zero = 0.0f;
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) zero = fmaf(0.0f, X[e], zero);
    return zero != zero;
}

// By all consumers, of a tile with a row that does not see all keys. A row of Q_i or dO_i that is not finite makes all its
// elements of S or dP not finite, whatever the keys are. L_i of such a row becomes NaN, and with it what the row adds where it
// sees a key.
__device__ __forceinline__ void clear_rows_not_finite(const Chip &chip, int n, const Scores &S, const Scores &dP)
{
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, not_finite(S) || not_finite(dP))) return;
    const int row = unknown(threadIdx.x) - WARPGROUP;
    if (row < BR) {
        const bool in_Q = clear_not_finite<BR>(chip.Q_tile(n), row), in_dO = clear_not_finite<BR>(chip.dO_tile(n), row);
        if (in_Q || in_dO) reinterpret_cast<float *>(shared_pointer(chip.L(n)))[row] = __int_as_float(0x7fffffff);
    }
    publish_to_async();
    sync_threads(ALL_CONSUMERS, CONSUMER_THREADS);
}
