#include "warp.cuh"

// Attention with the online softmax, in three kernels, with S in memory between them. One block of 32 threads (one warp) works on
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

// P = exp(S - m) / l with the maximum m of the row, in the place of S. One pass finds m and l.
extern "C" __global__ void softmax(float *S, int n)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float m = -INFINITY, l = 0.0f;  // of the keys that this lane has seen so far
    for (int j = lane; j < n; j += 32) {
        float s = S[row * n + j];
        float m_new = fmaxf(m, s);
        l = l * expf(m - m_new) + expf(s - m_new);  // what l has is relative to the old m
        m = m_new;
    }
    float m_row = warp_max(m);
    l = warp_sum(l * expf(m - m_row));  // the same correction joins the lanes
    for (int j = lane; j < n; j += 32) S[row * n + j] = expf(S[row * n + j] - m_row) / l;
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
