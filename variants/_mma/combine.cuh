// Splits of keys put together, a block or a warp per row: m = max m_s, O = sum exp(m_s - m) O_s over l = sum exp(m_s - m) l_s. mma.cuh
// and splits.cuh are put before this text.
//
// A warp has SHARE consecutive splits at once, and of a row with more, every so many-th share, as many as there are warps.
// How many these are does not matter to the bits of a row that has a warp for each share: a warp without splits adds 0.

// The launch that puts splits together begins once all blocks of the one before have begun, and waits on chip for their end
// (PTX ISA: griddepcontrol). Its pointers to splits are not __restrict__, or it might be compiled to read before it has waited.
// Before Hopper it begins when those have ended.
__device__ __forceinline__ void let_combination_begin()
{
    if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.launch_dependents;");
}
__device__ __forceinline__ void wait_for_splits()
{
    if constexpr (__CUDA_ARCH__ >= 900) asm volatile("griddepcontrol.wait;" ::: "memory");
}

constexpr int MOST_COMBINE_WARPS = 16, MOST_COMBINE_ROWS = 4;
constexpr int SHARE = 16;
constexpr int PARTS = (DV + 31) / 32;                    // elements of O per lane
constexpr int FEW = SHARE / 4;                       // splits
static_assert(SHARE <= 32, "each split of a share has a lane");

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, distance));
    return x;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
    return x;
}

// One row of O and its log-sum-exp from so many `splits`, whose l and m lie `stride` apart, from `first_stat` on, and whose O
// are DV times as far from each other. The first warp begins with l and m of a sink, if there is one. HAS_FEW: no row has more
// than FEW splits, so that fewer registers will do.
template <bool HAS_FEW>
__device__ __forceinline__ void combine_splits(stored *__restrict__ O, float *__restrict__ lse,
                                               const float *O_split, const float *l_split, const float *m_split,
                                               size_t first_stat, size_t stride, int splits, float l, float m)
{
    constexpr int AT_ONCE = HAS_FEW || PARTS > 4 ? FEW : SHARE;  // splits whose O are under way together
    __shared__ float O_warps[MOST_COMBINE_WARPS][DV], l_warps[MOST_COMBINE_WARPS], m_warps[MOST_COMBINE_WARPS];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32, warps = blockDim.x / 32;
    float O_row[PARTS] = {};
#pragma unroll 1
    for (int first = warp * SHARE; first < splits; first += warps * SHARE) {
        const int count = min(SHARE, splits - first);
        const size_t stat = first_stat + first * stride;
        const float l_own = lane < count ? l_split[stat + lane * stride] : 0.0f;
        const float m_own = lane < count ? m_split[stat + lane * stride] : MINUS_INFINITY;
        float weight = 0.0f;
#pragma unroll
        for (int start = 0; start < SHARE; start += AT_ONCE) {
            float O_s[AT_ONCE][PARTS];
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s)
#pragma unroll
                for (int j = 0; j < PARTS; ++j) {
                    const int e = lane + 32 * j;
                    const bool is_there = start + s < count && e < DV;
                    O_s[s][j] = is_there ? O_split[(stat + (start + s) * stride) * DV + e] : 0.0f;
                }
            if (start == 0) {
                const float m_new = fmaxf(m, warp_max(m_own)), correction = exp_below(m, m_new);
                weight = exp_below(m_own, m_new);
                m = m_new;
                l = correction * l + warp_sum(weight * l_own);
#pragma unroll
                for (int j = 0; j < PARTS; ++j) O_row[j] *= correction;
            }
#pragma unroll
            for (int s = 0; s < AT_ONCE; ++s) {
                const float of_split = __shfl_sync(0xffffffff, weight, start + s);
#pragma unroll
                for (int j = 0; j < PARTS; ++j) O_row[j] += of_split * O_s[s][j];
            }
        }
    }
    // A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
    if (warps == 1) {
        const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
#pragma unroll
        for (int j = 0; j < PARTS; ++j) {
            const int e = lane + 32 * j;
            if (e < DV) O[e] = stored(O_row[j] * inverse);
        }
        if (lane == 0) *lse = m + logf(l);
        return;
    }
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        const int e = lane + 32 * j;
        if (e < DV) O_warps[warp][e] = O_row[j];
    }
    if (lane == 0) {
        l_warps[warp] = l;
        m_warps[warp] = m;
    }
    __syncthreads();

    m = MINUS_INFINITY;
    l = 0.0f;
    for (int w = 0; w < warps; ++w) m = fmaxf(m, m_warps[w]);
    for (int w = 0; w < warps; ++w) l += exp_below(m_warps[w], m) * l_warps[w];
    const float inverse = l == 0.0f ? 0.0f : 1.0f / l;
    for (int e = t; e < DV; e += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += exp_below(m_warps[w], m) * O_warps[w][e];
        O[e] = stored(sum * inverse);
    }
    if (t == 0) *lse = m + logf(l);
}
