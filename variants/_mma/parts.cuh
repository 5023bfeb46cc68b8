// Parts of a row's keys that several blocks have, put together by the last of them. splits.cuh and the type Sink are put before
// this text.

// A row's l and m with the sink, which is a key more: 1 / l, to be multiplied by exp(m - its m), and lse.
struct FinishedRow {
    float m, inverse, lse;
    __device__ __forceinline__ FinishedRow(float l_keys, float m_keys, float logit)
        : m(fmaxf(m_keys, logit))
    {
        const float l = exp_below(m_keys, m) * l_keys + exp_below(logit, m) * Sink::WEIGHT;
        // A row that saw nothing has l = 0 and m = -inf: its O is 0, its log-sum-exp -inf.
        inverse = l == 0.0f ? 0.0f : 1.0f / l;
        lse = m + logf(l);
    }
};

// Neighbouring elements of a row that a thread reads at once.
constexpr int WIDTH = D % 4 == 0 ? 4 : D % 2 == 0 ? 2 : 1;
struct __align__(4 * WIDTH) Floats { float x[WIDTH]; };
struct __align__(2 * WIDTH) Stored { stored x[WIDTH]; };

// From L2: another block wrote it.
__device__ __forceinline__ Floats load_cg(const float *from)
{
    if constexpr (WIDTH == 4) {
        const float4 x = __ldcg(reinterpret_cast<const float4 *>(from));
        return {x.x, x.y, x.z, x.w};
    } else if constexpr (WIDTH == 2) {
        const float2 x = __ldcg(reinterpret_cast<const float2 *>(from));
        return {x.x, x.y};
    } else {
        return {__ldcg(from)};
    }
}
