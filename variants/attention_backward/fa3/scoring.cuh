// P^T and dS^T of a tile, in a warpgroup's registers. chip.cuh is put before this text.

// Whether L_i is loaded before S is multiplied, while shared memory is less busy, and not behind that: there are registers for
// it in small tiles.
constexpr bool L_BEFORE_S = BR == 64;

// Whether the sum dP begins with -D_i instead of 0. In tiles of 128 rows, there are no registers for D_i beside P and dP, and
// above 96 columns they are better used for K_j.
constexpr bool D_BEFORE_DP = BR == 128 || HEAD_DIM > LARGEST_DQ;

// L_i or D_i of the lane's rows.
struct RowStats {
    float2 of[BR / 8];
    __device__ __forceinline__ void load(unsigned tile)
    {
        // The compiler is not to compute each place, for which there are too few registers.
        const unsigned place = unknown(tile + threadIdx.x % 4 * (int)sizeof(float2));
        const float2 *const lane = reinterpret_cast<const float2 *>(shared_pointer(place));
#pragma unroll
        for (int j = 0; j < BR / 8; ++j) of[j] = lane[4 * j];
    }
    // Of what a product leaves at `e`.
    __device__ __forceinline__ float operator[](int e) const { return e % 2 ? of[e / 4].y : of[e / 4].x; }
};

// P = exp(tau S - L_i), in the place of S.
__device__ __forceinline__ void exponentiate(Scores &S, const RowStats &L, float tau2)
{
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) S[e] = exp2_approx(fmaf(S[e], tau2, -L[e]));
}

// X = -D_i, in front of a product that is added to it.
__device__ __forceinline__ void begin_with_D(Scores &X, unsigned tile)
{
    RowStats delta;
    delta.load(tile);
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) X[e] = -delta[e];
    // Later, products before this one would have to end first.
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) asm volatile("" : "+f"(X[e])::"memory");
}

// dS = P o (dP - D_i), in the place of dP.
__device__ __forceinline__ void multiply_P(Scores &dP, const Scores &P, unsigned delta_tile)
{
    if constexpr (D_BEFORE_DP) {
#pragma unroll
        for (int e = 0; e < BR / 2; ++e) dP[e] *= P[e];
    } else {
        RowStats delta;
        delta.load(delta_tile);
#pragma unroll
        for (int e = 0; e < BR / 2; ++e) dP[e] = P[e] * (dP[e] - delta[e]);
    }
}

// X = 0 where the row does not see the key: chosen, not multiplied, so that NaN behind the mask stays there. The
// warpgroup's first key is `key`, the tile's first row `row`.
__device__ __forceinline__ void mask(Scores &X, const RowsOfKey &seeing, int key, int row)
{
    const int thread = unknown(threadIdx.x), lane = thread % 32, warps_key = thread % WARPGROUP / 32 * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const Rows rows = rows_seeing(seeing, warps_key + 8 * h + lane / 4, key, row);
        const int column = lane % 4 * 2;  // the lane's first row
        const int first = rows.first - column, end = rows.end - column;
#pragma unroll
        for (int j = 0; j < BR / 8; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool seen = 8 * j + e >= first && 8 * j + e < end;
                X[4 * j + 2 * h + e] = seen ? X[4 * j + 2 * h + e] : 0.0f;
            }
    }
}

// NaN in dS is brought to P, and with it to dV.
__device__ __forceinline__ void bring_NaN(Scores &P, const Scores &dS)
{
#pragma unroll
    for (int e = 0; e < BR / 2; ++e) P[e] = fmaf(0.0f, dS[e], P[e]);
}

// Rounded to 16 bits: what a product leaves in two tiles of 8 rows is A of the next one.
__device__ __forceinline__ void round_weights(Weights &W, const Scores &X)
{
#pragma unroll
    for (int i = 0; i < BR / 4; ++i) W[i] = packed(X[2 * i], X[2 * i + 1]);
}

// dS^T of the warpgroup's keys -> the tile (PTX ISA: stmatrix).
__device__ __forceinline__ void store_dS(unsigned tile, int consumer, const Weights &dS)
{
    const int key = 64 * consumer + threadIdx.x % WARPGROUP / 32 * 16 + threadIdx.x % 16;
#pragma unroll
    for (int k = 0; k < BR / 16; ++k) {
        const int piece = (2 * k + threadIdx.x % 32 / 16) % 8 ^ key % 8;
        const unsigned at = tile + k / 4 * DS_BOX_BYTES + key * KEY_BYTES + piece * CHUNK_BYTES;
        store_matrices(at, dS + 4 * k);
    }
}
