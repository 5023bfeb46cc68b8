#include "warp.cuh"

// FlashAttention-2 (Dao 2023, arXiv 2307.08691, algorithm 1): rows in the outer loop. A block owns 32 rows, a warp one of them,
// whose O, m and l stay in registers while the tiles of keys pass.
constexpr int D = 32, BC = 32, BR = 32;  // BC keys in a tile; BR rows in a block, one for each warp

extern "C" __global__ void attention(const float *Q, const float *K, const float *V, float *O, int rows, int n, float tau)
{
    __shared__ float K_tile[BC][D], V_tile[BC][D];
    int warp = threadIdx.y, lane = threadIdx.x, row = blockIdx.x * BR + warp;
    float q = row < rows ? Q[row * D + lane] : 0.0f;
    float m = -INFINITY, l = 0.0f, o = 0.0f;  // of the keys so far; o is not divided by l yet
    for (int first = 0; first < n; first += BC) {
        __syncthreads();  // all warps are done with the tile before
        for (int c = warp; c < D; c += BR) {  // lane j copies key first + j, a column per turn
            bool exists = first + lane < n;
            K_tile[lane][c] = exists ? K[(first + lane) * D + c] : 0.0f;
            V_tile[lane][c] = exists ? V[(first + lane) * D + c] : 0.0f;
        }
        __syncthreads();  // the tile is complete
        float s = 0.0f;
        for (int c = 0; c < D; ++c) s += __shfl_sync(0xffffffff, q, c) * K_tile[lane][c];
        s = first + lane < n ? tau * s : -INFINITY;  // lane j has the score of key first + j
        float m_new = fmaxf(m, warp_max(s));
        float correction = expf(m - m_new), p = expf(s - m_new);
        l = l * correction + warp_sum(p);
        o *= correction;
        for (int j = 0; j < BC; ++j) o += __shfl_sync(0xffffffff, p, j) * V_tile[j][lane];
        m = m_new;
    }
    if (row < rows) O[row * D + lane] = o / l;
}
