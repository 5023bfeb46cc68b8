// What becomes of a score between its scale and the mask, and sinks. The Numba twin is numba_scores.py.
//
// Compile-time options, each with a parameter of its own, the last ones of a kernel, in this order:
//   SOFTCAP  float softcap          s = softcap tanh(s), where the factor before, tau, is divided by the cap already
//   ALIBI    const float *slopes    s = s - slopes[query head] |place of the row - key|
//   SINKS    const float *sinks     a row has one more logit, without a value

#ifdef SOFTCAP
#define SOFTCAP_PARAMETER , float softcap
#define SOFTCAP_ARGUMENT , softcap
#else
#define SOFTCAP_PARAMETER
#define SOFTCAP_ARGUMENT
#endif
#ifdef ALIBI
#define SLOPES_PARAMETER , const float *__restrict__ slopes
#define SLOPE_ARGUMENT(slope) , slope
#define PLACE_ARGUMENT(place) , place
#else
#define SLOPES_PARAMETER
#define SLOPE_ARGUMENT(slope)
#define PLACE_ARGUMENT(place)
#endif
// A head that has no sink is one whose sink is -infinity. exp(sink - m) is 1 while the sink itself is the maximum.
#ifdef SINKS
#define SINKS_PARAMETER , const float *__restrict__ sinks
#define SINK(head) sinks[head]
#define SINK_WEIGHT 1.0f
#else
#define SINKS_PARAMETER
#define SINK(head) MINUS_INFINITY
#define SINK_WEIGHT 0.0f
#endif
#define LOG2_E 1.4426950408889634f
#define SCORE_PARAMETERS SOFTCAP_PARAMETER SLOPES_PARAMETER

// tanh(x), to a relative error of 2^-11 (PTX ISA: tanh.approx.f32).
__device__ __forceinline__ float tanh_approx(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// From products q.k of one query head to scores.
struct Scoring {
    float tau;
#ifdef SOFTCAP
    float softcap;
#endif
#ifdef ALIBI
    float slope;
    int place;  // of row 0, counted from the same key as `ahead`
#endif

    // `ahead`: by how much the key's index is larger than the row's.
    __device__ __forceinline__ float operator()(float product, int ahead) const
    {
        float s = tau * product;
#ifdef SOFTCAP
        s = softcap * tanhf(s);
#endif
#ifdef ALIBI
        s -= slope * fabsf((float)(ahead - place));
#endif
        return s;
    }
};
#define SCORING(slope, place) Scoring{tau SOFTCAP_ARGUMENT SLOPE_ARGUMENT(slope) PLACE_ARGUMENT(place)}
