// Puts attention of one block of keys and the sum over the blocks before it together, for a warp per row: each counts by
// the weight of its keys, exp(lse). Below are the letters of README.md: O_s and lse_s are the sum, O_t and lse_t the block.

#include <math_constants.h>

constexpr int LANES = 32;
// Neighbouring elements that a lane loads or stores at once: more than one where a row divides into whole requests of them.
constexpr int ELEMENTS = D % (4 * LANES) == 0 ? 4 : D % (2 * LANES) == 0 ? 2 : 1;
template <class T> struct alignas(ELEMENTS * sizeof(T)) Elements { T x[ELEMENTS]; };
template <class T> __device__ __forceinline__ Elements<T> load(const T *from)
{
    return *reinterpret_cast<const Elements<T> *>(from);
}
template <class T> __device__ __forceinline__ void store(const Elements<T> &elements, T *to)
{
    *reinterpret_cast<Elements<T> *>(to) = elements;
}

extern "C" __global__ void ring_merge(const stored *O_t, const float *lse_t, float *O_s, float *lse_s, stored *O,
                                      float *lse, int rows, int is_first, int is_last)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y, lane = threadIdx.x;
    if (row >= rows) return;

    // m = max(lse_s, lse_t); a block of which the row sees no key has lse_t = -inf, and weight 0.
    const float of_block = lse_t[row];
    const float of_sum = is_first ? -CUDART_INF_F : lse_s[row];
    const float m = fmaxf(of_sum, of_block);
    const bool sees_block = of_block != -CUDART_INF_F, sees_sum = of_sum != -CUDART_INF_F;
    const float w_t = sees_block ? expf(of_block - m) : 0.0f;
    const float w_s = sees_sum ? expf(of_sum - m) : 0.0f;
    const float l = w_s + w_t;
    const bool sees_any = sees_block || sees_sum;

    // lse_s = m + log(w_s + w_t)
    const float together = sees_any ? m + logf(l) : -CUDART_INF_F;
    const float share_t = sees_any ? w_t / l : 0.0f;
    const float share_s = sees_any ? w_s / l : 0.0f;
    __syncwarp();  // all lanes have read lse_s
    if (lane == 0) (is_last ? lse : lse_s)[row] = together;

    // O_s = (w_s O_s + w_t O_t) / (w_s + w_t), rounded to the problem's dtype behind the last block. O of no keys is not read.
    for (int x = ELEMENTS * lane; x < D; x += ELEMENTS * LANES) {
        const size_t at = (size_t)row * D + x;
        Elements<stored> block = {}, rounded;
        Elements<float> sum = {};
        if (sees_block) block = load(&O_t[at]);
        if (sees_sum) sum = load(&O_s[at]);
#pragma unroll
        for (int e = 0; e < ELEMENTS; ++e) {
            const float before = sum.x[e], o = share_t * widen(block.x[e]);
            sum.x[e] = fmaf(share_s, before, o);
            narrow(sum.x[e], &rounded.x[e]);
        }
        if (is_last) store(rounded, &O[at]);
        else store(sum, &O_s[at]);
    }
}
