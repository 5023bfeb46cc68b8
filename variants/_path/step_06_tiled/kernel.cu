#include "warp.cuh"

// FlashAttention-1: tiles of 32 keys in shared memory, which all rows use before the next tile is loaded. One block works on
// all rows, a warp on one row at a time. O, m and l of a row wait in memory while the other rows have their turn.
constexpr int D = 32, BC = 32, BR = 8;  // BC keys in a tile; BR rows at a time, one for each warp

extern "C" __global__ void attention(const float *Q, const float *K, const float *V, float *O, float *m_of, float *l_of,
                                     int rows, int n, float tau)
{
    __shared__ float K_tile[BC][D], V_tile[BC][D];
    int warp = threadIdx.y, lane = threadIdx.x;
    for (int row = warp; row < rows; row += BR) {
        O[row * D + lane] = 0.0f;
        if (lane == 0) m_of[row] = -INFINITY, l_of[row] = 0.0f;
    }
    for (int first = 0; first < n; first += BC) {
        __syncthreads();  // all warps are done with the tile before
        for (int c = warp; c < D; c += BR) {  // lane j copies key first + j, a column per turn
            bool exists = first + lane < n;
            K_tile[lane][c] = exists ? K[(first + lane) * D + c] : 0.0f;
            V_tile[lane][c] = exists ? V[(first + lane) * D + c] : 0.0f;
        }
        __syncthreads();  // the tile is complete
        for (int row = warp; row < rows; row += BR) {
            float q = Q[row * D + lane], s = 0.0f;
            for (int c = 0; c < D; ++c) s += __shfl_sync(0xffffffff, q, c) * K_tile[lane][c];
            s = first + lane < n ? tau * s : -INFINITY;  // lane j has the score of key first + j
            float m = m_of[row], m_new = fmaxf(m, warp_max(s));
            float correction = expf(m - m_new), p = expf(s - m_new);
            float l = l_of[row], l_new = l * correction + warp_sum(p);
            float o = O[row * D + lane] * l * correction;
            for (int j = 0; j < BC; ++j) o += __shfl_sync(0xffffffff, p, j) * V_tile[j][lane];
            O[row * D + lane] = o / l_new;
            __syncwarp();  // all lanes have read m and l
            if (lane == 0) m_of[row] = m_new, l_of[row] = l_new;
        }
    }
}
