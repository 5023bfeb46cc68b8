// A warp per query row: what the algorithms without tiles have in common. Warps share nothing, so none waits for another.
// _tiles/tiles.cuh and lanes.cuh are put before this text, with BR warps in a block. The Numba twin of this text is
// numba_warps.py: same names, same order.

// Elements of a row of Q, K, V or O per lane: lane t has t, t + 32, ... A warp moves a row as one run.
constexpr int EACH = (D + 31) / 32;
// Keys of one step. Lane t has the score of key t / SHARING of them.
constexpr int KEYS = BC;
constexpr int SHARING = 32 / KEYS;

// Whether element e of this lane lies in a row.
__device__ __forceinline__ bool lies_in_row(int e) { return D % 32 == 0 || lane_index() + 32 * e < D; }

// ROWS rows of memory in float32, all under way before the first is waited for; zeros from row `rows` on, and beyond
// the end of a row.
template <int ROWS>
__device__ __forceinline__ void load_rows(float (&x)[ROWS][EACH], const stored *source, int rows)
{
    const stored *from = source + lane_index();
    if (rows >= ROWS) {  // in most cases, and then fewer conditions are evaluated
#pragma unroll
        for (int c = 0; c < ROWS; ++c)
#pragma unroll
            for (int e = 0; e < EACH; ++e) x[c][e] = widen(lies_in_row(e) ? from[c * D + 32 * e] : stored());
    } else {
#pragma unroll
        for (int c = 0; c < ROWS; ++c)
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                x[c][e] = widen(c < rows && lies_in_row(e) ? from[c * D + 32 * e] : stored());
            }
    }
}

__device__ __forceinline__ void store_row(stored *target, const float (&x)[EACH])
{
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        if (lies_in_row(e)) narrow(x[e], &target[lane_index() + 32 * e]);
    }
}

// q.k_j for this lane's key. At each exchange a lane gives half of its sums to another one and adds that one's half to
// those it keeps, until one is left; the rest of that lies in the lanes that share the key.
__device__ __forceinline__ float multiply_q_Kt(const float (&q)[1][EACH], const float (&k)[KEYS][EACH])
{
    float dot[KEYS];
#pragma unroll
    for (int c = 0; c < KEYS; ++c) {
        dot[c] = 0.0f;
#pragma unroll
        for (int e = 0; e < EACH; ++e) dot[c] += q[0][e] * k[c][e];
    }
#pragma unroll
    for (int kept = KEYS / 2; kept > 0; kept /= 2) {
        const bool keeps_upper = lane_index() & kept * SHARING;
#pragma unroll
        for (int c = 0; c < kept; ++c) {
            const float lower = dot[c], upper = dot[c + kept];
            const float given = __shfl_xor_sync(0xffffffff, keeps_upper ? lower : upper, kept * SHARING);
            dot[c] = (keeps_upper ? upper : lower) + given;
        }
    }
    return lanes_sum<SHARING>(dot[0]);
}

// Whether this lane's key is among the next `keys`.
__device__ __forceinline__ bool has_key(int keys) { return lane_index() / SHARING < keys; }

// Maximum and sum of what the lanes have of their keys; the same in all lanes.
__device__ __forceinline__ float keys_max(float x)
{
#pragma unroll
    for (int distance = 16; distance >= SHARING; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

__device__ __forceinline__ float keys_sum(float x)
{
#pragma unroll
    for (int distance = 16; distance >= SHARING; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

// o += sum p_j v_j over the keys; p is that of this lane's key.
__device__ __forceinline__ void add_p_V(float (&o)[EACH], float p, const float (&v)[KEYS][EACH])
{
#pragma unroll
    for (int c = 0; c < KEYS; ++c) {
        const float p_c = __shfl_sync(0xffffffff, p, c * SHARING);
#pragma unroll
        for (int e = 0; e < EACH; ++e) o[e] += p_c * v[c][e];
    }
}
