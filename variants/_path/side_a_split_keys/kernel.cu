#include "warp.cuh"

// Flash-Decoding: the keys of a row are split among several blocks, which run in parallel. Each leaves its own O, m and l in
// memory; a second kernel combines them.
constexpr int D = 32, BC = 32, BR = 32;  // BC keys in a tile; BR rows in a block, one for each warp

// Column of a tile's row at which chunk `chunk` (four elements, 16 bytes) lies: in eight rows that follow each other, in eight
// different places.
__device__ int place(int row, int chunk) { return 4 * (chunk ^ row % 8); }

// Block (x, y) has rows from 32 x on, and keys from y `keys` on.
extern "C" __global__ void attention(const float *Q, const float *K, const float *V, float *O_of, float *m_of, float *l_of,
                                     int rows, int n, int keys, float tau)
{
    __shared__ __align__(16) float K_tile[BC][D], V_tile[BC][D];
    int warp = threadIdx.y, lane = threadIdx.x, row = blockIdx.x * BR + warp;
    int start = blockIdx.y * keys, end = min(start + keys, n);
    float q = row < rows ? Q[row * D + lane] : 0.0f;
    float m = -INFINITY, l = 0.0f, o = 0.0f;  // of the keys so far; o is not divided by l yet
    for (int first = start; first < end; first += BC) {
        __syncthreads();  // all warps are done with the tile before
        if (warp < BC / 4) {  // a warp copies four keys; eight lanes share a key, 16 bytes each
            int key = 4 * warp + lane / 8, c = lane % 8 * 4, to = place(key, lane % 8);
            bool exists = first + key < end;
            float4 zero = {}, *k = (float4 *)&K_tile[key][to], *v = (float4 *)&V_tile[key][to];
            *k = exists ? *(const float4 *)&K[(first + key) * D + c] : zero;
            *v = exists ? *(const float4 *)&V[(first + key) * D + c] : zero;
        }
        __syncthreads();  // the tile is complete
        float s = 0.0f;
        for (int c = 0; c < D; c += 4) {
            float4 k = *(const float4 *)&K_tile[lane][place(lane, c / 4)];
            s += __shfl_sync(0xffffffff, q, c) * k.x + __shfl_sync(0xffffffff, q, c + 1) * k.y;
            s += __shfl_sync(0xffffffff, q, c + 2) * k.z + __shfl_sync(0xffffffff, q, c + 3) * k.w;
        }
        s = first + lane < end ? tau * s : -INFINITY;  // lane j has the score of key first + j
        float m_new = fmaxf(m, warp_max(s));
        float correction = expf(m - m_new), p = expf(s - m_new);
        l = l * correction + warp_sum(p);
        o *= correction;
        for (int j = 0; j < BC; ++j) o += __shfl_sync(0xffffffff, p, j) * V_tile[j][place(j, lane / 4) + lane % 4];
        m = m_new;
    }
    int part = blockIdx.y * rows + row;
    if (row < rows) O_of[part * D + lane] = o;
    if (row < rows && lane == 0) m_of[part] = m, l_of[part] = l;
}

// One warp combines what the blocks have found for one row.
extern "C" __global__ void combine(const float *O_of, const float *m_of, const float *l_of, float *O, int rows, int splits)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float m = -INFINITY, l = 0.0f, o = 0.0f;
    for (int part = row; part < splits * rows; part += rows) {
        float m_part = m_of[part], m_new = fmaxf(m, m_part);
        float correction = expf(m - m_new), weight = expf(m_part - m_new);
        l = l * correction + l_of[part] * weight;
        o = o * correction + O_of[part * D + lane] * weight;
        m = m_new;
    }
    O[row * D + lane] = o / l;
}
