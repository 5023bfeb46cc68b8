// Sequences: where the rows and keys of a block's sequence begin, and how many there are. The plan chooses one of the two types
// below as `Sequences`, and a kernel has a parameter of that type. The Numba twin is numba_sequences.py.
//
//     const auto own = sequences.at(blockIdx.z, first_row, q_len, kv_len);   // first_row: in the sequence
//     if (!own.has_rows()) return;                                           // the sequence ends before it
//
// Kernels that need no keys call sequences.rows_at(blockIdx.z, first_row, q_len).
//
// Limits and scores count rows and keys from the beginning of the sequence: they get own.q_len and own.kv_len. Addresses take
// own.batch, or own.number(head_index, head) of a head, and own.row(first_row) and own.key(first_key).
//
// Kernels in which a block owns keys ask the same in the other direction, as of limits: the plan then passes cu_seqlens_k first,
// and the kernel exchanges the roles of rows and keys, of q_len and kv_len.

// A batch of sequences that are equally long.
struct OneLength {
    struct Own {
        unsigned batch;
        int q_len, kv_len;
        __device__ __forceinline__ bool has_rows() const { return true; }
        __device__ __forceinline__ int row(int of_sequence) const { return of_sequence; }
        __device__ __forceinline__ int key(int of_sequence) const { return of_sequence; }
        // Of a head among those of all batch entries: heads are counted through the sequences.
        template <class Number> __device__ __forceinline__ Number number(Number head_index, unsigned) const { return head_index; }
    };
    __device__ __forceinline__ Own at(unsigned sequence, int, int q_len, int kv_len) const { return {sequence, q_len, kv_len}; }
    __device__ __forceinline__ Own rows_at(unsigned sequence, int, int q_len) const { return {sequence, q_len, 0}; }
};

// Sequences of any lengths, one after the other in one batch entry, as flash_attn_varlen_func takes them: two arrays of
// (sequences + 1) hold where each begins. A sequence may have no rows, or no keys.
struct Varlen {
    const int *cu_seqlens_q, *cu_seqlens_k;

    struct Own {
        unsigned batch;
        int q_first, q_len, k_first, kv_len;
        bool is_there;
        __device__ __forceinline__ bool has_rows() const { return is_there; }
        __device__ __forceinline__ int row(int of_sequence) const { return q_first + of_sequence; }
        __device__ __forceinline__ int key(int of_sequence) const { return k_first + of_sequence; }
        template <class Number> __device__ __forceinline__ Number number(Number, unsigned head) const { return head; }
    };
    // A block of rows behind the end of its sequence does not read where keys begin.
    __device__ __forceinline__ Own at(unsigned sequence, int first_row, int, int) const
    {
        const int q_first = __ldg(cu_seqlens_q + sequence), q_len = __ldg(cu_seqlens_q + sequence + 1) - q_first;
        if (first_row >= q_len) return {0, q_first, q_len, 0, 0, false};
        const int k_first = __ldg(cu_seqlens_k + sequence);
        return {0, q_first, q_len, k_first, __ldg(cu_seqlens_k + sequence + 1) - k_first, true};
    }
    // The same of kernels that need no keys.
    __device__ __forceinline__ Own rows_at(unsigned sequence, int first_row, int) const
    {
        const int first = __ldg(cu_seqlens_q + sequence), rows = __ldg(cu_seqlens_q + sequence + 1) - first;
        return {0, first, rows, 0, 0, first_row < rows};
    }
};
