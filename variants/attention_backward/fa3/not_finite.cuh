// Tiles multiply whole: a P or dS of 0, where a row does not see a key, must not meet NaN or infinity. chip.cuh is put before
// this text. It is to be short, and need not be fast.

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

// Whether an element, or D_i of the lane's rows, is NaN or infinity.
__device__ __forceinline__ bool not_finite(const Scores &S, const Scores &dP, unsigned delta_tile)
{
    RowStats delta;
    delta.load(delta_tile);
    float zero = 0.0f;
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) zero = fmaf(0.0f, S[e], fmaf(0.0f, dP[e], zero));
#pragma unroll
    for (int j = 0; j < BR / 8; ++j) zero = fmaf(0.0f, delta.of[j].x, fmaf(0.0f, delta.of[j].y, zero));
    return zero != zero;
}

// By all consumers, of a tile with a row that does not see all keys: whether anything in it is not finite. A row of Q_i, K_j or
// dO_i that is not finite makes all its elements of S or dP not finite, whatever the other factor is. It becomes 0. L_i of such
// a row of Q_i or dO_i becomes NaN, and with it what the row adds where it sees a key. In the place of what was in K_j, V_j has
// a NaN, and `keys_not_finite` becomes true: dP = dO_i V_j^T brings it to the rows that see the key, here and in later tiles,
// and a mask keeps it from all others.
__device__ __forceinline__ bool clear_not_finite(const Chip &chip, int n, const Scores &S, const Scores &dP,
                                                 bool &keys_not_finite)
{
    if (!any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, not_finite(S, dP, chip.delta(n)))) return false;
    const int row = unknown(threadIdx.x) - WARPGROUP;
    if (row < BR) {
        const bool in_Q = clear_not_finite<BR>(chip.Q_tile(n), row), in_dO = clear_not_finite<BR>(chip.dO_tile(n), row);
        if (in_Q || in_dO) reinterpret_cast<float *>(shared_pointer(chip.L(n)))[row] = __int_as_float(0x7fffffff);
    }
    const bool in_K = row < BC && clear_not_finite<BC>(chip.K_tile, row);
    if (in_K) *reinterpret_cast<unsigned short *>(shared_pointer(chip.V_tile() + piece_of_row(row, 0))) = 0x7fff;  // in either dtype
    publish_to_async();
    keys_not_finite |= any_of_threads(ALL_CONSUMERS, CONSUMER_THREADS, in_K);
    return true;
}
