#include "warp.cuh"

// Attention in one pass over the keys: O is corrected as l is. One warp works on one row. Lane c has column c of Q, K, V
// and O.
constexpr int D = 32;

extern "C" __global__ void attention(const float *Q, const float *K, const float *V, float *O, int n, float tau)
{
    int row = blockIdx.x, lane = threadIdx.x;
    float q = Q[row * D + lane];
    float m = -INFINITY, l = 0.0f, o = 0.0f;  // of the keys so far; o is not divided by l yet
    for (int j = 0; j < n; ++j) {
        float s = tau * warp_sum(q * K[j * D + lane]);
        float m_new = fmaxf(m, s);
        float correction = expf(m - m_new), p = expf(s - m_new);
        l = l * correction + p;
        o = o * correction + p * V[j * D + lane];
        m = m_new;
    }
    O[row * D + lane] = o / l;
}
