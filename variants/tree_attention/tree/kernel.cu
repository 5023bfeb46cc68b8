// Puts attention of two sets of keys together, for a warp per row: each counts by the weight of its keys, exp(lse). Below are
// the letters of README.md: O_a and lse_a are the device's own, O_b and lse_b have arrived. The plan chooses the types of
// elements: `stored`, the problem's dtype, or float after a merge. The Numba twin is numba_kernel.py.

#include <math_constants.h>

constexpr int LANES = 32;

template <class T> __device__ __forceinline__ float as_float(T x)
{
    if constexpr (sizeof(T) == sizeof(float)) return x;
    else return widen(x);
}

template <class T> __device__ __forceinline__ void put(float x, T *to)
{
    if constexpr (sizeof(T) == sizeof(float)) *to = x;
    else narrow(x, to);
}

extern "C" __global__ void tree_merge(const Own *O_a, const float *lse_a, const Arrived *O_b, const float *lse_b, Merged *O,
                                      float *lse, int rows)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;

    // m = max(lse_a, lse_b); keys of which the row sees none have lse = -inf and weight 0, and O is not read.
    const float a = lse_a[row], b = lse_b[row], m = fmaxf(a, b);
    const bool sees_a = a != -CUDART_INF_F, sees_b = b != -CUDART_INF_F, sees_any = sees_a || sees_b;
    const float w_a = sees_a ? expf(a - m) : 0.0f;
    const float w_b = sees_b ? expf(b - m) : 0.0f;
    const float l = w_a + w_b, share_a = sees_any ? w_a / l : 0.0f, share_b = sees_any ? w_b / l : 0.0f;

    // lse = m + log(w_a + w_b), perhaps in the place of lse_a
    __syncwarp();  // all lanes have read lse_a
    if (lane == 0) lse[row] = sees_any ? m + logf(l) : -CUDART_INF_F;

    // O = (w_a O_a + w_b O_b) / (w_a + w_b), perhaps in the place of O_a
    for (int x = lane; x < D; x += LANES) {
        const size_t at = (size_t)row * D + x;
        float o = sees_a ? share_a * as_float(O_a[at]) : 0.0f;
        if (sees_b) o = fmaf(share_b, as_float(O_b[at]), o);
        put(o, &O[at]);
    }
}
