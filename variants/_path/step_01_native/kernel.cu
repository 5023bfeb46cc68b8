#include "warp.cuh"

// Attention by its definition, in three kernels, with S in memory between them. One block of 32 threads (one warp) works on
// one row. Lane c has column c of Q, K, V and O, so that a warp reads a row of 32 floats at once.
constexpr int D = 32;

// S = tau Q K^T.
extern "C" __global__ void scores(const float *Q, const float *K, float *S, int n, float tau)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float q = Q[row * D + lane];
    for (int first = 0; first < n; first += 32) {  // 32 keys at a time, so that their scores are stored together
        float s = 0.0f;
        for (int j = 0; j < 32 && first + j < n; ++j) {
            float dot = warp_sum(q * K[(first + j) * D + lane]);
            if (lane == j) s = tau * dot;  // lane j keeps the score of key first + j
        }
        if (first + lane < n) S[row * n + first + lane] = s;
    }
}

// P = exp(S) / l, in the place of S.
extern "C" __global__ void softmax(float *S, int n)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float l = 0.0f;
    for (int j = lane; j < n; j += 32) l += expf(S[row * n + j]);
    l = warp_sum(l);
    for (int j = lane; j < n; j += 32) S[row * n + j] = expf(S[row * n + j]) / l;
}

// O = P V.
extern "C" __global__ void output(const float *P, const float *V, float *O, int n)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float o = 0.0f;
    for (int first = 0; first < n; first += 32) {
        float p = first + lane < n ? P[row * n + first + lane] : 0.0f;
        for (int j = 0; j < 32 && first + j < n; ++j) {
            o += __shfl_sync(0xffffffff, p, j) * V[(first + j) * D + lane];  // lane j has the weight of key first + j
        }
    }
    O[row * D + lane] = o;
}
