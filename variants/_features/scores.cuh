// Score terms: what happens to a score s = tau q.k before the softmax, as FlexAttention's score_mod (Dong et al. 2024,
// arXiv 2412.05496). The plan chooses the terms of a problem as `Scores`, such as Terms<Softcap, Alibi>, and whether its
// heads have sinks as `Sink`. The Numba twin is numba_scores.py.
//
//     const auto score = scores.of_head(head, q_len, kv_len);
//     s = score(s, row, key);
//
// A term is a struct with one function, of_head, which returns an object that maps (s, row, key) to the new s, and with
// with_derivative to the new s and what the gradient of the new s is multiplied by for that of tau q.k. Rows and keys are
// counted from the beginning of their sequences. A new term is a new struct here.

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float MINUS_INFINITY = __builtin_bit_cast(float, 0xff800000u);  // the score of a key that a row does not see

struct Scored {
    float score, derivative;
};

// s = cap tanh(s). The plan divides tau by the cap, so this term comes first.
struct Softcap {
    float cap;
    __device__ __forceinline__ Softcap of_head(int, int, int) const { return *this; }
    __device__ __forceinline__ float operator()(float s, int, int) const { return cap * tanhf(s); }
    __device__ __forceinline__ Scored with_derivative(float s, int, int) const
    {
        const float t = tanhf(s);
        return {cap * t, 1.0f - t * t};
    }
};

// The same with one instruction for the tangent, to a relative error of 2^-11 (PTX ISA: tanh.approx.f32).
struct ApproximateSoftcap {
    float cap;
    __device__ __forceinline__ ApproximateSoftcap of_head(int, int, int) const { return *this; }
    __device__ __forceinline__ Scored with_derivative(float s, int, int) const
    {
        float t;
        asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(s));
        return {cap * t, 1.0f - t * t};
    }
};

// s = s - slope |distance|, with a slope per head: Press et al. 2022, arXiv 2108.12409. Row i lies on key i + kv_len - q_len.
struct Alibi {
    const float *slopes;
    struct OfHead {
        float slope;
        int offset;
        __device__ __forceinline__ float operator()(float s, int row, int key) const
        {
            return s - slope * fabsf((float)(key - row - offset));
        }
        __device__ __forceinline__ Scored with_derivative(float s, int row, int key) const
        {
            return {(*this)(s, row, key), 1.0f};
        }
    };
    __device__ __forceinline__ OfHead of_head(int head, int q_len, int kv_len) const
    {
        return {__ldg(slopes + head), kv_len - q_len};
    }
};

// s = s + bias[head, row, key]. An axis that the bias does not vary over has stride 0.
struct Bias {
    const float *bias;
    int head_stride, row_stride, key_stride;
    struct OfHead {
        const float *bias;
        int row_stride, key_stride, last_row;
        // A tile may have room for rows after the last.
        __device__ __forceinline__ float operator()(float s, int row, int key) const
        {
            return s + __ldg(bias + (size_t)min(row, last_row) * row_stride + (size_t)key * key_stride);
        }
        __device__ __forceinline__ Scored with_derivative(float s, int row, int key) const
        {
            return {(*this)(s, row, key), 1.0f};
        }
    };
    __device__ __forceinline__ OfHead of_head(int head, int q_len, int) const
    {
        return {bias + (size_t)head * head_stride, row_stride, key_stride, q_len - 1};
    }
};

// All of a problem's terms, the first one first. Without terms s stays as it is.
template <class... All> struct Terms {
    __device__ __forceinline__ Terms of_head(int, int, int) const { return *this; }
    __device__ __forceinline__ float operator()(float s, int, int) const { return s; }
    __device__ __forceinline__ Scored with_derivative(float s, int, int) const { return {s, 1.0f}; }
};

template <class Term, class... Others> struct Terms<Term, Others...> {
    Term term;
    Terms<Others...> others;

    template <class OfHead, class OthersOfHead> struct Both {
        OfHead term;
        OthersOfHead others;
        __device__ __forceinline__ float operator()(float s, int row, int key) const
        {
            return others(term(s, row, key), row, key);
        }
        __device__ __forceinline__ Scored with_derivative(float s, int row, int key) const
        {
            const Scored one = term.with_derivative(s, row, key);
            const Scored all = others.with_derivative(one.score, row, key);
            return {all.score, one.derivative * all.derivative};
        }
    };
    template <class A, class B> __device__ __forceinline__ static Both<A, B> both(const A &a, const B &b) { return {a, b}; }
    __device__ __forceinline__ auto of_head(int head, int q_len, int kv_len) const
    {
        return both(term.of_head(head, q_len, kv_len), others.of_head(head, q_len, kv_len));
    }
};

// For kernels that compute some terms in a way of their own: whether a problem has a term, and which one.
template <class A, class B> constexpr bool is_same_type = false;
template <class A> constexpr bool is_same_type<A, A> = true;
template <class Term, class Scores> constexpr bool has_term = false;
template <class Term, class... All> constexpr bool has_term<Term, Terms<All...>> = (is_same_type<Term, All> || ...);
template <class Scores> constexpr int term_count = 0;
template <class... All> constexpr int term_count<Terms<All...>> = sizeof...(All);

template <class Wanted, class Term, class... Others>
__device__ __forceinline__ const Wanted &find_term(const Terms<Term, Others...> &scores)
{
    if constexpr (is_same_type<Wanted, Term>) {
        return scores.term;
    } else {
        return find_term<Wanted>(scores.others);
    }
}

// A sink is a key before all others that has a logit per head and no value: it adds exp(logit - m) to l. A head whose logit
// is -infinity has none. WEIGHT: exp(logit - m) while the sink alone has been seen.
struct NoSink {
    static constexpr float WEIGHT = 0.0f;
    __device__ __forceinline__ float logit(int) const { return MINUS_INFINITY; }
};

struct SinkPerHead {
    static constexpr float WEIGHT = 1.0f;
    const float *logits;
    __device__ __forceinline__ float logit(int head) const { return __ldg(logits + head); }
};
