// Chunks: how many query rows each sequence has, and where they lie. The plan chooses one of the types below as `Chunks`, and a
// kernel has a parameter of that type. The Numba twin is numba_chunks.py.
//
//     const auto chunk = chunk_of(chunks, sequence);          // of chunk.q_len rows
//     const int rows = min(BR, group * chunk.q_len - first_row);
//     if constexpr (decltype(chunk)::MAY_BE_EMPTY) {
//         if (rows <= 0) return;                              // the chunk ends before the block's rows
//     }
//     const auto own = chunk.rows(sequence, kv_head, kv_heads, group, first_row);
//
// Row r of a group is query r % q_len of head r / q_len. own.of(Q) are the block's rows of Q, or of O, as functions that move
// tiles take them; own.stat(t) is the place of its row t in lse.

// Equally many: the parameter is that number. The rows of a group lie one after the other.
typedef int EqualChunks;

struct EqualChunk {
    enum { MAY_BE_EMPTY = false };
    int q_len;
    struct Rows {
        size_t first_stat, first_element;
        template <typename T> __device__ __forceinline__ T *of(T *tensor) const { return tensor + first_element; }
        __device__ __forceinline__ size_t stat(int t) const { return first_stat + t; }
    };
    __device__ __forceinline__ Rows rows(int sequence, int kv_head, int kv_heads, int group, int first_row) const
    {
        const size_t first_stat = ((size_t)sequence * kv_heads + kv_head) * group * q_len + first_row;
        return {first_stat, first_stat * D};
    }
};

__device__ __forceinline__ EqualChunk chunk_of(int q_len, int) { return {q_len}; }

// Any number, 0 as well. Q and O are (tokens, heads, D), without padding, and lse is (heads, tokens): cu_seqlens_q holds where
// each sequence begins, and how many tokens there are.
struct RaggedChunks {
    const int *cu_seqlens_q;
    int tokens;
};

// Of (tokens, heads, D), a block's rows of a group.
template <typename T> struct RaggedRows {
    T *first;  // row 0 of the group
    int heads, q_len, first_row;
    // Element e of the block's rows, counted through.
    __device__ __forceinline__ T *at(unsigned e) const
    {
        const int row = first_row + e / D;
        return first + ((size_t)(row % q_len) * heads + row / q_len) * D + e % D;
    }
};

struct RaggedChunk {
    enum { MAY_BE_EMPTY = true };
    int q_len, q_first, tokens;
    struct Rows {
        int q_len, q_first, tokens, first_head, heads, first_row;
        template <typename T> __device__ __forceinline__ RaggedRows<T> of(T *tensor) const
        {
            return {tensor + ((size_t)q_first * heads + first_head) * D, heads, q_len, first_row};
        }
        __device__ __forceinline__ size_t stat(int t) const
        {
            const int row = first_row + t;
            return (size_t)(first_head + row / q_len) * tokens + q_first + row % q_len;
        }
    };
    __device__ __forceinline__ Rows rows(int, int kv_head, int kv_heads, int group, int first_row) const
    {
        return {q_len, q_first, tokens, kv_head * group, kv_heads * group, first_row};
    }
};

__device__ __forceinline__ RaggedChunk chunk_of(const RaggedChunks &chunks, int sequence)
{
    const int q_first = __ldg(chunks.cu_seqlens_q + sequence);
    return {__ldg(chunks.cu_seqlens_q + sequence + 1) - q_first, q_first, chunks.tokens};
}
