#include "warp.cuh"

// The backward pass (Dao 2023, arXiv 2307.08691, algorithm 2): given dO, the gradients dQ, dK and dV. P is not in memory: it is
// computed again from Q, K and lse = m + log(l), which the forward pass has left. Rows of tiles are 33 floats apart, so that 32
// rows of one column are in 32 banks.
constexpr int D = 32, B = 32;  // elements per row; rows or keys of a tile, and of a block, one for each warp

// Each warp copies one row of an array to the tile; zeros from row `end` on.
__device__ void load_tile(float (*tile)[D + 1], const float *from, int first, int end)
{
    int warp = threadIdx.y, lane = threadIdx.x;
    tile[warp][lane] = first + warp < end ? from[(first + warp) * D + lane] : 0.0f;
}

// The product of the row that the warp has in x, an element per lane, with row `lane` of a tile.
__device__ float times_tile(float x, float (*tile)[D + 1])
{
    float sum = 0.0f;
    for (int c = 0; c < D; ++c) sum += __shfl_sync(0xffffffff, x, c) * tile[threadIdx.x][c];
    return sum;
}

// The sum of the rows of a tile, row i weighted by the x of lane i: an element per lane.
__device__ float weighted_sum(float x, float (*tile)[D + 1])
{
    float sum = 0.0f;
    for (int i = 0; i < B; ++i) sum += __shfl_sync(0xffffffff, x, i) * tile[i][threadIdx.x];
    return sum;
}

// delta = sum over a row of O dO: what the softmax takes off each dP of the row.
extern "C" __global__ void prepare(const float *O, const float *dO, float *delta)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float sum = warp_sum(O[row * D + lane] * dO[row * D + lane]);
    if (lane == 0) delta[row] = sum;
}

// dK and dV: a warp owns one key; lane i works on row i of each tile of rows.
extern "C" __global__ void keys(const float *Q, const float *K, const float *V, const float *lse, const float *dO,
                                const float *delta, float *dK, float *dV, int rows, int n, float tau)
{
    __shared__ float Q_tile[B][D + 1], dO_tile[B][D + 1];
    int lane = threadIdx.x, key = blockIdx.x * B + threadIdx.y;
    float k = key < n ? K[key * D + lane] : 0.0f, v = key < n ? V[key * D + lane] : 0.0f, dk = 0.0f, dv = 0.0f;
    for (int first = 0; first < rows; first += B) {
        __syncthreads();  // all warps are done with the tiles before
        load_tile(Q_tile, Q, first, rows);
        load_tile(dO_tile, dO, first, rows);
        __syncthreads();  // the tiles are complete
        int row = min(first + lane, rows - 1);
        float p = expf(tau * times_tile(k, Q_tile) - lse[row]);  // all lanes take part in the shuffles
        if (first + lane >= rows) p = 0.0f;                      // this row does not exist
        float ds = tau * p * (times_tile(v, dO_tile) - delta[row]);
        dv += weighted_sum(p, dO_tile);
        dk += weighted_sum(ds, Q_tile);
    }
    if (key < n) dK[key * D + lane] = dk, dV[key * D + lane] = dv;
}

// dQ: a warp owns one row; lane j works on key j of each tile of keys.
extern "C" __global__ void rows_of_Q(const float *Q, const float *K, const float *V, const float *lse, const float *dO,
                                     const float *delta, float *dQ, int rows, int n, float tau)
{
    __shared__ float K_tile[B][D + 1], V_tile[B][D + 1];
    int lane = threadIdx.x, row = blockIdx.x * B + threadIdx.y, mine = min(row, rows - 1);
    float q = Q[mine * D + lane], g = dO[mine * D + lane], lse_of_row = lse[mine], delta_of_row = delta[mine], dq = 0.0f;
    for (int first = 0; first < n; first += B) {
        __syncthreads();  // all warps are done with the tiles before
        load_tile(K_tile, K, first, n);
        load_tile(V_tile, V, first, n);
        __syncthreads();  // the tiles are complete
        float p = expf(tau * times_tile(q, K_tile) - lse_of_row);
        float ds = tau * p * (times_tile(g, V_tile) - delta_of_row);  // all lanes take part in the shuffles
        if (first + lane >= n) ds = 0.0f;                            // this key does not exist
        dq += weighted_sum(ds, K_tile);
    }
    if (row < rows) dQ[row * D + lane] = dq;
}
