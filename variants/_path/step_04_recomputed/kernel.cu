#include "warp.cuh"

// Attention in one kernel that computes the scores twice, so that S needs no memory. One warp works on one row. Lane c has
// column c of Q, K, V and O.
constexpr int D = 32;

extern "C" __global__ void attention(const float *Q, const float *K, const float *V, float *O, int n, float tau)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float q = Q[row * D + lane];
    float m = -INFINITY, l = 0.0f;  // the same in all lanes
    for (int j = 0; j < n; ++j) {
        float s = tau * warp_sum(q * K[j * D + lane]);
        float m_new = fmaxf(m, s);
        l = l * expf(m - m_new) + expf(s - m_new);
        m = m_new;
    }
    float o = 0.0f;
    for (int j = 0; j < n; ++j) {
        float s = tau * warp_sum(q * K[j * D + lane]);  // once more
        float p = expf(s - m) / l;
        o += p * V[j * D + lane];
    }
    O[row * D + lane] = o;
}
